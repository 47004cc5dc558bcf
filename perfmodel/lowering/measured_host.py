"""Host time that no operator stands for, as a profile measured it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.ops.graph import Op
from perfmodel.timeline.graph.kinds import Cause, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace.categories import DATA_LOADING_NAME
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.window import MAIN_THREAD

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
    op: int
    """Row of the thread's next outermost operator in its step, or -1."""
    at_bounds: bool = False
    """Whether no operator of its step comes before it, or none behind it."""

    def is_left(self, rows: Collection[int]) -> bool:
        """Whether it is there where of all operators those in `rows` are: what is between operators
        goes with the one behind it."""
        return self.cause == Cause.DATA_LOADING or self.at_bounds or self.op in rows


@dataclass(frozen=True)
class HostTimes:
    """All stretches of one rank, in order of time."""

    stretches: tuple[Stretch, ...] = ()
    ratio: float = 1.0
    """How much longer the target's host takes."""

    def with_loading(self, ratio: float) -> HostTimes:
        """With data loading `ratio` times as long."""
        scaled = tuple(
            replace(each, duration_us=each.duration_us * ratio)
            if each.cause == Cause.DATA_LOADING
            else each
            for each in self.stretches
        )
        return replace(self, stretches=scaled)

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
    main = [at for at, name in enumerate(measured.resources) if name.endswith(f"/{MAIN_THREAD}")]
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
    threads = [thread for thread, role in links.roles.items() if role == MAIN_THREAD]
    ops = np.sort(links.top_ops[np.isin(rank.thread[links.top_ops], threads)])
    op_step = links.steps.of_time(rank.start_us[ops]).tolist()
    behind = np.searchsorted(ops, rows, side="left").tolist()
    stretches = []
    for node, step, row, at in zip(
        chosen.tolist(), step_of.tolist(), rows.tolist(), behind, strict=True
    ):
        if step < 0 or nodes.start_us[node] >= links.steps.end_us[step]:
            continue
        is_last = at == len(ops) or op_step[at] != step
        is_first = at == 0 or op_step[at - 1] != step
        label = measured.labels[node] or measured.annotations[node]
        cause, op = Cause(int(nodes.cause[node])), NONE if is_last else int(ops[at])
        taken_us = float(nodes.duration_us[node])
        stretches.append(Stretch(row, step, taken_us, cause, label, op, is_first or is_last))
    return tuple(stretches)


def loads_data(op: Op) -> bool:
    """Whether an operator belongs to the loading of data, by the annotation around it."""
    return DATA_LOADING_NAME.search(op.attributes.get("annotation", "")) is not None
