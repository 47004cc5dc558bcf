"""From a schedule to a result: medians, families, the critical path, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, median
from perfmodel.ops.families import OTHER, families_of_kernels
from perfmodel.prediction.breakdown.completeness import Unexplained
from perfmodel.prediction.breakdown.straggler import rank_waiting
from perfmodel.prediction.intervals import median_errors, unseen_errors, unseen_step_interval
from perfmodel.prediction.leave_out import LeaveOneOut, NaivePredictions, naive_predictions
from perfmodel.prediction.types import (
    DEVICE_FIGURES,
    DEVICE_WORK,
    PathPiece,
    RankPrediction,
    Result,
    StepPrediction,
)
from perfmodel.prediction.what_if import HOST_CAUSES
from perfmodel.timeline.critical_path import PathWalker, TimelinePath, critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.idle import Accounting, DeviceWork, account, account_of
from perfmodel.timeline.period import DeviceLags, device_lag_us
from perfmodel.timeline.schedule import Timeline, measured
from perfmodel.timeline.steps import (
    by_rank_and_step,
    ranks_of,
    steady_steps,
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
) -> Result:
    """What a schedule says of its steps, with `lags` of steps that follow one another.

    `left_out_us` (`[rank, step]`) is by how much steps change that are predicted from the others.
    With `compare` the result has what was measured, too. `rank` stands for the job, by default the
    slowest.
    """
    graph = timeline.graph
    truth = measured(graph)
    steady = steady_steps(truth)
    walker = PathWalker.of(timeline)
    replayed_us = by_rank_and_step(graph, timeline.step_us)
    period_us = replayed_us[:, steady] if lags is None else lags.period_us
    follow = lags is not None and bool(lags.periods.repeated)
    step_us = replayed_us
    if left_out_us is not None:
        change_us = np.where(np.isnan(left_out_us), 0.0, left_out_us)
        step_us, period_us = replayed_us + change_us, period_us + change_us[:, steady]
    of_step = step_of_nodes(graph) if follow else None
    known = truth if compare else None
    ranks = [
        _rank(timeline, known, walker, number, step_us[i], period_us[i], steady, of_step)
        for i, number in enumerate(ranks_of(graph))
    ]
    if left_out_us is not None:
        naive = naive_predictions(truth, steady) if compare else None
        ranks = [_left_out(timeline, each, i, steady, naive) for i, each in enumerate(ranks)]
    meets = rank_waiting(timeline, walker)
    if meets is not None:
        ranks = [
            replace(
                each,
                transfer_us=meets.transfer_us.get(each.rank, 0.0),
                waiting_us=meets.waiting_us.get(each.rank, 0.0),
            )
            for each in ranks
        ]
    if rank is None:  # of equal ones, the one that waits least
        longest_us = max(each.step_us for each in ranks)
        last = [at for at, each in enumerate(ranks) if each.step_us >= (1 - 1e-9) * longest_us]
        slowest = min(last, key=lambda at: ranks[at].waiting_us or 0.0)
    else:
        slowest = ranks_of(graph).index(rank)
    low, high = None, None
    if len(steady) > 1:
        low, high = unseen_step_interval(ranks[slowest].step_us, median_errors(period_us[slowest]))
    chosen = ranks[slowest]
    device = graph.device_span(chosen.rank)[1]
    lag_us = device_lag_us(chosen.step_us, median(step_us[slowest, steady])) if follow else None
    typical = int(steady[np.argmin(np.abs(period_us[slowest] - chosen.step_us))])
    if lag_us and lags is not None:
        path = lags.cycle(chosen.rank, typical)
    else:
        mark = np.flatnonzero(graph.marks.rank == chosen.rank)[typical]
        path = critical_path(timeline, int(mark), walker)
    return Result(
        hardware=hardware,
        mode=mode,
        low_us=low,
        high_us=high,
        ranks=ranks,
        slowest=slowest,
        families=_families(timeline, device, slowest, steady, of_step),
        coverage={
            "kernels": len(device),
            "modelled_frac": 0.0,
            "fallback_frac": 0.0,
            "no_shapes_frac": 0.0,
            "unexplained_frac": round(_unexplained_frac(chosen, steady), 6),
        },
        critical_path=_path(graph, path),
        timeline=timeline,
        device_lag_us=lag_us,
        straggler=None if meets is None else meets.to_dict(),
    )


def _rank(
    timeline: Timeline,
    truth: Timeline | None,
    walker: PathWalker,
    rank: int,
    step_us: Floats,
    period_us: Floats,
    steady: Ints,
    of_step: Ints | None,
) -> RankPrediction:
    graph = timeline.graph
    marks = np.flatnonzero(graph.marks.rank == rank)
    roles = step_roles(measured(graph))
    true_us = truth.step_us[marks] if truth is not None else None
    paths = [critical_path(timeline, int(mark), walker) for mark in marks]
    steps = [
        StepPrediction(
            name=graph.marks.name[mark],
            step_us=float(step_us[i]),
            role=roles[i],
            measured_us=None if true_us is None else float(true_us[i]),
            measured_host_frac=_host_frac(paths[i]),
            unexplained=Unexplained.of(graph, int(mark), paths[i]),
        )
        for i, mark in enumerate(marks)
    ]
    if of_step is None:
        medians = _medians(timeline, rank, marks[steady])
    else:
        medians = _medians_of_work(timeline, rank, steady, of_step, period_us)
    return RankPrediction(
        rank=rank,
        step_us=median(period_us),
        **{key: medians[key] for key in DEVICE_WORK},
        measured=None if truth is None else recorded_figures(truth, rank, marks[steady]),
        steps=steps,
    )


def _unexplained_frac(rank: RankPrediction, steady: Ints) -> float:
    """Share of the steps that count of which nobody can explain what it waited for."""
    steps = [rank.steps[i] for i in steady]
    total_us = sum(step.step_us for step in steps)
    return sum(s.unexplained.frac * s.step_us for s in steps) / total_us if total_us else 0.0


def recorded_figures(timeline: Timeline, rank: int, marks: Ints) -> dict[str, float]:
    """Medians over the steps of these rows of the marks, each from mark to mark."""
    medians = _medians(timeline, rank, marks)
    return {key: medians[key] for key in ("step_us", *DEVICE_FIGURES)}


def _medians(timeline: Timeline, rank: int, marks: Ints) -> dict[str, float]:
    """Median of every number of a rank's accounting over the given steps."""
    device = DeviceWork.of(timeline, rank)
    return _median_of_each(
        [account(device, *step_bounds(timeline, mark)) for mark in marks.tolist()]
    )


def _medians_of_work(
    timeline: Timeline, rank: int, steady: Ints, of_step: Ints, period_us: Floats
) -> dict[str, float]:
    """The same of what each step launched, whenever it runs; a period holds no more than itself."""
    first, last = timeline.graph.device_span(rank)
    order = np.argsort(of_step[last], kind="stable")
    first, last = first[order], last[order]
    bounds = [np.searchsorted(of_step[last], steady, side=side) for side in ("left", "right")]
    found = []
    for low, high, us in zip(*bounds, period_us.tolist(), strict=True):
        account = account_of(timeline, first[low:high], last[low:high])
        active_us = min(account.gpu_active_us, us)
        idle_us = us - active_us if len(last) else 0.0
        found.append(replace(account, step_us=us, gpu_active_us=active_us, gpu_idle_us=idle_us))
    return _median_of_each(found)


def _median_of_each(accounts: Sequence[Accounting]) -> dict[str, float]:
    tables = [asdict(one) for one in accounts]
    return {key: median(np.array([table[key] for table in tables])) for key in tables[0]}


def _host_frac(path: TimelinePath) -> float:
    taken = [(cause, end_us - start_us) for _, _, cause, start_us, end_us in path.plain]
    total_us = sum(us for _, us in taken)
    return sum(us for cause, us in taken if cause in _ON_HOST) / total_us if total_us else 0.0


def _left_out(
    timeline: Timeline, rank: RankPrediction, at: int, steady: Ints, naive: NaivePredictions | None
) -> RankPrediction:
    """The `at`-th rank, whose steps are left out, with their intervals and nulls."""
    replayed_us = by_rank_and_step(timeline.graph, timeline.step_us)[at]
    seen = unseen_errors(replayed_us, np.array([step.step_us for step in rank.steps]))
    steps = []
    for number, step in enumerate(rank.steps):
        low, high = unseen_step_interval(step.step_us, seen[steady[steady != number]])
        nulls = [np.nan] * 3
        if naive is not None:
            columns = (naive.mean_us, naive.mean_gpu_us, naive.last_us)
            nulls = [float(column[at, number]) for column in columns]
        steps.append(
            replace(
                step, left_out=LeaveOneOut(low, high, *(None if us != us else us for us in nulls))
            )
        )
    return replace(rank, steps=steps)


def _families(
    timeline: Timeline, device: Ints, slowest: int, steady: Ints, of_step: Ints | None
) -> list[dict[str, Any]]:
    """Device time and operations per kernel family and steady step, largest first."""
    graph = timeline.graph
    marks = np.flatnonzero(graph.marks.rank == ranks_of(graph)[slowest])[steady]
    begun, over = timeline.end_us[graph.marks.start[marks]], timeline.end_us[graph.marks.end[marks]]
    at = np.searchsorted(begun, timeline.start_us[device], side="right") - 1
    inside = (at >= 0) & (timeline.start_us[device] < over[np.maximum(at, 0)])
    rows = device[inside if of_step is None else np.isin(of_step[device], steady)]
    names = list(map(str, families_of_kernels([graph.labels[row] for row in rows])))
    families, group = np.unique(np.array(names, object), return_inverse=True)
    taken = timeline.end_us[rows] - timeline.start_us[rows]
    total = np.bincount(group, taken, minlength=len(families)) / len(steady)
    count = np.bincount(group, minlength=len(families)) / len(steady)
    return [
        {
            "family": families[i],
            "time_us": round(float(total[i]), 4),
            "count": round(float(count[i]), 4),
        }
        for i in np.argsort(-total, kind="stable").tolist()
    ]


def fallback_frac(labels: list[str], duration_us: Floats) -> float:
    """Share of device time in kernels whose name says no family."""
    unknown = np.array([family == OTHER for family in families_of_kernels(labels)], bool)
    return float(duration_us[unknown].sum() / duration_us.sum()) if duration_us.sum() else 0.0


_ON_HOST = {*HOST_CAUSES, Cause.ALLOCATOR}
_EDGES = [kind.name.lower() for kind in EdgeKind]
_CAUSES = [cause.name.lower() for cause in Cause]


def _path(graph: ExecutionGraph, path: TimelinePath) -> list[PathPiece]:
    """The pieces of a path, after the start of the first."""
    begun = path[0].start_us if len(path) else 0.0
    return [
        PathPiece(
            name=graph.labels[node] if edge == NONE else _EDGES[edge],
            kind=_CAUSES[cause],
            start_us=start_us - begun,
            duration_us=end_us - start_us,
        )
        for node, edge, cause, start_us, end_us in path.plain
        if end_us > start_us
    ]


def longer(result: Result, us: float, name: str) -> Result:
    """`result` whose step, and every draw and relief of it, takes `us` more, for one more piece at
    the end of its path."""
    ranks = [
        replace(
            rank,
            step_us=rank.step_us + us,
            steps=[replace(step, step_us=step.step_us + us) for step in rank.steps],
        )
        for rank in result.ranks
    ]
    last = result.critical_path[-1] if result.critical_path else None
    start_us = last.start_us + last.duration_us if last else 0.0
    times: dict[str, Any] = {}
    for key in ("low_us", "high_us", "draws_us"):
        before = getattr(result, key)
        times[key] = None if before is None else before + us
    return replace(
        result,
        ranks=ranks,
        critical_path=[*result.critical_path, PathPiece(name, name, start_us, us)],
        relieved_us={key: each + us for key, each in (result.relieved_us or {}).items()},
        **times,
    )
