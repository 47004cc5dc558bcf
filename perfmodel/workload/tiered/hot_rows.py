"""Tables in host memory whose hot rows every device has as well: what is read of both, and how.

Rows that are not hot are gathered in host memory and sent into places beside the hot ones, so
that one lookup reads both. Their gradients go back to the host, where they are applied. Both is an
accelerator's work, or the host's cores' where the node has none. On several nodes each has an equal
part of all rows, and gets the others over the network. Gradients of
hot rows are gathered from all ranks at the end of the step, and added to every copy. What it stands
for: the replicas of FAE and Hotline (Adnan et al. 2022 and 2024); that gradients travel as rows
with their keys is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from perfmodel.embedding import MicroBatch, Pipeline, mixed_hot_frac, zipf_alpha_of
from perfmodel.embedding.cache import split_hot
from perfmodel.ops.graph import Tensor
from perfmodel.ops.read.attributes import Lookups
from perfmodel.ops.vocabulary.tiers import ACCELERATOR
from perfmodel.workload.collectives import linked_collective
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.table_batched import Batched, batched, look_up, update
from perfmodel.workload.jagged import ITEM_BYTES, Jagged, offsets, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, row_bytes, state_bytes
from perfmodel.workload.tiered.source import Group

_LEAST = 0.5
"""Fewer rows than this are none."""


@dataclass(frozen=True)
class HotUse:
    """Of a micro-batch, per table: hot rows that there are, distinct ones among its lookups;
    distinct other rows."""

    rows: tuple[int, ...]
    hot: tuple[float, ...]
    other: tuple[float, ...]

    @property
    def distinct_hot(self) -> int:
        """Of all tables."""
        return max(round(sum(self.hot)), 1)

    @property
    def fetched(self) -> int:
        """Other rows, of all tables, which come from where all rows are."""
        total = sum(self.other)
        return 0 if total < _LEAST else max(round(total), 1)


def largest_use(group: Group) -> HotUse:
    """Of all micro-batches of the step, the one that fetches most."""
    run = group.run
    parts = (run.pipeline or Pipeline()).micro_batches
    largest = []
    for part in parts:
        samples = max(round(run.batch * part.samples_frac), 1)
        largest.append(hot_use(group.of_samples(replace(run, batch=samples, micro_batch=part))))
    return max(largest, key=lambda use: use.fetched)


def hot_use(group: Group) -> HotUse:
    """Of the samples of `group.run.micro_batch`; samples that are not popular have the hot lookups
    that the popular ones of the pipeline leave.

    Raises `WorkloadError` for more popular samples than the hot rows allow.
    """
    popular = 1.0
    if not group.run.micro_batch.popular:
        pipeline = group.run.pipeline or Pipeline()
        popular = sum(each.samples_frac for each in pipeline.micro_batches if each.popular)
        popular = pipeline.popular_frac or popular
    pairs = list(zip(group.tables, group.hot_rows, strict=True))
    share = np.array([float(table.popularity().covered_frac(rows)) for table, rows in pairs])
    is_popular = group.run.micro_batch.popular
    hot_frac = np.ones_like(share) if is_popular else mixed_hot_frac(share, popular)
    uses = [
        _distinct(table, rows, group.samples * table.pooling, frac)
        for (table, rows), frac in zip(pairs, hot_frac.tolist(), strict=True)
    ]
    hot, other = zip(*uses, strict=True)
    return HotUse(group.hot_rows, hot, other)


@lru_cache(maxsize=1 << 14)
def _distinct(table: Table, rows: int, lookups: float, hot_frac: float) -> tuple[float, float]:
    hot, other = split_hot(table.popularity(), rows)
    return (
        float(hot.distinct_rows(lookups * hot_frac)) if hot else 0.0,
        float(other.distinct_rows(lookups * (1.0 - hot_frac))) if other else 0.0,
    )


def hot_lookups(group: Group, use: HotUse) -> Lookups:
    """The lookups into hot rows and those that were fetched beside them, as one operator's."""
    tables = group.tables
    pairs = list(zip(use.hot, use.other, strict=True))
    room = zip(use.rows, use.other, strict=True)
    held = tuple(max(rows + round(other), 1) for rows, other in room)
    counts = tuple(table.lookups(group.samples) for table in tables)
    distinct = tuple(
        min(max(hot + other, 1.0), rows, count)
        for (hot, other), rows, count in zip(pairs, held, counts, strict=True)
    )
    return Lookups(
        hash_size=held,
        dim=tuple(table.dim for table in tables),
        batch=(group.samples,) * len(tables),
        pooling=tuple(table.pooling for table in tables),
        unique_rows=distinct,
        alpha=_alphas(held, counts, distinct),
    )


@lru_cache(maxsize=64)
def _alphas(
    rows: tuple[int, ...], lookups: tuple[float, ...], distinct: tuple[float, ...]
) -> tuple[float, ...]:
    """Exponents of the tables' lookups; what keeps the rows and what reads them ask the same."""
    return tuple(zipf_alpha_of(rows, lookups, distinct).tolist())


HOST = "cpu"


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
        pipeline = group.run.pipeline or Pipeline()
        if pipeline.popular_frac and group.run.micro_batch.popular:
            self._for_others(r, group, pipeline)
            return
        count = hot_use(group).fetched
        if not count:
            return
        self.arrived.append(r.tensor((count, self.places.shape[1]), self.places.dtype))
        if pipeline.popular_frac:
            return
        given, rows = (self.host_rows, keys.values), self.arrived[-1]
        dims = _dims(group, count) | _parted(group)
        waits = not pipeline.rows_beside
        record_row_op(r, "rows_to_device", given, rows, stream=ACCELERATOR, dims=dims, blocks=waits)

    def _for_others(self, r: Recorder, group: Group, pipeline: Pipeline) -> None:
        """What a step of popular samples does for the steps of the others: its share of a batch's
        rows, those that come and those that go back."""
        others = replace(group.run, micro_batch=MicroBatch())
        count = hot_use(group.of_samples(others)).fetched
        per_step = (1.0 - pipeline.popular_frac) / pipeline.popular_frac
        dims = _dims(group, count * per_step)
        beside = {name: each / pipeline.popular_frac for name, each in _parted(group).items()}
        moved = {"rows_to_device": beside} | ({"rows_to_host": {}} if group.run.train else {})
        for op, more in moved.items():
            out = r.tensor((1,), place=HOST)
            record_row_op(r, op, (self.host_rows,), out, stream=ACCELERATOR, dims=dims | more)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        use = hot_use(group)
        slots = r.tensor((max(use.fetched, 1),), "int64")
        if use.fetched:
            r.leaf("aten::index_copy_", (self.places, 0, slots, self.arrived.pop(0)), self.places)
        tables = self.tables.described(hot_lookups(group, use).to_attributes())
        starts = offsets(r, keys)
        with r.untracked():
            pooled = look_up(r, tables, keys.values, starts, group.samples)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients summed per row; those of rows that were fetched go to the host."""
            update(r, tables, keys.values, starts, gradient)
            r.now(tables.attributes)
            self.sums.append(r.tensor((use.distinct_hot, self.places.shape[1])))
            if use.fetched:
                self._return_gradients(r, slots, use, group)
            return [None]

        return r.track("HotRowsBackward", (self.tables.weights,), pooled, backward)

    def _return_gradients(self, r: Recorder, slots: Tensor, use: HotUse, group: Group) -> None:
        dim, pipeline = self.places.shape[1], group.run.pipeline or Pipeline()
        sums = r.tensor((use.distinct_hot + use.fetched, dim))
        own = r.made("aten::index_select", (sums, 0, slots), (use.fetched, dim))
        if pipeline.popular_frac:
            return
        given, dims = (own, self.host_rows), _dims(group, use.fetched)
        waits, to = not pipeline.writes_behind, self.host_rows
        record_row_op(r, "rows_to_host", given, to, stream=ACCELERATOR, dims=dims, blocks=waits)

    def finish(self, r: Recorder, run: Run) -> None:
        dim, count = self.places.shape[1], sum(sums.shape[0] for sums in self.sums)
        rows, keys = r.tensor((count, dim)), r.tensor((count,), "int64")
        if run.ranks > 1:
            every = r.tensor((run.ranks * count, dim)), r.tensor((run.ranks * count,), "int64")
            for own, received in ((rows, every[0]), (keys, every[1])):
                linked_collective(r, "all_gather", own, received, run.ranks)
            rows, keys = every
        for changed in (self.places, *self.tables.states):
            width = max(changed.elements // self.places.shape[0], 1)
            to = r.view(changed, (self.places.shape[0], width), (width, 1))
            r.leaf("aten::index_add_", (to, 0, keys, rows, 1), to)
        self.sums.clear()


def _parted(group: Group) -> dict[str, float]:
    """Of the rank's samples, keys that are looked for among the hot rows, and bytes of two batches
    (one of each kind) that wait to be whole."""
    run = group.run
    each = group.lookups / group.samples * ITEM_BYTES
    each += run.workload.model.dense_features * ITEM_BYTES
    return {"keys": float(group.lookups), "waiting_bytes": 2.0 * each * run.batch}


def _dims(group: Group, rows: float) -> dict[str, float]:
    """Dims of an op on so many rows, one lookup each: means over the group's lookups."""
    optimizer = group.run.workload.training.table_optimizer
    return {
        "lookups": rows,
        "unique_rows": rows,
        "row_bytes": group.mean(row_bytes(table, group.placed.dtype) for table in group.tables),
        "state_bytes": group.mean(state_bytes(table, optimizer) for table in group.tables),
    }


def hot_rows(r: Recorder, group: Group) -> HotRows:
    """Weights in host memory; hot rows, and room for as many as a step fetches, in the device's."""
    about = hot_lookups(group, largest_use(group))
    optimizer = group.run.workload.training.table_optimizer
    tables = batched(r, about, dtype=group.placed.dtype, optimizer=optimizer)
    dim = group.total_dim // len(group.tables)
    places = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    elements = sum(table.rows * table.dim for table in group.tables)
    return HotRows(tables, places, r.tensor((elements,), group.placed.dtype, place=HOST))
