"""Keyed jagged tensors of TorchRec: a batch's keys, past adapters, to the ranks with tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.ops.dtypes import row_bytes
from perfmodel.ops.graph import INPUT, Argument, Tensor
from perfmodel.workload.adapter_caches import AdapterUse, adapter_use, is_across_network
from perfmodel.workload.collectives import (
    KEYS,
    all_to_all_call,
    even_all_to_all,
    group_of,
    linked_collective,
)
from perfmodel.workload.eager.recorder import Recorder, Shape
from perfmodel.workload.eager.tensors import send_from_host, to_device, to_dtype
from perfmodel.workload.embedding_tables import total_lookups
from perfmodel.workload.step import Run

NIC = "nic"
"""The resource of an adapter's work on rows."""
ITEM_BYTES = 4.0


def remote_keys(r: Recorder, run: Run, values: Tensor) -> Tensor:
    """The keys that go out of `values`: those that the remote cache has not, and one's own.

    Only keys are looked for before the others go; rows are read while these are answered.
    """
    use = adapter_use(run)
    if use is None:
        return values
    dims = answered_lookups(run, use)
    if dims["lookups"] < 1:
        return values
    left = r.tensor((max(sum(use.sent_lookups(run)), 1),), values.dtype)
    probed = {"probes": dims["probes"]}
    record_row_op(r, "nic_lookup", (values,), left, stream=NIC, dims=probed)
    return left


def add_remote_rows(r: Recorder, run: Run, received: Tensor) -> None:
    """Rows of the remote cache, added up and into what was `received` from the other ranks."""
    use = adapter_use(run)
    if use is None:
        return
    dims = answered_lookups(run, use)
    if dims["lookups"] >= 1:
        record_row_op(r, "nic_lookup", (), received, stream=NIC, dims=dims | {"probes": 1.0})


def answered_lookups(run: Run, use: AdapterUse) -> dict[str, float]:
    """Of tables that others hold: keys, those found, bags of them, what goes to the device."""
    assert run.placement is not None
    near = [rank for rank in range(run.ranks) if not is_across_network(run, rank)]
    held = {s.table for rank in near for s in run.plan.shards[rank] if s.parts == 1}
    probes = found = moved = bags = elements = 0.0
    for number, table in enumerate(run.workload.tables):
        frac = 1.0 - use.tables[number].asked_frac
        if number in held or frac <= 0:
            continue
        lookups = table.lookups(run.batch)
        probes, found = probes + lookups, found + frac * lookups
        moved += frac * lookups * float(row_bytes(run.placement.tables[number].dtype, table.dim))
        bags += frac * run.batch
        elements += frac * run.batch * table.dim
    return {
        "probes": probes,
        "lookups": found,
        "row_bytes": moved / max(found, 1.0),
        "bags": bags,
        "dim": elements / max(bags, 1.0),
        "delivered_bytes": elements * ITEM_BYTES,
    }


def record_row_op(
    r: Recorder,
    op: str,
    inputs: tuple[Argument, ...],
    *outputs: Tensor,
    stream: str,
    dims: dict[str, float],
    dtype: str = "fp32",
    blocks: bool = False,
) -> None:
    """The op `op` of the vocabulary on the resource `stream`; the host waits for one that `blocks`.

    `inputs` and `outputs` tell what it waits for, and what waits for it.
    """
    about = {name: repr(float(value)) for name, value in dims.items()}
    about |= {"stream": stream, "dtype": dtype, "blocks": "1" if blocks else "0"}
    r.leaf(f"tier::{op}", inputs, *outputs, about=about)


def exchange_sequences(r: Recorder, run: Run, elements: int) -> None:
    """Lengths to all ranks, then each sequence with all that belongs to it (`elements` of a rank's
    batch) to its new rank.

    Who gets which is computed on the host, beside the step before.
    """
    own, every = r.tensor((run.batch,), "int64"), r.tensor((run.batch * run.ranks,), "int64")
    linked_collective(r, "all_gather", own, every, run.ranks)
    count = -(-elements // run.ranks) * run.ranks
    given, got = r.tensor((count,), "int64"), r.tensor((count,), "int64")
    even_all_to_all(r, given, got, run.ranks)


PREFETCHED, DISTRIBUTED = {"pipeline": "prefetch"}, {"pipeline": "distribute"}
"""Attributes of what a pipeline does for later steps, beside the step: the batch brought; its keys
sent to the ranks with their tables, on a stream of its own."""
INPUT_STREAM = {"stream": "input"}
"""Attribute of what a step does with keys that arrived, on the stream of the distribution."""


@dataclass(frozen=True)
class Jagged:
    """Indices of several tables, and per table and sample how many are its."""

    values: Tensor
    lengths: Tensor


def local_batch(
    r: Recorder, run: Run, others: Sequence[tuple[Shape, str]]
) -> tuple[list[Tensor], Jagged]:
    """The rank's own samples, from the host: indices of all tables, and `others` (shape, dtype),
    the first of them before the indices."""
    workload, batch = run.workload, run.batch

    def sent(shape: Shape, dtype: str) -> Tensor:
        return send_from_host(r, shape, dtype, pinned=True)

    with r.during(INPUT):
        brought = [sent(*each) for each in others[:1]]
        keys = workload.implementation.key_dtype
        values = sent((total_lookups(workload.tables, batch),), keys)
        lengths = sent((len(workload.tables) * batch,), "int32")
        brought += [sent(*each) for each in others[1:]]
    return brought, Jagged(values, lengths)


def start_key_exchange(r: Recorder, run: Run, local: Jagged) -> tuple[Jagged, Tensor]:
    """The keys of the own samples in the order in which they go out, and how many come in return.

    Tables that are in row-wise parts are sorted by part. The first of three collectives.
    """
    with r.during(INPUT):
        local = Jagged(remote_keys(r, run, local.values), local.lengths)
        ordered = _permuted(r, local, len(run.workload.tables), run.batch)
        sizes = (3 * run.ranks,)
        given, got = r.tensor(sizes, "int64"), r.tensor(sizes, "int64")
        one = [3] * run.ranks
        group = group_of(run, KEYS)
        all_to_all_call(r, given, got, one, one, group=group)
    return ordered, got


def finish_key_exchange(r: Recorder, run: Run, ordered: Jagged, splits: Tensor) -> Jagged:
    """From all tables of the own samples to the own tables of all samples, rank by rank.

    The host waits for the sizes; then two collectives: lengths, values.
    """
    got, use, group = received_keys(r, run), adapter_use(run), group_of(run, KEYS)
    tables, places, batch = run.workload.tables, run.plan.shards, run.batch
    with r.during(INPUT):
        to_device(r, splits, "cpu")
        own = [len(shards) * batch for shards in places]
        theirs = [got.lengths.shape[0] // run.ranks] * run.ranks
        all_to_all_call(r, ordered.lengths, got.lengths, own, theirs, group=group)
        own = [sum(each.of(tables).lookups(batch) for each in shards) for shards in places]
        theirs = [got.values.shape[0] // run.ranks] * run.ranks
        if use is not None:
            own, theirs = use.sent_lookups(run), use.received_split(run)
        all_to_all_call(r, ordered.values, got.values, own, theirs, group=group)
    return got


def received_keys(r: Recorder, run: Run) -> Jagged:
    """Tensors for what comes of the own tables."""
    use, bags = adapter_use(run), run.global_batch
    count = total_lookups(run.tables, bags) if use is None else sum(use.received_split(run))
    return Jagged(
        r.tensor((max(count, 1),), run.workload.implementation.key_dtype),
        r.tensor((max(len(run.tables) * bags, 1),), "int32"),
    )


def keys_by_table(r: Recorder, run: Run, got: Jagged) -> Jagged:
    """What came rank by rank, table by table, with lookups per table, which the host waits for."""
    tables, samples = max(len(run.tables), 1), run.global_batch
    with r.during(INPUT):
        keys = _permuted(r, got, tables, samples)
    lengths = r.view(keys.lengths, (tables, samples), (samples, 1))
    r.begin("aten::sum", lengths, (1,), False, None)
    to_dtype(r, lengths, "int64")
    out = r.tensor((tables,), "int64")
    r.end(out)
    to_device(r, out, "cpu")
    return keys


def offsets(r: Recorder, jagged: Jagged) -> Tensor:
    """Where each table's and sample's indices begin, one more than there are lengths."""
    name, count = "fbgemm::asynchronous_complete_cumsum", jagged.lengths.shape[0] + 1
    return r.made(name, (jagged.lengths,), (count,), "int32")


def _permuted(r: Recorder, jagged: Jagged, tables: int, batch: int) -> Jagged:
    """The same in another order of tables."""
    order = r.tensor((tables,), "int32")
    lengths = r.view(jagged.lengths, (tables, batch), (batch, 1))
    moved = r.tensor((tables, batch), "int32"), r.tensor(jagged.values.shape, jagged.values.dtype)
    count = jagged.values.shape[0]
    name = "fbgemm::permute_2D_sparse_data"
    r.leaf(name, (order, lengths, jagged.values, None, count), *moved, None)
    return Jagged(moved[1], r.view(moved[0], (tables * batch,), (1,)))
