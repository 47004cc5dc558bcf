"""From a schedule to a result: medians, families, the critical path, intervals, steps left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats, Ints, median
from perfmodel.ops.families import families_of_kernels
from perfmodel.prediction.breakdown.waiting import Unexplained, rank_waiting, slowest_of
from perfmodel.prediction.intervals import median_errors, unseen_errors, unseen_step_interval
from perfmodel.prediction.types import (
    DEVICE_FIGURES,
    DEVICE_WORK,
    MODEL,
    PathPiece,
    RankPrediction,
    Result,
    StepPrediction,
)
from perfmodel.prediction.what_if import HOST_CAUSES
from perfmodel.timeline.critical_path import (
    Accounting,
    DeviceWork,
    PathWalker,
    account,
    account_of,
    critical_path,
)
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, Scope
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import DeviceLags, Periods, device_lag_us
from perfmodel.timeline.schedule import (
    StepRole,
    Timeline,
    by_rank_and_step,
    measured,
    ranks_of,
    steady_among,
    step_bounds,
    step_roles,
)
from perfmodel.trace.columns import NONE


def summarise(
    timeline: Timeline,
    *,
    hardware: str,
    mode: str,
    lags: DeviceLags | None = None,
    left_out_us: Floats | None = None,
    compare: bool = True,
    rank: int | None = None,
    kinds_of_work: Callable[[int], KindsOfWork] | None = None,
) -> Result:
    """What a schedule says of its steps, with `lags` of steps that follow one another.

    `left_out_us` (`[rank, step]`) is by how much steps change that are predicted from the others.
    With `compare` the result has what was measured, too. `rank` stands for the job, by default the
    slowest; `kinds_of_work` are those of a rank where more is known than what kernels are called.
    """
    graph, walker = timeline.graph, PathWalker(timeline)
    truth = measured(graph)
    roles = step_roles(truth)
    steady = steady_among(roles)
    step_us = by_rank_and_step(graph, timeline.step_us)
    period_us = step_us[:, steady] if lags is None else lags.period_us
    follow = lags is not None and bool(lags.periods.repeated)
    if left_out_us is not None:
        change_us = np.where(np.isnan(left_out_us), 0.0, left_out_us)
        step_us, period_us = step_us + change_us, period_us + change_us[:, steady]
    of_step = step_of_nodes(graph) if follow else None
    known = truth if compare else None
    ranks = [
        _rank(timeline, walker, known, mode, number, roles, step_us[i], period_us[i], of_step)
        for i, number in enumerate(ranks_of(graph))
    ]
    if left_out_us is not None:
        null_us = null_mean_us(truth, steady) if compare else np.full(step_us.shape, np.nan)
        ranks = [_left_out(timeline, each, i, steady, null_us[i]) for i, each in enumerate(ranks)]
    meets = rank_waiting(timeline, steady)
    if meets is not None:
        ranks = [replace(each, **meets.of_rank(each.rank)) for each in ranks]
    about = [own.step_us for own in ranks], [own.waiting_us for own in ranks]
    slowest = slowest_of(*about) if rank is None else ranks_of(graph).index(rank)
    chosen, low, high = ranks[slowest], None, None
    if len(steady) > 1:
        low, high = unseen_step_interval(chosen.step_us, median_errors(period_us[slowest]))
    lag_us = device_lag_us(chosen.step_us, median(step_us[slowest, steady])) if follow else None
    typical = int(steady[np.argmin(np.abs(period_us[slowest] - chosen.step_us))])
    if lag_us and lags is not None:
        path = lags.cycle(chosen.rank, typical)
    else:
        mark = np.flatnonzero(graph.marks.rank == chosen.rank)[typical]
        path = critical_path(timeline, int(mark), walker)
    begun = path[0].start_us if len(path) else 0.0
    if kinds_of_work is None:
        families, coverage = _named_kinds(timeline, chosen, steady, of_step)
    else:
        families, coverage = kinds_of_work(chosen.rank)
    return Result(
        hardware=hardware,
        mode=mode,
        low_us=low,
        high_us=high,
        ranks=ranks,
        slowest=slowest,
        families=families,
        coverage=coverage,
        critical_path=[
            PathPiece(
                name=graph.labels[node] if edge == NONE else EdgeKind(edge).name.lower(),
                kind=Cause(cause).name.lower(),
                start_us=start_us - begun,
                duration_us=end_us - start_us,
                node=int(node) if edge == NONE else NONE,
            )
            for node, edge, cause, start_us, end_us in path
            if end_us > start_us
        ],
        timeline=timeline,
        device_lag_us=lag_us,
        waiting=meets,
    )


def _rank(
    timeline: Timeline,
    walker: PathWalker,
    truth: Timeline | None,
    mode: str,
    rank: int,
    roles: Sequence[StepRole],
    step_us: Floats,
    period_us: Floats,
    of_step: Ints | None,
) -> RankPrediction:
    graph, steps, on_host = timeline.graph, [], {*HOST_CAUSES, Cause.ALLOCATOR}
    steady = steady_among(roles)
    marks = np.flatnonzero(graph.marks.rank == rank)
    for i, mark in enumerate(marks.tolist()):
        path = critical_path(timeline, mark, walker)
        taken = [(cause, end_us - start_us) for _, _, cause, start_us, end_us in path]
        host_us = sum(us for cause, us in taken if cause in on_host and mode != MODEL)
        steps.append(
            StepPrediction(
                name=graph.marks.name[mark],
                step_us=float(step_us[i]),
                role=roles[i],
                measured_us=None if truth is None else float(truth.step_us[mark]),
                measured_host_frac=host_us / (sum(us for _, us in taken) or 1.0),
                unexplained=Unexplained.of(graph, mark, path),
            )
        )
    device = DeviceWork.of(timeline, rank)
    accounts = [account(device, *step_bounds(timeline, mark)) for mark in marks[steady].tolist()]
    if of_step is not None:  # what each step launched, whenever it runs, in a period at most
        first, last = graph.device_span(rank)
        order = np.argsort(of_step[last], kind="stable")
        first, last = first[order], last[order]
        bounds = [np.searchsorted(of_step[last], steady, side=side) for side in ("left", "right")]
        accounts = []
        for low, high, us in zip(*bounds, period_us.tolist(), strict=True):
            own = account_of(timeline, first[low:high], last[low:high])
            active_us = min(own.gpu_active_us, us)
            idle_us = us - active_us if len(last) else 0.0
            own = replace(own, step_us=us, gpu_active_us=active_us, gpu_idle_us=idle_us)
            accounts.append(own)
    return RankPrediction(
        rank=rank,
        step_us=median(period_us),
        **_medians(accounts, DEVICE_WORK),
        measured=None if truth is None else recorded_figures(truth, rank, marks[steady]),
        steps=steps,
    )


def recorded_figures(timeline: Timeline, rank: int, marks: Ints) -> dict[str, float]:
    """Medians over the steps of these rows of the marks, each from mark to mark."""
    device = DeviceWork.of(timeline, rank)
    accounts = [account(device, *step_bounds(timeline, mark)) for mark in marks.tolist()]
    return _medians(accounts, ("step_us", *DEVICE_FIGURES))


def _medians(accounts: Sequence[Accounting], names: Sequence[str]) -> dict[str, float]:
    return {name: median(np.array([getattr(own, name) for own in accounts])) for name in names}


def _left_out(
    timeline: Timeline, rank: RankPrediction, at: int, steady: Ints, null_us: Floats
) -> RankPrediction:
    """The `at`-th rank, whose steps are left out, with their intervals and what needs no model."""
    replayed_us = by_rank_and_step(timeline.graph, timeline.step_us)[at]
    seen = unseen_errors(replayed_us, np.array([step.step_us for step in rank.steps]))
    steps = []
    for number, step in enumerate(rank.steps):
        low_us, high_us = unseen_step_interval(step.step_us, seen[steady[steady != number]])
        null = None if np.isnan(null_us[number]) else float(null_us[number])
        left_out = {"low_us": low_us, "high_us": high_us, "null_mean_us": null}
        steps.append(replace(step, left_out=left_out))
    return replace(rank, steps=steps)


KindsOfWork: TypeAlias = tuple[list[dict[str, Any]], dict[str, float]]
"""Device time and operations per kernel family and step, largest first; and shares of a rank's time
by what is known of it."""


def _named_kinds(
    timeline: Timeline, rank: RankPrediction, steady: Ints, of_step: Ints | None
) -> KindsOfWork:
    """By the kernels' names, over the steady steps; of the step's time, what is unexplained."""
    graph, device = timeline.graph, timeline.graph.device_span(rank.rank)[1]
    marks = np.flatnonzero(graph.marks.rank == rank.rank)[steady]
    begun, over = timeline.end_us[graph.marks.start[marks]], timeline.end_us[graph.marks.end[marks]]
    at = np.searchsorted(begun, timeline.start_us[device], side="right") - 1
    inside = (at >= 0) & (timeline.start_us[device] < over[np.maximum(at, 0)])
    rows = device[inside if of_step is None else np.isin(of_step[device], steady)]
    names = list(map(str, families_of_kernels([graph.labels[row] for row in rows])))
    counted = [rank.steps[i] for i in steady]
    total_us = sum(step.step_us for step in counted) or 1.0
    unexplained_us = sum(step.unexplained.frac * step.step_us for step in counted)
    taken_us = timeline.end_us[rows] - timeline.start_us[rows]
    return family_rows(names, taken_us, len(steady)), {
        "kernels": len(device),
        "modelled_frac": 0.0,
        "fallback_frac": 0.0,
        "no_shapes_frac": 0.0,
        "unexplained_frac": round(unexplained_us / total_us, 6),
    }


def family_rows(names: Sequence[str], us: Floats, steps: int) -> list[dict[str, Any]]:
    """Time and number of operations per family and step, largest first; a name for each of `us`."""
    families, group = np.unique(np.array(names, object), return_inverse=True)
    total_us, count = (np.bincount(group, each, len(families)) / steps for each in (us, None))
    return [
        {
            "family": families[i],
            "time_us": round(float(total_us[i]), 4),
            "count": round(float(count[i]), 4),
        }
        for i in np.argsort(-total_us, kind="stable").tolist()
    ]


def retimed(result: Result, of_us: Callable[[float], float], **more: Any) -> Result:
    """`result` whose steps take `of_us` of what they took, on every rank; with `more` changed."""
    ranks = [
        replace(
            rank,
            step_us=of_us(rank.step_us),
            steps=[replace(step, step_us=of_us(step.step_us)) for step in rank.steps],
        )
        for rank in result.ranks
    ]
    return replace(result, ranks=ranks, **more)


def longer(result: Result, us: float, name: str) -> Result:
    """`result` whose step, and every draw and relief of it, takes `us` more, for one more piece at
    the end of its path."""
    last = result.critical_path[-1] if result.critical_path else None
    piece = PathPiece(name, name, last.start_us + last.duration_us if last else 0.0, us)
    values = {key: getattr(result, key) for key in ("low_us", "high_us", "draws_us")}
    return retimed(
        result,
        lambda step_us: step_us + us,
        critical_path=[*result.critical_path, piece],
        relieved_us={key: each + us for key, each in (result.relieved_us or {}).items()},
        **{key: None if value is None else value + us for key, value in values.items()},
    )


def left_out_change_us(
    graph: ExecutionGraph, duration_us: Floats, steady: Ints, given_us: Floats | None = None
) -> Floats:
    """`[rank, step]`: by how much a step's period changes where its host costs are those of the
    others; nan for a step with no other to learn from.

    `steady` are the steps whose costs count (not warm-up and outliers). Device durations are
    `given_us` (default: the step's own).
    """
    count = len(graph.marks.name) // max(len(ranks_of(graph)), 1)
    counts = np.isin(np.arange(count), steady)
    periods = Periods.of(graph, np.arange(count))
    step_of = step_of_nodes(graph)
    host = np.flatnonzero((graph.nodes_.scope == Scope.HOST) & (step_of != NONE))
    host = host[np.argsort(step_of[host], kind="stable")]
    changed_us = (duration_us if given_us is None else given_us).copy()
    own_us, step = changed_us[host], step_of[host]
    means_us = np.full(len(host), np.nan)
    weight = counts[step].astype(np.float64)
    for group in _groups(graph, host, step):  # the means of its other steps that count
        in_step = _classes([group, step])
        number, total_us = (
            np.bincount(group, each)[group] - np.bincount(in_step, each)[in_step]
            for each in (weight, weight * own_us)
        )
        others_us = np.maximum(total_us, 0.0) / np.maximum(number, 1)
        means_us = np.where(np.isnan(means_us) & (number > 0), others_us, means_us)
    changed_us[host] = np.where(np.isnan(means_us), own_us, means_us)
    change_us = periods.step_us(changed_us) - periods.step_us(duration_us)
    change_us[:, counts.sum() - counts == 0] = np.nan
    return change_us


def _groups(graph: ExecutionGraph, host: Ints, step: Ints) -> list[Ints]:
    """Groups of host nodes that stand in for one another, from fine to coarse: the same piece of
    the same operator, n-th of its kind in its step; any of its kind; any of its overhead type on
    its thread; all."""
    nodes = graph.nodes_
    labels = np.array(graph.labels, dtype=object)[host].astype(str)
    where = [nodes.resource[host], nodes.cause[host], nodes.kind[host]]
    of_kind = _classes([*where, np.unique(labels, return_inverse=True)[1]])
    order = np.lexsort((np.arange(len(host)), nodes.start_us[host], of_kind, step))
    change = np.diff(of_kind[order], prepend=-1) != 0
    change |= np.diff(step[order], prepend=-2) != 0
    begun = np.maximum.accumulate(np.where(change, np.arange(len(host)), 0))
    nth = np.empty(len(host), np.int64)
    nth[order] = np.arange(len(host)) - begun
    return [_classes([of_kind, nth]), of_kind, _classes(where), np.zeros(len(host), np.int64)]


def _classes(columns: list[Ints]) -> Ints:
    """Per row of equal `columns`, one number."""
    return np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)


def null_mean_us(measured: Timeline, steady: Ints) -> Floats:
    """Of every step of a measured trace what needs no model, `[rank, step]` in microseconds: the
    mean of the other `steady` steps; nan where there is none."""
    values = by_rank_and_step(measured.graph, measured.step_us)
    is_steady = np.isin(np.arange(values.shape[1]), steady)
    own, count = np.where(is_steady, values, 0.0), len(steady) - is_steady
    means: Floats = (own.sum(axis=1, keepdims=True) - own) / np.where(count > 0, count, np.nan)
    return means
