"""Host time that no operator stands for, as a profile measured it: Python between operators, data
loading, what comes before the first operator of a step and behind the last."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.graph.kinds import Cause, NodeKind
from perfmodel.graph.ops import Op
from perfmodel.graph.types import ExecutionGraph
from perfmodel.trace.categories import DATA_LOADING_NAME
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.steps import MAIN

_LAUNCHES_NOTHING = (NodeKind.HOST, NodeKind.WAIT)


@dataclass(frozen=True)
class Stretch:
    """A stretch of the main thread's time within a step, waiting excluded."""

    row: int
    """The first row of the trace that begins no earlier."""
    step: int
    duration_us: float
    cause: Cause
    """`DATA_LOADING`, or `HOST_T1` for what is between operators."""
    label: str
    at_bounds: bool
    """Whether no operator of its step comes before it, or none behind it."""


@dataclass(frozen=True)
class HostTimes:
    """The stretches of one rank that a prediction takes over, in order of time."""

    stretches: tuple[Stretch, ...] = ()
    ratio: float = 1.0
    """How much longer the target's host takes."""
    every_gap: bool = False
    """Whether they are all there are: where none is, operators follow without a gap."""

    def step_us(self, cause: Cause) -> float:
        """Mean per step of the stretches of a cause, on the target's host."""
        steps = len({each.step for each in self.stretches})
        own = sum(each.duration_us for each in self.stretches if each.cause == cause)
        return own * self.ratio / steps if steps else 0.0


def measured_stretches(
    rank: RankTrace, links: Links, measured: ExecutionGraph
) -> tuple[Stretch, ...]:
    """Those of a rank, in order of time; `measured` is its graph as it was recorded.

    Of data loading the operators belong to the stretch too, but for their launch calls.
    """
    nodes = measured.nodes_
    main = [at for at, name in enumerate(measured.resources) if name.endswith(f"/{MAIN}")]
    chosen = np.flatnonzero(
        np.isin(nodes.resource, main)
        & np.isin(nodes.kind, _LAUNCHES_NOTHING)
        & np.isin(nodes.cause, (Cause.HOST_T1, Cause.DATA_LOADING))
        & (nodes.duration_us > 0)
    )
    chosen = chosen[np.argsort(nodes.start_us[chosen], kind="stable")]
    begun = nodes.start_us[chosen]
    step_of = links.steps.of_time(begun)
    rows = np.searchsorted(rank.start_us, begun, side="left")
    first, last = _bounds(rank, links)
    return tuple(
        Stretch(
            row,
            step,
            float(nodes.duration_us[node]),
            Cause(int(nodes.cause[node])),
            measured.labels[node] or measured.annotations[node],
            row <= first.get(step, row) or row > last.get(step, row),
        )
        for node, step, row in zip(chosen.tolist(), step_of.tolist(), rows.tolist(), strict=True)
        if step >= 0 and nodes.start_us[node] < links.steps.end_us[step]
    )


def _bounds(rank: RankTrace, links: Links) -> tuple[dict[int, int], dict[int, int]]:
    """Per step the rows of its first and its last outermost operator on the main thread."""
    threads = [thread for thread, role in links.roles.items() if role == MAIN]
    ops = np.sort(links.top_ops[np.isin(rank.thread[links.top_ops], threads)])
    steps = links.steps.of_time(rank.start_us[ops]).tolist()
    last = dict(zip(steps, ops.tolist(), strict=True))
    first = dict(zip(reversed(steps), reversed(ops.tolist()), strict=True))
    return first, last


def longer_than(times: HostTimes, usual_us: float) -> HostTimes:
    """Data loading, what is at the bounds of steps, and what takes longer than `usual_us` on the
    target's host; the other gaps are an overhead profile's."""
    kept = tuple(
        each
        for each in times.stretches
        if each.cause == Cause.DATA_LOADING
        or each.at_bounds
        or each.duration_us * times.ratio > usual_us
    )
    return replace(times, stretches=kept, every_gap=False)


def loads_data(op: Op) -> bool:
    """Whether an operator belongs to the loading of data, by the annotation around it."""
    return DATA_LOADING_NAME.search(op.attributes.get("annotation", "")) is not None
