"""A trace's answer under other shapes: what its times say, by what shapes say of the change."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log

from perfmodel.prediction.intervals import ratio_interval
from perfmodel.prediction.types import RankPrediction, Result


def changed(times: Result, before: Result, after: Result) -> Result:
    """`after`, predicted from changed shapes, times what measured `times` are of `before`, which is
    predicted from the same shapes unchanged: where nothing changes, the answer is that of the
    times."""
    step = times.step_us / before.step_us
    active = times.rank.gpu_active_us / before.rank.gpu_active_us if _has_both(times, before) else 1
    middle_us = after.step_us * step
    low, high = ratio_interval(after, before) or (middle_us / times.step_us,) * 2
    below = hypot(log(after.step_us / before.step_us / low), _log(times.step_us, times.low_us))
    above = hypot(log(high / (after.step_us / before.step_us)), _log(times.step_us, times.high_us))
    path = [
        replace(each, start_us=each.start_us * step, duration_us=each.duration_us * step)
        for each in after.critical_path
    ]
    return replace(
        after,
        low_us=middle_us * exp(-below),
        high_us=middle_us * exp(above),
        ranks=[_scaled(rank, step, active) for rank in after.ranks],
        critical_path=path,
        draws_us=None if after.draws_us is None else after.draws_us * step,
        device_lag_us=(times.device_lag_us or 0.0) * middle_us / times.step_us,
        straggler=None,
        baseline=times,
    )


def _has_both(*results: Result) -> bool:
    return all(result.rank.gpu_active_us > 0 for result in results)


def _log(step_us: float, bound_us: float | None) -> float:
    return abs(log(step_us / bound_us)) if bound_us else 0.0


def _scaled(rank: RankPrediction, step: float, active: float) -> RankPrediction:
    """A rank whose step is `step` times as long, its device's work `active` times."""
    step_us = rank.step_us * step
    active_us = min(rank.gpu_active_us * active, step_us)
    return replace(
        rank,
        step_us=step_us,
        gpu_active_us=active_us,
        gpu_idle_us=step_us - active_us if rank.gpu_active_us else 0.0,
        kernel_sum_us=rank.kernel_sum_us * active,
        comm_us=rank.comm_us * active,
        exposed_comm_us=rank.exposed_comm_us * active,
        steps=[replace(each, step_us=each.step_us * step) for each in rank.steps],
    )
