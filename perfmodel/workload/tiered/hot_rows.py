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
from functools import lru_cache, partial

import numpy as np

from perfmodel.embedding import MicroBatch, mixed_hot_frac, zipf_alpha_of
from perfmodel.embedding.cache import split_hot
from perfmodel.lowering.arguments import HOST
from perfmodel.ops.graph import Tensor
from perfmodel.ops.lookups import Lookups
from perfmodel.ops.vocabulary.embedding import ACCELERATOR
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.embedding_bag import batched, look_up, update
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.jagged import Jagged, offsets, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import FP32_BYTES, Table, row_bytes, state_bytes
from perfmodel.workload.tiered.device_kernels import DeviceTables
from perfmodel.workload.tiered.source import MIN_ROWS, Group


@dataclass(frozen=True)
class HotUse:
    """Of a micro-batch: the `lookups` into hot rows and those that were fetched beside them, as one
    operator's; distinct hot rows, and other rows, which come from where all rows are."""

    lookups: Lookups
    distinct_hot: int
    fetched: int


@lru_cache(maxsize=256)
def hot_use(group: Group) -> HotUse:
    """Of the samples of `group.run.micro_batch`; samples that are not popular have the hot lookups
    that the popular ones of the pipeline leave."""
    pipeline, is_popular = group.run.pipeline, group.run.micro_batch.popular
    pairs = list(zip(group.tables, group.hot_rows, strict=True))
    hot_frac = np.ones(len(pairs))
    if not is_popular:
        popular = sum(each.samples_frac for each in pipeline.micro_batches if each.popular)
        share = np.array([float(table.popularity().covered_frac(rows)) for table, rows in pairs])
        hot_frac = mixed_hot_frac(share, pipeline.popular_frac or popular)
    distinct = [
        _distinct(table, rows, group.samples * table.pooling, frac)
        for (table, rows), frac in zip(pairs, hot_frac.tolist(), strict=True)
    ]
    hot, other = (sum(each) for each in zip(*distinct, strict=True))
    held = tuple(
        max(rows + round(beside), 1)
        for rows, (_, beside) in zip(group.hot_rows, distinct, strict=True)
    )
    counts = tuple(table.lookups(group.samples) for table in group.tables)
    touched = tuple(
        min(max(sum(each), 1.0), rows, count)
        for each, rows, count in zip(distinct, held, counts, strict=True)
    )
    lookups = Lookups(
        hash_size=held,
        dim=tuple(table.dim for table in group.tables),
        batch=(group.samples,) * len(group.tables),
        pooling=tuple(table.pooling for table in group.tables),
        unique_rows=touched,
        alpha=tuple(zipf_alpha_of(held, counts, touched).tolist()),
    )
    return HotUse(lookups, max(round(hot), 1), 0 if other < MIN_ROWS else max(round(other), 1))


def _distinct(table: Table, rows: int, lookups: float, hot_frac: float) -> tuple[float, float]:
    """Distinct rows among so many lookups, of `rows` hot ones and of the others."""
    hot, other = split_hot(table.popularity(), rows)
    return (
        float(hot.distinct_rows(lookups * hot_frac)) if hot else 0.0,
        float(other.distinct_rows(lookups * (1.0 - hot_frac))) if other else 0.0,
    )


@dataclass(frozen=True)
class HotRows(DeviceTables):
    places: Tensor  # all rows that the device holds, `[rows, dim]`
    host_rows: Tensor
    arrived: list[Tensor] = field(default_factory=list)
    """Rows of micro-batches that were fetched and not yet looked up."""
    sums: list[Tensor] = field(default_factory=list)
    """Gradients of hot rows that micro-batches left."""

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Other rows; with whole batches of one kind, a step of popular samples moves its share of
        what the steps of the others need, and these find it there."""
        pipeline, about = group.run.pipeline, partial(_dims, group)
        to_device = partial(record_row_op, r, "rows_to_device", stream=ACCELERATOR)
        popular, run = pipeline.popular_frac, group.run
        # Keys that are looked for among the hot rows, and bytes of two batches (one of each kind)
        # that wait to be whole.
        each = group.lookups / group.samples * FP32_BYTES
        each += run.workload.dense_features * FP32_BYTES
        parted = {"keys": float(group.lookups), "waiting_bytes": 2.0 * each * run.batch}
        if popular and run.micro_batch.popular:
            others = group.of_samples(replace(run, micro_batch=MicroBatch()))
            dims = about(hot_use(others).fetched * (1.0 - popular) / popular)
            beside = {name: each / popular for name, each in parted.items()}
            given, out = (self.host_rows,), r.tensor((1,), place=HOST)
            to_device(given, out, dims=dims | beside)
            if run.train:
                out = r.tensor((1,), place=HOST)
                record_row_op(r, "rows_to_host", given, out, stream=ACCELERATOR, dims=dims)
            return
        if count := hot_use(group).fetched:
            rows = r.tensor((count, self.places.shape[1]), self.places.dtype)
            self.arrived.append(rows)
            if not popular:
                asked, waits = (self.host_rows, keys.values), not pipeline.rows_beside
                to_device(asked, rows, dims=about(count) | parted, blocks=waits)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        use, dim, pipeline = hot_use(group), self.places.shape[1], group.run.pipeline
        slots = r.tensor((max(use.fetched, 1),), "int64")
        if use.fetched:
            r.leaf("aten::index_copy_", (self.places, 0, slots, self.arrived.pop(0)), self.places)
        tables = self.tables.described(use.lookups.to_attributes())
        starts = offsets(r, keys)
        with r.untracked():
            pooled = look_up(r, tables, keys.values, starts, group.samples)

        def backward(gradient: Tensor) -> Gradients:
            """Gradients summed per row; those of rows that were fetched go to the host."""
            update(r, tables, keys.values, starts, gradient)
            self.sums.append(r.tensor((use.distinct_hot, dim)))
            if not use.fetched:
                return [None]
            sums = r.tensor((use.distinct_hot + use.fetched, dim))
            own = r.made("aten::index_select", (sums, 0, slots), (use.fetched, dim))
            if not pipeline.popular_frac:
                given, to = (own, self.host_rows), self.host_rows
                dims, waits = _dims(group, use.fetched), not pipeline.writes_behind
                name = "rows_to_host"
                record_row_op(r, name, given, to, stream=ACCELERATOR, dims=dims, blocks=waits)
            return [None]

        about, weights = tables.attributes, (self.tables.weights,)
        return r.track("HotRowsBackward", weights, pooled, backward, about)

    def finish(self, r: Recorder, run: Run) -> None:
        dim, count = self.places.shape[1], sum(sums.shape[0] for sums in self.sums)
        rows, keys = r.tensor((count, dim)), r.tensor((count,), "int64")
        if run.ranks > 1:
            every = r.tensor((run.ranks * count, dim)), r.tensor((run.ranks * count,), "int64")
            for own, received in ((rows, every[0]), (keys, every[1])):
                r.linked_collective("all_gather", own, received, run.ranks)
            rows, keys = every
        for changed in (self.places, *self.tables.states):
            width = max(changed.elements // self.places.shape[0], 1)
            to = r.view(changed, (self.places.shape[0], width), (width, 1))
            r.leaf("aten::index_add_", (to, 0, keys, rows, 1), to)
        self.sums.clear()


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
    """Weights in host memory; hot rows, and room for as many as any micro-batch of the step
    fetches, in the device's."""
    run, uses = group.run, []
    for part in run.pipeline.micro_batches:
        samples = max(round(run.batch * part.samples_frac), 1)
        uses.append(hot_use(group.of_samples(replace(run, batch=samples, micro_batch=part))))
    about = max(uses, key=lambda use: use.fetched).lookups
    optimizer = run.workload.training.table_optimizer
    tables = batched(r, about, dtype=group.placed.dtype, optimizer=optimizer)
    dim = group.total_dim // len(group.tables)
    places = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    elements = sum(table.rows * table.dim for table in group.tables)
    return HotRows(tables, places, r.tensor((elements,), group.placed.dtype, place=HOST))
