"""Errors of held-out steps: times, device work, host overheads, predicted from other steps."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import pandas as pd


_ALIKE = (["rank", "label", "nth"], ["rank", "label"], ["rank", "family"])
"""What operations have in common that stand in for one another, finest first: of a rank, the n-th
launch of a kernel in its step, its name, its family."""


def device_work(graph: ExecutionGraph) -> pd.DataFrame:
    """Kernels, copies and collectives within steps, a row each, numbered per label and step."""
    import pandas as pd

    node = graph.device_span()[1]
    labels = [graph.labels[row] for row in node.tolist()]
    work = pd.DataFrame(
        {
            "node": node,
            "step": step_of_nodes(graph)[node],
            "rank": np.searchsorted(np.unique(graph.marks.rank), graph.nodes_.rank[node]),
            "family": families_of_kernels(labels),
            "label": labels,
            "start_us": graph.nodes_.start_us[node],
            "duration_us": graph.nodes_.duration_us[node],
        }
    )
    work = work[work["step"] >= 0].sort_values("start_us", kind="stable")
    return work.assign(nth=work.groupby(["rank", "step", "label"]).cumcount()).sort_index()


def work_us(work: pd.DataFrame, step: int, teachers: Ints) -> pd.Series:
    """Per operation of `step`: the mean duration of those most alike in the steps `teachers`; of
    all of them where none is alike, nan where there is none."""
    own, taught = work[work["step"] == step], work[work["step"].isin(teachers)]
    result = own["duration_us"] * np.nan
    for keys in _ALIKE:
        mean_us = taught.groupby(keys)["duration_us"].mean().rename("mean_us")
        result = result.fillna(own.join(mean_us, on=keys)["mean_us"])
    return result.fillna(taught["duration_us"].mean())


def family_rows(trace: str, work: pd.DataFrame, steady: Ints, held: Ints) -> list[Row]:
    """Per kernel family: errors of its device time per rank and held step."""
    if not len(work) or len(steady) < 2:
        return []
    import pandas as pd

    own = work[work["step"].isin(held)]
    left_out = [work_us(work, step, np.setdiff1d(steady, [step])) for step in held.tolist()]
    own = own.assign(predicted_us=pd.concat(left_out))
    sums = own.groupby(["family", "step", "rank"])[["predicted_us", "duration_us"]].sum()
    return [
        row
        for family, each in sums.groupby(level="family")
        for row in rows_of(
            trace,
            Kind.FAMILY,
            str(family),
            each["predicted_us"].to_numpy(),
            each["duration_us"].to_numpy(),
        )
    ]


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


def held_out_step_us(graph: ExecutionGraph, work: pd.DataFrame, steady: Ints, held: Ints) -> Floats:
    """`[rank, held step]`: each predicted from the others, its host costs and device durations."""
    given_us = graph.nodes_.duration_us.copy()
    for index in held.tolist():
        others = np.setdiff1d(steady, [index])
        given_us[work["node"][work["step"] == index]] = work_us(work, index, others)
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
