"""From a schedule to a result: medians, families, the critical path, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, median
from perfmodel.ops.families import families_of_kernels
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
from perfmodel.timeline.critical_path import PathWalker, critical_path
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
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
    graph, walker = timeline.graph, PathWalker.of(timeline)
    truth = measured(graph)
    steady = steady_steps(truth)
    step_us = by_rank_and_step(graph, timeline.step_us)
    period_us = step_us[:, steady] if lags is None else lags.period_us
    follow = lags is not None and bool(lags.periods.repeated)
    if left_out_us is not None:
        change_us = np.where(np.isnan(left_out_us), 0.0, left_out_us)
        step_us, period_us = step_us + change_us, period_us + change_us[:, steady]
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
    chosen, low, high = ranks[slowest], None, None
    if len(steady) > 1:
        low, high = unseen_step_interval(chosen.step_us, median_errors(period_us[slowest]))
    device = graph.device_span(chosen.rank)[1]
    lag_us = device_lag_us(chosen.step_us, median(step_us[slowest, steady])) if follow else None
    typical = int(steady[np.argmin(np.abs(period_us[slowest] - chosen.step_us))])
    if lag_us and lags is not None:
        path = lags.cycle(chosen.rank, typical)
    else:
        mark = np.flatnonzero(graph.marks.rank == chosen.rank)[typical]
        path = critical_path(timeline, int(mark), walker)
    begun = path[0].start_us if len(path) else 0.0
    counted = [chosen.steps[i] for i in steady]
    total_us = sum(step.step_us for step in counted) or 1.0
    unexplained_us = sum(step.unexplained.frac * step.step_us for step in counted)
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
            "unexplained_frac": round(unexplained_us / total_us, 6),
        },
        critical_path=[
            PathPiece(
                name=graph.labels[node] if edge == NONE else EdgeKind(edge).name.lower(),
                kind=Cause(cause).name.lower(),
                start_us=start_us - begun,
                duration_us=end_us - start_us,
            )
            for node, edge, cause, start_us, end_us in path.plain
            if end_us > start_us
        ],
        timeline=timeline,
        device_lag_us=lag_us,
        straggler=None if meets is None else meets.to_dict(),
    )


_ON_HOST = {*HOST_CAUSES, Cause.ALLOCATOR}


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
    graph, steps = timeline.graph, []
    marks = np.flatnonzero(graph.marks.rank == rank)
    roles = step_roles(measured(graph))
    for i, mark in enumerate(marks.tolist()):
        path = critical_path(timeline, mark, walker)
        taken = [(cause, end_us - start_us) for _, _, cause, start_us, end_us in path.plain]
        host_us = sum(us for cause, us in taken if cause in _ON_HOST)
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
    timeline: Timeline, rank: RankPrediction, at: int, steady: Ints, naive: NaivePredictions | None
) -> RankPrediction:
    """The `at`-th rank, whose steps are left out, with their intervals and nulls."""
    replayed_us = by_rank_and_step(timeline.graph, timeline.step_us)[at]
    seen = unseen_errors(replayed_us, np.array([step.step_us for step in rank.steps]))
    steps = []
    for number, step in enumerate(rank.steps):
        bounds = unseen_step_interval(step.step_us, seen[steady[steady != number]])
        columns = () if naive is None else (naive.mean_us, naive.mean_gpu_us, naive.last_us)
        nulls = [float(column[at, number]) for column in columns] or [np.nan] * 3
        left_out = LeaveOneOut(*bounds, *(None if us != us else us for us in nulls))
        steps.append(replace(step, left_out=left_out))
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
