"""TorchRec's exchanges: a batch's keys, in keyed jagged tensors and past adapters, to the ranks
with tables; pooled rows back, by a request, a wait before use, and codecs of the wire.

Rows of whole tables and columns: an all-to-all. Rows on all ranks: partial sums by a
reduce-scatter, whose backward is an all-gather. Rows on linked ranks: a reduce-scatter among these,
then an all-to-all among the ranks of one place in each group. Source: TorchRec's sharding types
(TW/CW, RW, TWRW).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.embedding.placement import NIC
from perfmodel.ops.graph import INPUT, Argument, Tensor
from perfmodel.workload.adapter_caches import adapter_use, answered_lookups, is_across_network
from perfmodel.workload.eager.calls import Shape
from perfmodel.workload.eager.recorder import GROUP, Recorder, shares
from perfmodel.workload.step import Run
from perfmodel.workload.tables import total_lookups


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
        return r.send_from_host(shape, dtype, pinned=True)

    with r.during(INPUT):
        brought = [sent(*each) for each in others[:1]]
        keys = workload.implementation.key_dtype
        values = sent((total_lookups(workload.tables, batch),), keys)
        lengths = sent((len(workload.tables) * batch,), "int32")
        brought += [sent(*each) for each in others[1:]]
    return brought, Jagged(values, lengths)


def sent_keys(r: Recorder, ways: Sequence[Run], local: Jagged) -> list[Jagged]:
    """The keys of the own samples for the tables of each kind of sharding, in the order of the
    ranks that have them, those of columns once for each; one kind by rows has them in order.

    Keys that an adapter has stay; rows are read there while others are answered. Source: TorchRec,
    `ShardedEmbeddingBagCollection.input_dist`.
    """
    batch, tables, values = ways[0].batch, ways[0].workload.tables, local.values
    held = [[n for n, s in way.plan.shard_of.items() for _ in range(s.columns)] for way in ways]
    counts = [sum(tables[n].lookups(batch) for n in each) for each in held]
    with r.during(INPUT):
        for at, way in enumerate(ways):
            use = adapter_use(way)
            if use is None or (dims := answered_lookups(way, use))["lookups"] < 1:
                continue
            counts[at] = max(sum(use.sent_lookups(way)), 1)
            values, probed = r.tensor((counts[at],), values.dtype), {"probes": dims["probes"]}
            record_row_op(r, "nic_lookup", (local.values,), values, stream=NIC, dims=probed)
        replicas = ways[0].plan.replicated
        keys = Jagged(values, local.lengths)
        if len(ways) > 1 or replicas or _by_rows(ways[0]) != ways[0].ranks:
            own = sum(tables[n].lookups(batch) for n in replicas)
            keys = _permuted(r, keys, sum(map(len, (*held, replicas))), batch, sum(counts) + own)
    return [
        Jagged(
            r.view(keys.values, (count,), (1,)), r.view(keys.lengths, (len(each) * batch,), (1,))
        )
        for count, each in zip(counts, held, strict=True)
    ]


def _by_rows(run: Run) -> int:
    """In how many parts each of the tables is, all of them in rows; else 1."""
    return min(shard.parts for shard in run.plan.shard_of.values())


def start_key_exchange(r: Recorder, run: Run, keys: Jagged) -> tuple[Jagged, Tensor]:
    """The keys of the own samples as they go out, those of rows by the rank that has them, and how
    many come in return. The first of three collectives."""
    with r.during(INPUT):
        if (parts := _by_rows(run)) > 1:
            lengths = sum(map(len, run.plan.shards)) * run.batch
            out = r.tensor((lengths,), "int32"), r.like(keys.values)
            blocks = r.tensor((len(run.plan.shard_of),), keys.values.dtype)
            asked = (keys.lengths, keys.values, False, False, blocks, run.ranks, None)
            r.leaf("fbgemm::block_bucketize_sparse_features", asked, *out, None, None, None)
            keys = Jagged(out[1], out[0])
            _count_keys(r, keys, lengths // run.batch, run.batch)
            if parts < run.ranks:  # by the ranks of each node
                keys = _permuted(r, keys, lengths // run.batch, run.batch, keys.values.shape[0])
        sizes = (3 * run.ranks,)
        given, got = r.tensor(sizes, "int64"), r.tensor(sizes, "int64")
        one = [3] * run.ranks
        r.all_to_all_call(given, got, one, one)
    return keys, got


def finish_key_exchange(r: Recorder, run: Run, ordered: Jagged, splits: Tensor) -> Jagged:
    """From all tables of the own samples to the own tables of all samples, rank by rank.

    The host waits for the sizes; then two collectives: lengths, values.
    """
    got, use, batch = received_keys(r, run), adapter_use(run), run.batch
    with r.during(INPUT):
        for sizes in (splits, r.like(splits)):  # what came, and what was sent is checked too
            r.to_device(sizes, "cpu")
        own = [len(shards) * batch for shards in run.plan.shards]
        theirs = shares(len(run.tables) * run.global_batch, run.ranks)
        r.all_to_all_call(ordered.lengths, got.lengths, own, theirs)
        own = list(map(sum, run.plan.of_each(lambda it: it.of(run.workload.tables).lookups(batch))))
        theirs = shares(total_lookups(run.tables, run.global_batch), run.ranks)
        if use is not None:
            own, theirs = use.sent_lookups(run), use.received_split(run)
        r.all_to_all_call(ordered.values, got.values, own, theirs)
    return got


def received_keys(r: Recorder, run: Run) -> Jagged:
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
        keys = _permuted(r, got, tables, samples, got.values.shape[0])
    _count_keys(r, keys, tables, samples)
    return keys


def _count_keys(r: Recorder, keys: Jagged, tables: int, samples: int) -> None:
    """Lookups per table, which the host waits for."""
    lengths = r.view(keys.lengths, (tables, samples), (samples, 1))
    r.begin("aten::sum", lengths, (1,), False, None)
    r.to_dtype(lengths, "int64")
    out = r.tensor((tables,), "int64")
    r.end(out)
    r.to_device(out, "cpu")


def offsets(r: Recorder, jagged: Jagged) -> Tensor:
    """Where each table's and sample's indices begin, one more than there are lengths."""
    name, count = "fbgemm::asynchronous_complete_cumsum", jagged.lengths.shape[0] + 1
    return r.made(name, (jagged.lengths,), (count,), "int32")


def _permuted(r: Recorder, jagged: Jagged, tables: int, batch: int, count: int) -> Jagged:
    """The same in another order of `tables`, `count` values in all, of which some come again."""
    order = r.tensor((tables,), "int32")
    lengths = r.view(jagged.lengths, (max(jagged.lengths.shape[0] // batch, 1), batch), (batch, 1))
    moved = r.tensor((tables, batch), "int32"), r.tensor((count,), jagged.values.dtype)
    name = "fbgemm::permute_2D_sparse_data"
    r.leaf(name, (order, lengths, jagged.values, None, count), *moved, None)
    return Jagged(moved[1], r.view(moved[0], (tables * batch,), (1,)))


ROWWISE = {"int8": ("Fused8Bit", 8), "fp8": ("FP8", 8)}
"""Wire type to the name of its codec, and what a row's scale takes beside its bytes: fp32 scale and
bias (int8); fp32 scale, padded (fp8). Source: FBGEMM, quantize_ops; the latter recalled."""
ROW = 128
"""Elements of a row of the payload. assumed: TorchRec's `row_dim` is the embedding's dim."""


def wire_elements(elements: int, wire: str) -> int:
    """Elements of the wire's type for so many values."""
    if wire not in ROWWISE:
        return elements
    return elements + -(-elements // ROW) * ROWWISE[wire][1]


def encode_wire(r: Recorder, values: Tensor, wire: str) -> Tensor:
    """`values` `[n]` as they go out."""
    if wire not in ROWWISE:
        return _in_range(r, values, wire)
    name, scale = ROWWISE[wire]
    rows = -(-values.elements // ROW)
    given = r.view(values, (rows, ROW), (ROW, 1))
    out = r.made(f"fbgemm::FloatTo{name}RowwiseQuantized", (given,), (rows, ROW + scale), "uint8")
    return r.view(out, (wire_elements(values.elements, wire),), (1,))


def _in_range(r: Recorder, values: Tensor, wire: str) -> Tensor:
    """As the plain type of the wire, cut to its range before. Source: FBGEMM, quantize_utils.py."""
    if wire != values.dtype:
        values = r.made_like(values, "aten::clamp", values, -1.0, 1.0)
    return r.cast(values, wire)


def decode_wire(r: Recorder, payload: Tensor, elements: int, wire: str) -> Tensor:
    """What came in, as values `[elements]`; of a plain type as it is."""
    if wire not in ROWWISE:
        return payload
    name = f"fbgemm::{ROWWISE[wire][0]}RowwiseQuantizedToFloat"
    return r.made(name, (payload,), (elements,))


def exchanged_rows(
    r: Recorder, run: Run, pooled: Tensor, dims: Sequence[int], group: str = GROUP
) -> Callable[[], Tensor]:
    """`[samples of all ranks, own dim]` -> `[own samples, dims of all]`, of all ranks, or in a
    `group` of its own among those of one place in each group of linked ranks; requested, and what
    waits for it."""
    ranks, wire = len(dims), run.workload.implementation.exchange_precision
    rank, nodes = (run.rank, None) if group == GROUP else (run.rank // run.linked, run.groups)
    sizes = [run.batch * dim for dim in dims]
    on_wire = [wire_elements(size, wire) for size in sizes]
    samples, own_dim = pooled.shape
    back_sizes = [wire_elements(count * own_dim, wire) for count in shares(samples, ranks)]
    own, theirs = back_sizes, on_wire
    r.begin("All2All_Pooled_Req", pooled)
    flat = encode_wire(r, r.aten_view(pooled, (pooled.elements,)), wire)
    sent, received = r.like(flat), r.tensor((sum(on_wire),), flat.dtype)
    r.copy(sent, flat)
    use = adapter_use(run) if group == GROUP else None
    arrived = received
    if use is not None:  # what others have from a cache is not sent
        share = use.answered_fracs(run)
        dims_of = answered_lookups(run, use)  # added up and into what comes from the others
        if dims_of["lookups"] >= 1:
            about = dims_of | {"probes": 1.0}
            record_row_op(r, "nic_lookup", (), received, stream=NIC, dims=about)
        far = [is_across_network(run, each) for each in range(ranks)]
        own = [round(own[at] * share[rank]) if far[at] else own[at] for at in range(ranks)]
        theirs = [round(on_wire[at] * share[at]) if far[at] else on_wire[at] for at in range(ranks)]
        sent, arrived = r.view(sent, (sum(own),), (1,)), r.view(received, (sum(theirs),), (1,))
    r.all_to_all_call(sent, arrived, own, theirs, nodes=nodes, group=group)
    r.end()

    def rows() -> Tensor:
        pieces = _split(r, decode_wire(r, received, sum(sizes), wire), sizes)
        each = zip(pieces, dims, strict=True)
        parts = [r.aten_view(piece, (run.batch, dim)) for piece, dim in each if dim]
        return r.cast(r.cat(parts, 1, tracked=False), "fp32")

    def send(gradient: Tensor) -> Tensor:
        """The gradients of each rank's tables start on their way back to it."""
        parts = [part for part in _split(r, gradient, dims, 1) if part.shape[1]]
        back = r.cat([r.reshape(part, (part.elements,)) for part in parts], 0)
        back = encode_wire(r, back, wire)
        returned = r.tensor((sum(back_sizes),), back.dtype)
        r.all_to_all_call(back, returned, on_wire, back_sizes, nodes=nodes, group=group)
        return returned

    return _requested(r, "All2All_Pooled", pooled, rows, ranks, wire, send)


def _requested(
    r: Recorder,
    name: str,
    pooled: Tensor,
    rows: Callable[[], Tensor],
    ranks: int,
    wire: str,
    send: Callable[[Tensor], Tensor],
) -> Callable[[], Tensor]:
    """What waits for `rows`, which are made of `pooled` by a request: the wait's node sends
    gradients, the request's waits for what comes back, and divides by the number of ranks."""
    returned: list[Tensor] = []

    def started(gradient: Tensor) -> list[Tensor]:
        returned.append(send(gradient))
        return [r.tensor((1,))]

    def arrived(_: Tensor) -> list[Tensor]:
        came = decode_wire(r, returned.pop(), pooled.elements, wire)
        of_pooled = r.cast(came, pooled.dtype)
        if of_pooled.shape != pooled.shape:
            of_pooled = r.aten_view(of_pooled, pooled.shape)
        r.leaf("aten::div_", (of_pooled, ranks), of_pooled)
        return [of_pooled]

    token = r.track(f"{name}_ReqBackward", (pooled,), r.tensor((1,)), arrived)

    def wait() -> Tensor:
        r.begin(f"{name}_Wait", r.tensor((1,)))
        out = rows()
        r.end(out)
        return r.track(f"{name}_WaitBackward", (token,), out, started)

    return wait


def summed_rows(
    r: Recorder, run: Run, pooled: Tensor, ranks: int, group: str = GROUP
) -> Callable[[], Tensor]:
    """`[samples, dim]` on each rank -> sums of the own samples, requested, and what waits for them;
    backward is an all-gather."""
    wire = run.workload.implementation.exchange_precision
    r.begin("ReduceScatter_Req", pooled)
    sent = _in_range(r, pooled, wire)
    out = r.tensor((run.batch * run.ranks // ranks, pooled.shape[1]), wire)
    r.linked_collective("reduce_scatter", sent, out, ranks, group)
    r.end()

    def rows() -> Tensor:
        return r.to_dtype(out, "fp32") if out.dtype != "fp32" else r.aten_view(out, out.shape)

    def send(gradient: Tensor) -> Tensor:
        """The gradients of all ranks' samples start on their way to each."""
        sent = _in_range(r, gradient, wire)
        returned = r.tensor(pooled.shape, wire)
        r.linked_collective("all_gather", sent, returned, ranks, group)
        return returned

    return _requested(r, "ReduceScatter", pooled, rows, ranks, "fp32", send)


def _split(r: Recorder, x: Tensor, sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    shapes = [(*x.shape[:dim], size, *x.shape[dim + 1 :]) for size in sizes]
    parts = [r.view(x, shape, x.strides) for shape in shapes]
    r.leaf("aten::split_with_sizes", (x, tuple(sizes), dim), tuple(parts))
    return parts


def features_of(r: Recorder, pooled: Tensor, sizes: Sequence[int]) -> Tensor:
    """A keyed tensor taken apart by feature and put together in the model's order."""
    parts = _split(r, pooled, sizes, 1)
    r.track("SplitWithSizesBackward0", (pooled,), tuple(parts), lambda g: [r.cat(g, 1)])
    return r.cat(parts, 1)


def joined_columns(r: Recorder, pooled: Tensor, parts: int) -> Tensor:
    """Pooled rows whose `parts` came rank by rank, the columns of each table side by side."""
    name = "fbgemm::permute_pooled_embs_split"
    order = [r.tensor((parts + more,), "int64") for more in (1, 0, 1, 0)]
    out = r.made(name, (pooled, *order), pooled.shape)
    there_and_back = "torch::autograd::CppNode<PermutePooledEmbsFunctionSplit>"
    return r.track(there_and_back, (pooled,), out, lambda g: [r.made_like(g, name, g, *order)])


def sum_parts(r: Recorder, x: Tensor, tables: int) -> Tensor:
    """Of x `[batch, parts of tables, dim]` the sums per table, `[batch, tables, dim]`."""
    out = r.tensor((x.shape[0], tables, x.shape[2]), x.dtype)
    table_of = r.tensor((x.shape[1],), "int64")
    r.leaf("aten::index_add", (out, 1, table_of, x, 1), out)

    name = "aten::index_select"
    return r.track("IndexAddBackward0", (x,), out, lambda g: [r.made_like(x, name, g, 1, table_of)])
