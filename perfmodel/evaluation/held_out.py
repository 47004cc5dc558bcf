"""Errors of held-out steps: times, device work, host overheads, predicted from other steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.host import TYPES, Profile, Samples
from perfmodel.cost.host.measure import measure
from perfmodel.evaluation.results import Kind, Row, rows_of
from perfmodel.graph.recorded_steps import step_of_nodes
from perfmodel.graph.types import ExecutionGraph
from perfmodel.ops.families import families_of_kernels
from perfmodel.prediction.intervals import median_errors, unseen_step_interval
from perfmodel.prediction.leave_out import left_out_change_us, naive_predictions
from perfmodel.timeline.schedule import Timeline, measured, schedule
from perfmodel.timeline.steps import by_rank_and_step
from perfmodel.trace import Trace
from perfmodel.trace.columns import text_codes


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and collectives within steps; one element per operation."""

    node: Ints
    step: Ints
    rank: Ints
    """Index of its rank."""
    families: tuple[str, ...]
    family: Ints
    """Index into `families`."""
    duration_us: Floats
    groups: tuple[Ints, ...]
    """Per level, finest first: operations of one group stand in for one another."""

    @classmethod
    def of(cls, graph: ExecutionGraph) -> DeviceWork:
        """The device work of all ranks."""
        node = graph.device_span()[1]
        step = step_of_nodes(graph)[node]
        marks = graph.marks
        ranks, rank = np.unique(graph.nodes_.rank[node], return_inverse=True)
        row = np.searchsorted(np.unique(marks.rank), ranks)[rank]
        inside = step >= 0
        node, step, row = node[inside], step[inside], row[inside]
        labels = [graph.labels[n] for n in node]
        label = text_codes(labels)
        names = families_of_kernels(labels)
        families = tuple(sorted(set(names)))
        family = np.array([families.index(name) for name in names], np.int64)
        nth = _occurrence_in_step(graph.nodes_.start_us[node], row, step, label)
        groups = (_group_ids(row, label, nth), _group_ids(row, label), _group_ids(row, family))
        duration = graph.nodes_.duration_us[node]
        return cls(node, step, row, families, family, duration, groups)

    def predicted_us(self, step: int, teachers: Ints) -> Floats:
        """Per operation of `step`: the mean duration of its finest group among `teachers` (steps).

        The n-th launch of a kernel in its step learns from the n-th, else from all of its name,
        else from all of its family; nan where no teacher has any.
        """
        in_step, taught = self.step == step, np.isin(self.step, teachers)
        result = np.full(int(in_step.sum()), np.nan)
        for group in self.groups:
            size = int(group.max()) + 1 if len(group) else 0
            count = np.bincount(group[taught], minlength=size)
            total = np.bincount(group[taught], self.duration_us[taught], minlength=size)
            with np.errstate(invalid="ignore"):
                mean = (total / count)[group[in_step]]
            result = np.where(np.isnan(result), mean, result)
        mean_us = self.duration_us[taught].mean() if taught.any() else np.nan
        return np.where(np.isnan(result), mean_us, result)


def family_rows(trace: str, work: DeviceWork, steady: Ints, held: Ints) -> list[Row]:
    """Per kernel family: errors of its device time per rank and held step."""
    if not len(work.node) or len(steady) < 2:
        return []
    size = (len(held), int(work.rank.max()) + 1, len(work.families))
    predicted, true = np.zeros(size), np.zeros(size)
    for at, step in enumerate(held.tolist()):
        in_step = work.step == step
        cell = work.rank[in_step], work.family[in_step]
        np.add.at(predicted[at], cell, work.predicted_us(step, np.setdiff1d(steady, [step])))
        np.add.at(true[at], cell, work.duration_us[in_step])
    rows = []
    for at, family in enumerate(work.families):
        rows += rows_of(trace, Kind.FAMILY, family, predicted[..., at], true[..., at])
    return rows


def _group_ids(*columns: Ints) -> Ints:
    if not len(columns[0]):
        return columns[0]
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def _occurrence_in_step(start_us: Floats, rank: Ints, step: Ints, label: Ints) -> Ints:
    """Per operation: how many of its name came before it in its step."""
    result = np.zeros(len(start_us), np.int64)
    seen: dict[tuple[int, int, int], int] = {}
    for row in np.argsort(start_us, kind="stable").tolist():
        key = (int(rank[row]), int(step[row]), int(label[row]))
        result[row] = seen[key] = seen.get(key, -1) + 1
    return result


def overhead_rows(name: str, trace: Trace, steady: Ints, held: Ints) -> list[Row]:
    """Per overhead type: errors of its total per rank and held step.

    The step's own operators and launch calls are given; what each costs comes from the profile
    of the rank's other steps (its mean per type, operator and thread). Samples that waited count
    on neither side.
    """
    if len(steady) < 2:
        return []
    pairs = [
        _overhead_totals(measure(rank, links).without_waiting(), steady, held)
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    ]
    predicted, true = (np.concatenate(side) for side in zip(*pairs, strict=True))
    rows = []
    for code, kind in enumerate(TYPES):
        rows += rows_of(name, Kind.OVERHEAD, kind, predicted[:, code], true[:, code])
    return rows


def _overhead_totals(samples: Samples, steady: Ints, held: Ints) -> tuple[Floats, Floats]:
    """`[held step, type]`: predicted and measured totals of one rank."""
    warmup = np.setdiff1d(np.unique(samples.step), steady).tolist()
    taught = reduce(Samples.without_step, warmup, samples)
    predicted, true = (np.zeros((len(held), len(TYPES))) for _ in range(2))
    for at, step in enumerate(held.tolist()):
        of_step, others = samples.of_step(step), taught.without_step(step)
        if not len(of_step) or not len(others):
            continue
        true[at] = np.bincount(of_step.type, of_step.value_us, minlength=len(TYPES))
        profile = Profile.from_samples(others)
        known = np.isin(of_step.type, others.type)
        value = np.zeros(len(of_step))
        value[known] = profile.durations(
            [TYPES[code] for code in of_step.type[known]],
            [of_step.names[code] for code in of_step.op[known]],
            [of_step.threads[code] for code in of_step.thread[known]],
        )
        predicted[at] = np.bincount(of_step.type, value, minlength=len(TYPES))
    return predicted, true


MAX_HELD_OUT = 12
"""Steps that are held out at most, spread evenly over the trace: each costs a replay."""


def held_out_steps(steady: Ints) -> Ints:
    """The step indices to hold out in turn."""
    if len(steady) <= MAX_HELD_OUT:
        return steady
    chosen: Ints = steady[np.linspace(0, len(steady) - 1, MAX_HELD_OUT).round().astype(int)]
    return chosen


def held_out_step_us(graph: ExecutionGraph, work: DeviceWork, steady: Ints, held: Ints) -> Floats:
    """`[rank, held step]`: each predicted from the others, its host costs and device durations."""
    given_us = graph.nodes_.duration_us.copy()
    for index in held.tolist():
        others = np.setdiff1d(steady, [index])
        given_us[work.node[work.step == index]] = work.predicted_us(index, others)
    change_us = left_out_change_us(graph, graph.nodes_.duration_us, steady, given_us)
    return (by_rank_and_step(graph, schedule(graph).step_us) + change_us)[:, held]


def step_rows(
    trace: str, replayed: Timeline, left_out_us: Floats, steady: Ints, held: Ints
) -> list[Row]:
    """The rows of step times."""
    graph = replayed.graph
    truth = measured(graph)
    true = by_rank_and_step(graph, truth.step_us)[:, held]
    naive = naive_predictions(truth, steady)
    predicted = {
        Kind.STEP_REPLAY: by_rank_and_step(graph, replayed.step_us)[:, held],
        Kind.STEP_LEFT_OUT: left_out_us,
        Kind.NULL: naive.mean_us[:, held],
        Kind.NULL_GPU: naive.mean_gpu_us[:, held],
        Kind.NULL_LAST: naive.last_us[:, held],
    }
    return [row for kind, us in predicted.items() for row in rows_of(trace, kind, "step", us, true)]


def coverage_frac(replayed: Timeline, steady: Ints, held: Ints) -> float | None:
    """Share of the held steps within the interval that a replay of the others gives; None below 3
    steps."""
    if len(steady) < 3:
        return None
    graph = replayed.graph
    true, predicted = (
        by_rank_and_step(graph, measured(graph).step_us),
        by_rank_and_step(graph, replayed.step_us),
    )
    inside = []
    for rank_us, true_us in zip(predicted, true, strict=True):
        for step in held:
            others = rank_us[steady[steady != step]]
            low, high = unseen_step_interval(float(np.median(others)), median_errors(others))
            inside.append(low <= true_us[step] <= high)
    return round(float(np.mean(inside)), 4)
