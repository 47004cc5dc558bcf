"""What a recording cannot tell, and which figures that touches: said before any answer from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perfmodel.arrays import Mask
from perfmodel.graph.build import MIN_RECORDED_FRAC
from perfmodel.graph.kinds import Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.prediction.breakdown.captured import LaidBack, in_graphs
from perfmodel.prediction.breakdown.hotspots import StepClock
from perfmodel.timeline.idle import interval_union
from perfmodel.trace import Trace
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.recording import lost_launches

LEAST_FRAC = 0.01
"""Of a step in graph launches: less is not worth a line."""
LEAST_UNTIED_FRAC = 0.1
"""assumed: of the device's time; what was launched before the recording began is less."""


@dataclass(frozen=True)
class Gap:
    """Something that a recording does not hold."""

    what: str
    touches: tuple[str, ...]
    """The figures that are unsure, or missing."""
    share: float | None = None
    """Of what there is, 0 to 1."""
    count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        size = {"count": self.count} if self.share is None else {"share": round(self.share, 6)}
        return {"what": self.what, **size, "touches": list(self.touches)}


def completeness_line(gaps: Sequence[Gap]) -> str:
    """All of it in one line; empty of a whole recording."""
    parts = [f"{gap.what} (touches {', '.join(gap.touches)})" for gap in gaps]
    return f"not whole: {'; '.join(parts)}" if parts else ""


def completeness(
    trace: Trace,
    graph: ExecutionGraph | None = None,
    laid_back: Sequence[LaidBack | None] = (),
) -> list[Gap]:
    """What the profiles of a trace cannot tell; nothing of a whole one, nor of shapes alone.

    `laid_back` says, by rank, where the kernels of its graphs are known of an eager run.
    """
    if not trace.ranks:
        return []
    recording = _Recording(trace, graph, laid_back)
    return [gap for check in _CHECKS for gap in check(recording)]


class _Recording(NamedTuple):
    trace: Trace
    graph: ExecutionGraph | None
    laid_back: Sequence[LaidBack | None]


def _other_tool(recording: _Recording) -> Iterator[Gap]:
    tools = [rank.tool for rank in recording.trace.ranks if rank.tool]
    if tools:
        what = f"this is {tools[0]}, which has no types of inputs, sizes of collectives or memory"
        yield Gap(what, ("rates", "communication", "memory"), count=len(tools))


def _lost_kernels(recording: _Recording) -> Iterator[Gap]:
    pairs = [lost_launches(rank) for rank in recording.trace.ranks]
    lost, of = (sum(each) for each in zip(*pairs, strict=True))
    if lost:
        what = f"{lost} of {of} kernel launches have no kernel"
        yield Gap(what, ("GPU time", "idle time", "gains"), count=lost)


def _in_graph_launches(recording: _Recording) -> Iterator[Gap]:
    busy_us, step_us = _busy_us(recording.trace, in_graphs)
    share = busy_us / step_us if step_us else 0.0
    if share < LEAST_FRAC:
        return
    what = f"{100 * share:.0f} % of this step is in graph launches: "
    found = [each for each in recording.laid_back if each]
    if found:
        laid = min(each.frac if each else 0.0 for each in recording.laid_back)
        of = next((f" of {each.source}" for each in found if each.source), " that ran without one")
        what += f"{100 * laid:.0f} % of that is laid back onto operators{of}, by the kernels' order"
        yield Gap(what, ("host time", "rates"), share=share)
    else:
        yield Gap(
            what + "no operator can be blamed", ("operators", "modules", "rates"), share=share
        )


def _untied(recording: _Recording) -> Iterator[Gap]:
    if not any(len(rank.of(Category.CPU_OP)) for rank in recording.trace.ranks):
        return
    untied_us, _step_us = _busy_us(recording.trace, lambda _, links: links.device_launch < 0)
    all_us, _step_us = _busy_us(recording.trace, lambda _, links: links.device_launch >= NONE)
    share = untied_us / all_us if all_us else 0.0
    if share >= LEAST_UNTIED_FRAC:
        what = f"the launches of {100 * share:.0f} % of the GPU time"
        yield Gap(f"{what} are not in the file", ("operators", "idle causes"), share=share)


def _busy_us(trace: Trace, chosen: Callable[[RankTrace, Links], Mask]) -> tuple[float, float]:
    """Of all ranks: time within steps in which chosen device operations run, and of the steps."""
    busy_us = step_us = 0.0
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        clock = StepClock(links, range(len(links.steps)))
        rows = links.device_rows[chosen(rank, links)]
        busy_us += float(
            clock.within_us(*interval_union(rank.start_us[rows], rank.end_us[rows])).sum()
        )
        step_us += clock.total_us
    return busy_us, step_us


def _no_operators(recording: _Recording) -> Iterator[Gap]:
    without = [rank for rank in recording.trace.ranks if not len(rank.of(Category.CPU_OP))]
    if without:
        whose = "" if len(without) == len(recording.trace.ranks) else f" of {len(without)} ranks"
        touches = ("operators", "modules", "rates", "host overheads")
        yield Gap(f"no operator{whose} was recorded", touches, count=len(without))


def _sampled(recording: _Recording) -> Iterator[Gap]:
    held = min(links.recorded_frac for links in recording.trace.links)
    if held < MIN_RECORDED_FRAC:
        what = f"{100 * (1 - held):.0f} % of the operators that ran are not in the file"
        yield Gap(what, ("operators", "host time", "idle causes"), share=1 - held)


def _no_shapes(recording: _Recording) -> Iterator[Gap]:
    ops = [rank.of(Category.CPU_OP) for rank in recording.trace.ranks]
    known = [
        rank.rank in recording.trace.execution_traces
        or bool((rank.input_shapes[rows] != NONE).any())
        for rank, rows in zip(recording.trace.ranks, ops, strict=True)
        if len(rows)
    ]
    if known and not any(known):
        touches = ("rates", "kernels on other hardware")
        yield Gap("no shapes were recorded", touches, count=sum(map(len, ops)))


def _missing_ranks(recording: _Recording) -> Iterator[Gap]:
    trace, graph = recording.trace, recording.graph
    size = max((rank.world_size or 0 for rank in trace.ranks), default=0)
    missing = size - len(trace.ranks)
    meets = graph is None or bool((graph.nodes_.scope == Scope.COMM).any())
    if missing > 0 and meets:
        what = f"{missing} of {size} ranks are not here"
        yield Gap(what, ("communication", "waiting for other ranks"), count=missing)


_CHECKS = (
    *(_other_tool, _no_operators, _lost_kernels, _in_graph_launches, _untied, _sampled),
    *(_no_shapes, _missing_ranks),
)
