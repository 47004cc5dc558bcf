"""Tables in host memory whose hot rows every device has as well; other rows come when needed.

Rows that are not hot are gathered in host memory and copied into places beside the hot ones, so
that one lookup reads both. Their gradients go back to the host, which applies them. Gradients of
hot rows are gathered from all ranks at the end of the step, and added to every copy. What it stands
for: the replicas of FAE and Hotline (Adnan et al. 2022 and 2024); that gradients travel as rows
with their keys is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.batched import Batched, batched, look_up, update
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.exchange import among_linked
from perfmodel.workload.parts.jagged import Jagged, offsets
from perfmodel.workload.run import Run
from perfmodel.workload.tiered.beside import HOST_MEMORY, beside, row_bytes, state_bytes
from perfmodel.workload.tiered.hbm import with_attributes
from perfmodel.workload.tiered.hot_use import HotUse, hot_use, largest_use, looked_up
from perfmodel.workload.tiered.source import TIERED, Group

HOST = "cpu"
LOOK_UP = "tier::hot_rows"
ARRIVING, LEAVING = {"stream": "rows_in"}, {"stream": "rows_out"}
"""Attributes of copies of rows that are fetched, and of their gradients."""


@dataclass
class HotRows:
    """See `source.Source`, `source.Shared`."""

    tables: Batched
    places: Tensor
    """All rows that the device holds, `[rows, dim]`."""
    host_rows: Tensor
    arrived: list[Tensor] = field(default_factory=list)
    """Rows of micro-batches that were fetched and not yet looked up."""
    sums: list[Tensor] = field(default_factory=list)
    """Gradients of hot rows that micro-batches left."""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.tables.weights,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        count = hot_use(group).fetched
        if not count:
            return
        pipeline = group.run.pipeline
        waits = pipeline is None or not pipeline.rows_beside
        gathered = r.tensor((count, self.places.shape[1]), self.places.dtype, place=HOST)
        dims = _dims(group, count)
        given = (self.host_rows, keys.values)
        beside(r, "host_gather", given, gathered, stream=HOST_MEMORY, dims=dims, blocks=waits)
        with r.with_attributes(ARRIVING):
            self.arrived.append(to_device(r, gathered, r.place, non_blocking=True))

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        use = hot_use(group)
        slots = r.tensor((max(use.fetched, 1),), "int64")
        if use.fetched:
            r.leaf("aten::index_copy_", (self.places, 0, slots, self.arrived.pop(0)), self.places)
        tables = with_attributes(self.tables, looked_up(group, use).to_attributes())
        starts = offsets(r, keys)
        tape, r.tape = r.tape, None
        pooled = look_up(r, tables, keys.values, starts, group.samples)
        r.tape = tape
        saved = (self, tables, keys.values, starts, slots, use, group)
        track(r, LOOK_UP, (self.tables.weights,), pooled, *saved)
        return pooled

    def finish(self, r: Recorder, run: Run) -> None:
        dim, count = self.places.shape[1], sum(sums.shape[0] for sums in self.sums)
        rows, keys = r.tensor((count, dim)), r.tensor((count,), "int64")
        if run.ranks > 1:
            every = r.tensor((run.ranks * count, dim)), r.tensor((run.ranks * count,), "int64")
            for own, received in ((rows, every[0]), (keys, every[1])):
                among_linked(r, "all_gather", own, received, run.ranks)
            rows, keys = every
        for changed in (self.places, *self.tables.states):
            width = max(changed.elements // self.places.shape[0], 1)
            to = r.view(changed, (self.places.shape[0], width), (width, 1))
            r.leaf("aten::index_add_", (to, 0, keys, rows, 1), to)
        self.sums.clear()


@rule(LOOK_UP, "HotRowsBackward")
def _backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients summed per row; those of rows that were fetched go to the host."""
    source, tables, values, starts, slots, use, group = node.saved
    update(r, tables, values, starts, gradients[0])
    r.now(tables.attributes)
    dim = source.places.shape[1]
    source.sums.append(r.tensor((use.distinct_hot, dim)))
    if use.fetched:
        _back(r, source, slots, use, group)
    return [None]


def _back(r: Recorder, source: HotRows, slots: Tensor, use: HotUse, group: Group) -> None:
    sums = r.tensor((use.distinct_hot + use.fetched, source.places.shape[1]))
    own = r.tensor((use.fetched, source.places.shape[1]))
    r.leaf("aten::index_select", (sums, 0, slots), own)
    pipeline = group.run.pipeline
    waits = pipeline is None or not pipeline.writes_behind
    with r.with_attributes(LEAVING):
        given = to_device(r, own, HOST, non_blocking=True)
    dims = _dims(group, use.fetched)
    rows = source.host_rows
    beside(r, "host_apply", (given, rows), rows, stream=HOST_MEMORY, dims=dims, blocks=waits)


def _dims(group: Group, rows: int) -> dict[str, float]:
    """Dims of an op on so many rows, one lookup each: means over the group's lookups."""
    counts = [table.lookups(group.samples) for table in group.tables]
    optimizer = group.run.workload.training.table_optimizer

    def mean(values: list[float]) -> float:
        return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)

    return {
        "lookups": rows,
        "unique_rows": rows,
        "row_bytes": mean([row_bytes(table, group.placed.dtype) for table in group.tables]),
        "state_bytes": mean([state_bytes(table, optimizer) for table in group.tables]),
        "bags": rows,
        "dim": group.total_dim / len(group.tables),
    }


@TIERED.register("host+hot")
def hot_rows(r: Recorder, group: Group) -> HotRows:
    """Weights in host memory; hot rows, and room for as many as a step fetches, in the device's."""
    about = looked_up(group, largest_use(group))
    tables = batched(
        r,
        about.hash_size,
        about.dim,
        dtype=group.placed.dtype,
        optimizer=group.run.workload.training.table_optimizer,
        is_modern=True,
        attributes=about.to_attributes(),
    )
    dim = group.total_dim // len(group.tables)
    places = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    elements = sum(table.rows * table.dim for table in group.tables)
    return HotRows(tables, places, r.tensor((elements,), group.placed.dtype, place=HOST))
