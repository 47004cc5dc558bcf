"""Tables whose hot rows network adapters hold as well, and add up: lookups, sums, and updates.

The adapter of the rank that asks looks into its remote cache before keys go out; that of the rank
that holds a table looks into its local cache as they come, and its device looks up the rest. In
training the device updates all rows, and writes those that adapters hold to them: its own over the
bus, the others' by an all-gather. Source: Guo et al. 2023 (ICS), as far as its abstract goes; what
it leaves open is assumed: write-through, partial sums added in the adapter, which works row by row
beside the device.

Where adapters hold rows, a rank sends another only what that one's cache has not found: one vector
per bag of which it looked up a row, instead of a sum for every bag. The adapter that receives adds
vectors and its own rows up, and hands the device one per bag. Gradients of all bags go back to all
ranks, as without adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import TIERS
from perfmodel.cost.tiers.nic import StepChange, adapter, adapters_per_rank
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.ops.dtypes import row_bytes
from perfmodel.ops.graph import Tensor
from perfmodel.ops.read.attributes import Lookups
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.tiers import NIC as NIC_FAMILY
from perfmodel.workload.adapter_caches import REMOTE, AdapterUse, adapter_use, is_across_network
from perfmodel.workload.collectives import all_to_all_call, linked_collective
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.table_batched import look_up, update
from perfmodel.workload.eager.tensors import view
from perfmodel.workload.jagged import (
    ITEM_BYTES,
    KEY_BYTES,
    NIC,
    Jagged,
    add_remote_rows,
    answered_lookups,
    offsets,
    record_row_op,
)
from perfmodel.workload.pooled_exchange import (
    decode_wire,
    encode_wire,
    vector_bytes,
    wire_dtype,
    wire_elements,
)
from perfmodel.workload.step import Run
from perfmodel.workload.tables import lookup_attributes, lookups
from perfmodel.workload.tiered.device_kernels import DeviceTables, table_batched
from perfmodel.workload.tiered.source import TIERED, Group


@dataclass(frozen=True)
class AdapterCachedTables(DeviceTables):
    """See `source.Source`."""

    use: AdapterUse

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        left = _device_lookups(self.use, group)
        asked = _asked(group)
        hits = asked - sum(left.lookups)
        rest = r.view(keys.values, (max(round(sum(left.lookups)), 1),), (1,))
        with r.untracked():
            tables = self.tables.described(left.to_attributes())
            out = look_up(r, tables, rest, offsets(r, keys), group.samples)
        if hits >= 1:
            probes = asked * (1 - _linked_frac(group))
            dims = {"probes": max(probes, 1.0), "lookups": hits, "row_bytes": _row_bytes(group)}
            dims |= {"bags": min(hits, group.bags), "dim": group.total_dim / len(group.tables)}
            dims["messages"] = self.use.messages(group.run, probes * KEY_BYTES)
            record_row_op(r, "nic_lookup", (keys.values,), out, stream=NIC, dims=dims)
        weights = (self.tables.weights,)
        return r.track("NicLookUpBackward", weights, out, lambda g: self.learn(r, group, keys, g))

    def learn(self, r: Recorder, group: Group, keys: Jagged, gradient: Tensor) -> Gradients:
        """All rows updated; those that adapters hold written through."""
        tables = self.tables.described(lookup_attributes(group.tables, group.samples))
        update(r, tables, keys.values, offsets(r, keys), gradient)
        dim = group.total_dim / len(group.tables)
        own = sum(self.use.tables[number].local_rows for number, _ in _shards(group))
        if own >= 1:
            given = (tables.weights, 0, keys.values)
            rows = r.made("aten::index_select", given, (round(own * dim),))
            _write(r, rows, own, _row_bytes(group), bus=True)
        if _is_remote(group.run, group.placed.caches) and _is_everywhere(group.run):
            _write_through(r, group.run, (tables.weights,))
        return [None]


def finish_writes(r: Recorder, run: Run, sources: Sequence[object]) -> None:
    """Rows for other ranks' adapters, at the end of a step in which not every rank has some to
    send behind its own updates: those without meet the others here."""
    if run.placement is not None and not _is_everywhere(run):
        held = [each.tables.weights for each in sources if isinstance(each, AdapterCachedTables)]
        _write_through(r, run, held)


def _is_everywhere(run: Run) -> bool:
    """Whether each rank has one group of tables with rows in other ranks' adapters."""
    assert run.placement is not None
    caches = [table.caches for table in run.placement.tables]
    of_rank = ({caches[each.table] for each in shards} for shards in run.plan.shards)
    return all(sum(_is_remote(run, each) for each in own) == 1 for own in of_rank)


def _is_remote(run: Run, caches: tuple[str, ...]) -> bool:
    assert run.placement is not None
    return any(run.placement.cache(name).at == REMOTE for name in caches)


def _write_through(r: Recorder, run: Run, weights: Sequence[Tensor]) -> None:
    """Rows that other ranks' adapters hold, as updates left them, to all adapters, an equal part
    from each rank; `weights` have the own ones."""
    use, placement = adapter_use(run), run.placement
    if use is None or placement is None:
        return
    pairs = list(zip(use.tables, run.workload.tables, strict=True))
    rows = sum(each.remote_rows for each, _ in pairs)
    elements = sum(each.remote_rows * table.dim for each, table in pairs)
    if rows < 1:
        return
    given = r.tensor((max(round(elements / run.ranks), 1),))
    if weights:
        own = r.tensor((max(round(rows / run.ranks), 1),), "int64")
        r.leaf("aten::index_select", (weights[0], 0, own), given)
    everyone = r.tensor((given.shape[0] * run.ranks,))
    linked_collective(r, "all_gather", given, everyone, run.ranks)
    total = sum(
        each.remote_rows * float(row_bytes(placed.dtype, table.dim))
        for (each, table), placed in zip(pairs, placement.tables, strict=True)
    )
    _write(r, everyone, rows, total / rows, bus=False)


def _write(r: Recorder, given: Tensor, rows: float, size: float, *, bus: bool) -> None:
    dims = {"lookups": rows, "row_bytes": size, "fetched_bytes": rows * size * bus}
    record_row_op(r, "nic_write", (given,), stream=NIC, dims=dims)


def _shards(group: Group) -> list[tuple[int, int]]:
    """Numbers of the group's tables, and into how many parts they are cut, in its order."""
    run = group.run
    assert run.placement is not None
    own = run.plan.shards[run.rank]
    names = group.placed.caches
    return [(s.table, s.parts) for s in own if run.placement.tables[s.table].caches == names]


def _linked_frac(group: Group) -> float:
    """Share of all samples whose ranks links join to this one: their keys pass no adapter."""
    return group.run.linked / group.run.ranks


def _device_lookups(use: AdapterUse, group: Group) -> Lookups:
    """What the device looks up of the group's tables: own samples' keys, and what others leave."""
    run, own = group.run, _linked_frac(group)
    whole = lookups(group.tables, group.samples)
    pooling, unique = [], []
    for table, (number, _) in zip(group.tables, _shards(group), strict=True):
        table_use = use.tables[number]
        pooling.append(table.pooling * (own + (1 - own) * table_use.left_frac))
        mine = table.unique_rows(run.batch * run.linked)
        others = min(table_use.left_rows, table.rows)
        unique.append(min(others + mine * (1 - others / table.rows), table.rows))
    return replace(whole, pooling=tuple(pooling), unique_rows=tuple(unique))


def _asked(group: Group) -> float:
    """Of all ranks' samples, what of the group's tables comes to this rank."""
    run, own = group.run, _linked_frac(group)
    use = adapter_use(run)
    assert use is not None
    return sum(
        table.lookups(group.samples) * (own + (1 - own) * use.tables[number].asked_frac)
        for table, (number, _) in zip(group.tables, _shards(group), strict=True)
    )


def _row_bytes(group: Group) -> float:
    """Mean over the group's lookups."""
    return group.mean(float(row_bytes(group.placed.dtype, table.dim)) for table in group.tables)


@TIERED.register("hbm")
def device_tables(r: Recorder, group: Group) -> DeviceTables:
    """Weights in device memory, whose hot rows adapters may hold as well."""
    if not group.cached_at:
        return DeviceTables(table_batched(r, group))
    use = adapter_use(group.run)
    if use is None or group.replicated:
        raise WorkloadError("a cache in an adapter: there is no other rank that looks rows up")
    return AdapterCachedTables(table_batched(r, group), use)


def sum_in_adapters(r: Recorder, run: Run, pooled: Tensor) -> Tensor:
    """Sums of the own rows for all samples `[global batch, dim]` -> those of all rows for the own
    samples, `[batch, dim]`. The adapter adds up vectors while others still arrive."""
    use = adapter_use(run)
    assert use is not None
    wire = run.workload.implementation.exchange_precision
    share = sent_frac(run, use)
    each = pooled.elements // run.ranks
    sizes = [
        wire_elements(round(each * share) if is_across_network(run, rank) else each, wire)
        for rank in range(run.ranks)
    ]
    with r.untracked():
        flat = encode_wire(r, view(r, pooled, (pooled.elements,)), wire)
    received = r.tensor((sum(sizes),), wire_dtype(wire))
    dim = run.workload.tables[run.plan.shards[run.rank][0].table].dim
    out = r.tensor((run.batch, pooled.shape[1]))
    vectors = received.elements / dim
    add_remote_rows(r, run, received)
    adding = {
        "probes": 1.0,
        "lookups": vectors,
        "row_bytes": dim * ITEM_BYTES,
        "bags": vectors,
        "dim": dim,
        "messages": use.messages(run, sum(sizes) * ITEM_BYTES),
        "delivered_bytes": out.elements * ITEM_BYTES * use.bus_crossings,
    }
    record_row_op(r, "nic_lookup", (), received, stream=NIC, dims=adding)
    sent = r.view(flat, (sum(sizes),), (1,))
    all_to_all_call(r, sent, received, sizes, sizes)
    values = decode_wire(r, received, received.elements, wire)
    record_row_op(r, "nic_lookup", (values,), out, stream=NIC, dims={"probes": 1.0})
    return out


def sent_frac(run: Run, use: AdapterUse) -> float:
    """Of the bags of another rank's samples, those of which this rank looks up a row for it."""
    shards = run.plan.shards[run.rank]
    dims = [shard.of(run.workload.tables).dim for shard in shards]
    fracs = []
    for shard in shards:
        pooling = run.workload.tables[shard.table].pooling
        missed = use.tables[shard.table].asked_frac / shard.parts
        fracs.append(-np.expm1(pooling * np.log1p(-min(missed, 1 - 1e-12))))
    return float(np.average(fracs, weights=dims))


_ENGINE = coefficients("tiers.engine")


def worth_asking(run: Run, machine: Cluster) -> list[bool]:
    """Per table whether an adapter reads and adds up the rows of one bag, and brings their sum over
    the bus to the device, sooner than the sum comes over the wire."""
    assert run.placement is not None
    nic, share = adapter(machine), adapters_per_rank(machine)
    assert nic.memory_gb_per_s is not None
    reading, wire = _ENGINE.memory_frac * nic.memory_gb_per_s * share, nic.gb_per_s * share
    bus = _ENGINE.bus_frac * (nic.pcie_gb_per_s or machine.node.device.host_gb_per_s)
    precision = run.workload.implementation.exchange_precision
    worth, burst = [], _ENGINE.burst_bytes
    for table, where in zip(run.workload.tables, run.placement.tables, strict=True):
        size = float(row_bytes(where.dtype, table.dim))
        parts = len(where.ranks) if where.sharding == "row_wise" else 1
        read = max(table.pooling / parts, 1.0) * np.ceil(size / burst) * burst
        vector = vector_bytes(table.dim, precision)
        worth.append(bool(max(read / reading, vector / bus) < vector / wire))
    return worth


def step_change(run: Run, machine: Cluster) -> StepChange:
    """What the adapters of `machine`, which hold rows, change in a step of the rank of `run`."""
    use = adapter_use(run)
    assert use is not None
    assert run.placement is not None
    tables, ranks = run.workload.tables, run.ranks
    software = run.workload.implementation
    wire = adapter(machine).gb_per_s * adapters_per_rank(machine) * 1e3
    apart = [rank for rank in range(ranks) if is_across_network(run, rank)]
    shards = [(shard, shard.of(tables)) for rank in apart for shard in run.plan.shards[rank]]
    in_rows = any(each.sharding == "row_wise" and each.caches for each in run.placement.tables)
    dim = float(np.mean([table.dim for table in tables]))
    size, vector = dim * ITEM_BYTES, vector_bytes(dim, software.exchange_precision)
    keys = [
        sum(table.lookups(run.batch) for _, table in shards),
        sum(use.sent_lookups(run)[rank] for rank in apart),
    ]
    bags = [float(run.batch * len(shards))] * 2
    if in_rows:
        bags[0] /= run.linked  # sums are added among linked ranks before they leave
        bags[1] *= sent_frac(run, use)
    elif shards:
        bags[1] *= float(np.mean([use.tables[shard.table].answered_frac for shard, _ in shards]))
    key_bytes = 4.0 if software.key_dtype == "int32" else 8.0
    load = answered_lookups(run, use)
    ops = [
        {"op": "nic_lookup", **{name: load[name] for name in ("probes", "messages")}},
        {"op": "nic_lookup", **load, "probes": 1.0, "messages": 0.0},
    ]
    if in_rows:
        adding = {"probes": 1.0, "lookups": bags[1], "bags": bags[1], "dim": dim, "row_bytes": size}
        out_bytes = run.batch * sum(table.dim for table in tables) * ITEM_BYTES
        delivered = {"delivered_bytes": out_bytes * use.bus_crossings}
        delivered["messages"] = use.messages(run, bags[1] * vector)
        ops.append({"op": "nic_lookup", **adding, **delivered})
    written = sum(use.tables[shard.table].remote_rows / shard.parts for shard in run.plan.shards[0])
    writes = run.train and written > 0
    if writes:
        ops.append({"op": "nic_write", "lookups": written * ranks, "row_bytes": size})
    taken = TIERS[NIC_FAMILY].estimate(Rows.of(ops), machine).duration_us.tolist()
    if load["lookups"] < 1:
        taken[:2] = 0.0, 0.0
    return StepChange(
        wire_before_us=(keys[0] * key_bytes + bags[0] * vector) / wire,
        wire_after_us=(keys[1] * key_bytes + bags[1] * vector) / wire,
        probe_us=taken[0],
        read_us=sum(taken[1 : len(taken) - writes]),
        write_us=(taken[-1] + written * size * len(apart) / wire) if writes else 0.0,
        samples=run.batch,
        ranks=ranks,
        vector_bytes=vector,
        in_rows=in_rows,
        train=run.train,
    )
