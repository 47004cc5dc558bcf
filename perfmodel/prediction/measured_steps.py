"""Modes `replay` and `transfer`: a graph's measured durations, edited and scheduled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, hypot, log

import numpy as np

from perfmodel.base.arrays import Floats, has_code
from perfmodel.lowering.host import Profile
from perfmodel.ops.families import OTHER, families_of_kernels
from perfmodel.prediction.breakdown.waiting import error_warnings, unexplained_warnings
from perfmodel.prediction.intervals import interval_of, ratio_interval, transfer_draws
from perfmodel.prediction.result import left_out_change_us, retimed, summarise
from perfmodel.prediction.scheduled import OVERHEAD_OF_CAUSE
from perfmodel.prediction.types import DEVICE_WORK, Result
from perfmodel.prediction.what_if import Scale
from perfmodel.timeline.graph.kinds import Cause, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import DeviceLags
from perfmodel.timeline.schedule import measured, ranks_of, schedule, steady_steps
from perfmodel.trace import Trace
from perfmodel.trace.link import launching_op

Timed = tuple[ExecutionGraph, Floats]
"""A graph and what its nodes take, microseconds."""


def profiled(graph: ExecutionGraph, duration_us: Floats, profile: Profile) -> Timed:
    """With the host costs of a saved profile: its mean per overhead type, operator, thread."""
    replaced = duration_us.copy()
    is_host = graph.nodes_.scope == Scope.HOST
    is_host &= has_code(graph.nodes_.cause, tuple(OVERHEAD_OF_CAUSE))
    rows = np.flatnonzero(is_host).tolist()
    kinds = [OVERHEAD_OF_CAUSE[Cause(graph.nodes_.cause[row])] for row in rows]
    threads = [graph.resources[graph.nodes_.resource[row]].split("/", 1)[1] for row in rows]
    replaced[rows] = profile.durations(kinds, [graph.labels[row] for row in rows], threads)
    return graph, replaced


def steps_result(
    trace: Trace, timed: Timed, mode: str, hardware: str | None, *, edited: bool, left_out: bool
) -> Result:
    """What the schedule of `timed` says; `hardware` names another machine than the trace's. With
    `left_out`, each step's host costs are those of the other steps."""
    graph, duration_us = timed
    timeline, steady = schedule(graph, duration_us), steady_steps(measured(graph))
    lags = DeviceLags.of(timeline, steady)
    result = summarise(
        timeline,
        hardware=hardware or trace.device,
        mode=mode,
        lags=lags,
        left_out_us=left_out_change_us(graph, duration_us, steady) if left_out else None,
        compare=hardware is None and not edited,
    )
    without, total = 0.0, 0.0  # of device time: launched by operators without recorded shapes
    for own, links in zip(trace.ranks, trace.links, strict=True):
        op = launching_op(own, links)
        known = (op >= 0) & (own.input_shapes[op] >= 0)
        if own.rank in trace.pairings:
            known |= np.isin(op, trace.pairings[own.rank].event)
        taken_us = own.duration_us[links.device_rows]
        without, total = without + float(taken_us[~known].sum()), total + float(taken_us.sum())
    share = without / total if total else 0.0
    coverage = result.coverage | {"no_shapes_frac": round(share, 6)}
    if hardware is not None:
        low_us, high_us = interval_of(result.step_us, transfer_draws(result, graph))
        result = replace(result, low_us=low_us, high_us=high_us)
        rows = graph.device_span()[1]  # kernels whose name says no family
        families = families_of_kernels([graph.labels[row] for row in rows.tolist()])
        unknown = np.array([family == OTHER for family in families], bool)
        share = float(duration_us[rows[unknown]].sum()) / (float(duration_us[rows].sum()) or 1.0)
        coverage["fallback_frac"] = round(share, 6)
    echoes = hardware is None and not edited and not left_out
    cautions = list(lags.cautions()) if echoes else []
    cautions += unexplained_warnings([s.unexplained for rank in result.ranks for s in rank.steps])
    for rank in result.ranks if echoes else ():  # what a plain replay is off
        pairs = [(s.name, s.step_us, s.measured_us) for s in rank.steps if s.measured_us]
        cautions += error_warnings(rank.rank, pairs)
    return replace(result, coverage=coverage, cautions=tuple(cautions))


def comm_warnings(graph: ExecutionGraph, scales: Sequence[Scale]) -> list[str]:
    """Where the collectives of a rank alone are scaled."""
    alone = len(ranks_of(graph)) == 1 and bool((graph.nodes_.scope == Scope.COMM).any())
    if alone and {each.scope for each in scales} & {"gpu", "comm"}:
        return [
            "one rank alone: a collective's measured duration contains waiting for other ranks, "
            "and is scaled as one piece; give the folder of all ranks to let them meet"
        ]
    return []


def changed(times: Result, before: Result, after: Result) -> Result:
    """`after`, predicted from changed shapes, times what measured `times` are of `before`, which is
    predicted from the same shapes unchanged: where nothing changes, the answer is that of the
    times."""
    step, active = times.step_us / before.step_us, 1.0
    if times.rank.gpu_active_us > 0 and before.rank.gpu_active_us > 0:
        active = times.rank.gpu_active_us / before.rank.gpu_active_us
    middle_us, ratio = after.step_us * step, after.step_us / before.step_us
    low, high = ratio_interval(after, before) or (middle_us / times.step_us,) * 2
    own_below, own_above = (
        abs(log(times.step_us / bound_us)) if bound_us else 0.0
        for bound_us in (times.low_us, times.high_us)
    )
    below, above = hypot(log(ratio / low), own_below), hypot(log(high / ratio), own_above)
    ranks = []
    for rank in after.ranks:  # a device's work is `active` times as long
        step_us = rank.step_us * step
        active_us = min(rank.gpu_active_us * active, step_us)
        work = {name: getattr(rank, name) * active for name in DEVICE_WORK} | {
            "gpu_active_us": active_us,
            "gpu_idle_us": step_us - active_us if rank.gpu_active_us else 0.0,
        }
        ranks.append(replace(rank, **work))
    path = [
        replace(each, start_us=each.start_us * step, duration_us=each.duration_us * step)
        for each in after.critical_path
    ]
    return retimed(
        replace(after, ranks=ranks),
        lambda step_us: step_us * step,
        low_us=middle_us * exp(-below),
        high_us=middle_us * exp(above),
        critical_path=path,
        draws_us=None if after.draws_us is None else after.draws_us * step,
        device_lag_us=(times.device_lag_us or 0.0) * middle_us / times.step_us,
        waiting=None,
        baseline=times,
    )
