"""The traversal: start and end of every node, and which predecessor decided when it could start.

Which steps are whole, warm-up, outliers or steady: decided for all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, has_code, median
from perfmodel.errors import GraphError
from perfmodel.timeline.graph.kinds import IN_OPERATOR, LAUNCH_KINDS, EdgeKind
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    import pandas as pd


def deciding_edges(timeline: Timeline) -> Ints:
    """Per node of a timeline, the edge that set it free last, or -1.

    Where edges tie, one that crosses threads or streams wins over program order, so that a path
    shows what was waited for.
    """
    graph, edges = timeline.graph, timeline.graph.edges_
    ready = edges.ready_us(timeline.start_us, timeline.end_us - timeline.start_us)
    last = edges.latest(ready, edges.kind != EdgeKind.PROGRAM)
    last = last[graph.nodes_.release_us[edges.target[last]] <= ready[last]]
    result = np.full(len(graph), NONE, np.int64)
    result[edges.target[last]] = last
    return result


ORDER_TOLERANCE_US = 0.01
"""What the sums of a long timeline may be off by."""


@dataclass(frozen=True)
class Timeline:
    """Start and end of every node of `graph`, in microseconds of the graph's clock."""

    graph: ExecutionGraph
    start_us: Floats
    end_us: Floats

    def __repr__(self) -> str:
        return f"Timeline({self.graph!r}, {len(self.step_us)} steps)"

    @cached_property
    def step_us(self) -> Floats:
        marks = self.graph.marks
        return self.end_us[marks.end] - self.end_us[marks.start]

    @cached_property
    def slack_us(self) -> Floats:
        """Per node: how much later it could end without any step ending later.

        Zero along a critical path; infinite where no step end depends on the node. Backwards
        through the graph: the latest end of each node that every step end allows.
        """
        graph, edges = self.graph, self.graph.edges_
        duration = self.end_us - self.start_us
        lag = edges.lag_us - edges.overlap_frac * duration[edges.source]
        bounds, source, by_target = graph.incoming
        before = (lag[by_target] + duration[edges.target[by_target]]).tolist()
        latest = np.full(len(graph), np.inf)
        latest[graph.marks.end] = self.end_us[graph.marks.end]
        late = latest.tolist()
        for node in graph.order[::-1].tolist():
            for edge in range(bounds[node], bounds[node + 1]):
                allowed = late[node] - before[edge]
                if allowed < late[source[edge]]:
                    late[source[edge]] = allowed
        return np.array(late) - self.end_us

    def to_frame(self) -> pd.DataFrame:
        """The graph's nodes as a pandas frame, with this timeline's times and slack."""
        return self.graph.nodes.assign(
            start_us=self.start_us,
            duration_us=self.end_us - self.start_us,
            end_us=self.end_us,
            slack_us=self.slack_us,
        )


def schedule(graph: ExecutionGraph, duration_us: Floats | None = None) -> Timeline:
    """Schedule `graph` with a duration per node (default: as measured).

    Raises `GraphError` where the graph lost the order of a thread or stream.
    """
    duration = graph.nodes_.duration_us if duration_us is None else duration_us
    bounds, source, by_target = graph.incoming
    edges = graph.edges_
    lag = (edges.lag_us - edges.overlap_frac * duration[edges.source])[by_target].tolist()
    start, taken = graph.nodes_.release_us.tolist(), duration.tolist()
    end = [0.0] * len(start)
    for node in graph.order.tolist():
        begin = start[node]
        for edge in range(bounds[node], bounds[node + 1]):
            ready = end[source[edge]] + lag[edge]
            if ready > begin:
                begin = ready
        start[node] = begin
        end[node] = begin + taken[node]
    timeline = Timeline(graph, np.array(start), np.array(end))
    # Two nodes of one thread or stream that run at the same time, though no edge between them
    # allows it: such a timeline is none that a machine can have.
    before, after = graph.unconnected
    early_us = timeline.end_us[before] - timeline.start_us[after]
    if len(early_us) and early_us.max() > ORDER_TOLERANCE_US:
        at = int(np.argmax(early_us))
        first, second = (graph.labels[node] for node in (before[at], after[at]))
        raise GraphError(
            f"{graph.resources[graph.nodes_.resource[after[at]]]}: {second!r} would start "
            f"{early_us[at]:.1f} us before {first!r} has ended: the graph does not keep their order"
        )
    return timeline


def step_us_of_many(graph: ExecutionGraph, duration_us: Floats) -> Floats:
    """Duration of each row of `graph.marks` for many configurations at once.

    `duration_us` is `[nodes, configurations]`; so is the answer, `[marks, configurations]`. One
    pass over the graph: each node costs a few vector operations, however many configurations.
    """
    bounds, source, by_target = graph.incoming
    into, release = graph.edges_.where(by_target), graph.nodes_.release_us.tolist()
    lag, overlap = into.lag_us.tolist(), into.overlap_frac.tolist()
    end: list[Floats] = [duration_us[0]] * len(release)
    for node in graph.order.tolist():
        begin: Floats | float = release[node]
        for edge in range(bounds[node], bounds[node + 1]):
            ready = end[source[edge]] + lag[edge]
            if overlap[edge]:
                ready = ready - overlap[edge] * duration_us[source[edge]]
            begin = np.maximum(begin, ready)
        end[node] = begin + duration_us[node]
    table = np.stack([end[node] for node in (*graph.marks.end, *graph.marks.start)])
    taken: Floats = table[: len(graph.marks.end)] - table[len(graph.marks.end) :]
    return taken


def measured(graph: ExecutionGraph) -> Timeline:
    return Timeline(graph, graph.nodes_.start_us, graph.nodes_.end_us)


SLOW_FACTOR = 1.5
"""assumed: a step that the median leaves out takes more than this many times the others' median."""
SLOW_DEVIATIONS = 3.5 * 1.4826
"""And lies above it by more than this many median absolute deviations. 1.4826 of them are a
standard deviation of normal values; the bound of 3.5 is Iglewicz and Hoaglin's, How to Detect and
Handle Outliers, 1993."""
COMPLETE_FRAC = 1 / 2
"""assumed: a step that launched less of the usual number of device operations did not do the work.
Steps of one loop differ by what they do now and then (an optimizer's step after several
micro-batches, a log), which is less than half; of less, most is missing."""


class StepRole(StrEnum):
    """What a step is among the steps of its trace."""

    WARM_UP = "warm-up"
    """One of a run of slow steps that the trace begins with."""
    OUTLIER = "outlier"
    """Any other slow step."""
    INCOMPLETE = "incomplete"
    """A step that did not do the work of the others, or of which the recording lost it."""
    STEADY = "steady"


def ranks_of(graph: ExecutionGraph) -> list[int]:
    return list(dict.fromkeys(graph.marks.rank.tolist()))


def step_bounds(timeline: Timeline, mark: int) -> tuple[float, float]:
    marks = timeline.graph.marks
    return float(timeline.end_us[marks.start[mark]]), float(timeline.end_us[marks.end[mark]])


def by_rank_and_step(graph: ExecutionGraph, per_mark: Floats) -> Floats:
    """`[rank, step]` from one value per row of `graph.marks`."""
    return per_mark.reshape(len(ranks_of(graph)), -1)


def step_roles(measured: Timeline) -> list[StepRole]:
    """Per step, from its mean over ranks, so that all ranks agree.

    Incomplete is, however long it took, a step whose launch calls started less than half of the
    device operations that the others' did (their median), or that ran no operator while others did.
    Of the complete ones, warm-up are those that a trace begins with as long as each is slow beside
    those after it; an outlier is any later step that is slow beside all that are not warm-up. Of
    two steps the second is never slow beside the first: which of them is the usual one is unknown.
    A sole one is steady.
    """
    graph = measured.graph
    step_us = by_rank_and_step(graph, measured.step_us).mean(axis=0)
    if len(step_us) == 1:
        return [StepRole.STEADY]
    nodes, edges, step_of = graph.nodes_, graph.edges_, step_of_nodes(graph)
    launches = edges.source[has_code(edges.kind, LAUNCH_KINDS)]
    operators = np.flatnonzero(has_code(nodes.cause, IN_OPERATOR))
    launched, ran = (
        np.bincount(step_of[each][step_of[each] != NONE], minlength=len(step_us))
        for each in (launches, operators)
    )
    usual = median(launched[launched > 0].astype(np.float64)) if launched.any() else 0.0
    is_complete: Mask = (launched >= COMPLETE_FRAC * usual) & ((ran > 0) | (not ran.any()))
    complete = np.flatnonzero(is_complete if is_complete.any() else ~is_complete)
    roles = [StepRole.INCOMPLETE] * len(step_us)
    step_us = step_us[complete]
    begun = 0
    while begun < len(step_us) and step_us[begun] > _slow_above_us(step_us[begun + 1 :]):
        begun += 1
    slow = step_us > _slow_above_us(step_us[begun:])
    for at, step in enumerate(complete.tolist()):
        later = StepRole.OUTLIER if slow[at] else StepRole.STEADY
        roles[step] = StepRole.WARM_UP if at < begun else later
    return roles


def _slow_above_us(step_us: Floats) -> float:
    """The bound above which a step is slow beside these; without any, none is."""
    if not len(step_us):
        return np.inf
    middle_us = median(step_us)
    deviation_us = median(np.abs(step_us - middle_us))
    return float(max(SLOW_FACTOR * middle_us, middle_us + SLOW_DEVIATIONS * deviation_us))


def steady_steps(measured: Timeline) -> Ints:
    """Indices of the steps that medians are of: the steady ones; all where none is."""
    return steady_among(step_roles(measured))


def steady_among(roles: Sequence[StepRole]) -> Ints:
    """The same, of steps of these `roles`."""
    steady = np.array([role == StepRole.STEADY for role in roles])
    return np.flatnonzero(steady) if steady.any() else np.arange(len(steady))
