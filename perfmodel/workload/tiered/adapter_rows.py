"""Tables whose hot rows network adapters hold as well, and add up: lookups, sums, and updates.

The adapter of the rank that asks looks into its cache before keys go out; the device of the rank
that holds a table looks up the rest. In training the device updates all rows, and those that
adapters hold are written to them by an all-gather. Source: Guo et al. 2023 (ICS), as far as its
abstract goes; what it leaves open is assumed: write-through, partial sums added in the adapter,
which works row by row beside the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import row_bytes
from perfmodel.ops.graph import Tensor
from perfmodel.workload.adapter_caches import AdapterUse, adapter_use
from perfmodel.workload.collectives import linked_collective
from perfmodel.workload.eager.embedding_bag import look_up, update
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.jagged import NIC, Jagged, offsets, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import lookup_attributes, lookups
from perfmodel.workload.tiered.device_kernels import DeviceTables, table_batched
from perfmodel.workload.tiered.source import TIERED, Group


@dataclass(frozen=True)
class AdapterCachedTables(DeviceTables):
    use: AdapterUse

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        run, placement = group.run, group.run.placement
        assert placement is not None
        own = run.linked / run.ranks  # samples whose keys pass no adapter
        numbers = [shard.table for shard in run.plan.shards[run.rank]]
        mine = [n for n in numbers if placement.tables[n].caches == group.placed.caches]
        pooling, unique = [], []
        for table, number in zip(group.tables, mine, strict=True):
            use = self.use.tables[number]
            # The device looks up linked ranks' keys, and what others' adapters leave.
            pooling.append(table.pooling * (own + (1 - own) * use.asked_frac))
            others = min(use.asked_rows, table.rows)
            linked = table.unique_rows(run.batch * run.linked)
            unique.append(min(others + linked * (1 - others / table.rows), table.rows))
        whole = lookups(group.tables, group.samples)
        left = replace(whole, pooling=tuple(pooling), unique_rows=tuple(unique))
        rest = r.view(keys.values, (max(round(sum(left.lookups)), 1),), (1,))
        with r.untracked():
            tables = self.tables.described(left.to_attributes())
            out = look_up(r, tables, rest, offsets(r, keys), group.samples)
        weights = (self.tables.weights,)

        def learn(gradient: Tensor) -> Gradients:
            """All rows updated; those that adapters hold are written through by `finish_writes`."""
            every = self.tables.described(lookup_attributes(group.tables, group.samples))
            update(r, every, keys.values, offsets(r, keys), gradient)
            return [None]

        return r.track("NicLookUpBackward", weights, out, learn)


def finish_writes(r: Recorder, run: Run, sources: Sequence[object]) -> None:
    """Rows that other ranks' adapters hold, as the step's updates left them, to all adapters, an
    equal part from each rank."""
    use, placement = adapter_use(run), run.placement
    if use is None or placement is None:
        return
    weights = [each.tables.weights for each in sources if isinstance(each, AdapterCachedTables)]
    held = list(zip(use.tables, run.workload.tables, placement.tables, strict=True))
    rows = sum(each.held_rows for each, _, _ in held)
    if rows < 1:
        return
    elements = sum(each.held_rows * table.dim for each, table, _ in held)
    given = r.tensor((max(round(elements / run.ranks), 1),))
    if weights:
        own = r.tensor((max(round(rows / run.ranks), 1),), "int64")
        r.leaf("aten::index_select", (weights[0], 0, own), given)
    everyone = r.tensor((given.shape[0] * run.ranks,))
    linked_collective(r, "all_gather", given, everyone, run.ranks)
    sizes = (
        each.held_rows * float(row_bytes(placed.dtype, table.dim)) for each, table, placed in held
    )
    dims = {"lookups": rows, "row_bytes": sum(sizes) / rows}
    record_row_op(r, "nic_write", (everyone,), stream=NIC, dims=dims)


@TIERED.register("hbm")
def device_tables(r: Recorder, group: Group) -> DeviceTables:
    """Weights in device memory, whose hot rows adapters may hold as well."""
    if not group.cached_at:
        return DeviceTables(table_batched(r, group))
    use = adapter_use(group.run)
    if use is None or group.replicated:
        raise WorkloadError("a cache in an adapter: there is no other rank that looks rows up")
    return AdapterCachedTables(table_batched(r, group), use)
