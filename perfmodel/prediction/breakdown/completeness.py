"""What a recording cannot tell, and which figures that touches: said before any answer from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
    ranks = trace.ranks
    if not ranks:
        return []
    gaps = []
    if tools := [rank.tool for rank in ranks if rank.tool]:
        what = f"this is {tools[0]}, which has no types of inputs, sizes of collectives or memory"
        gaps.append(Gap(what, ("rates", "communication", "memory"), count=len(tools)))
    if without := sum(not len(rank.of(Category.CPU_OP)) for rank in ranks):
        whose = "" if without == len(ranks) else f" of {without} ranks"
        what = f"no operator{whose} was recorded"
        gaps.append(Gap(what, ("operators", "modules", "rates", "host overheads"), count=without))
    lost, of = (sum(each) for each in zip(*map(lost_launches, ranks), strict=True))
    if lost:
        what = f"{lost} of {of} kernel launches have no kernel"
        gaps.append(Gap(what, ("GPU time", "idle time", "gains"), count=lost))
    gaps += [*_in_graph_launches(trace, laid_back)]
    if without < len(ranks):
        gaps += [*_untied(trace)]
    held = min(links.recorded_frac for links in trace.links)
    if held < MIN_RECORDED_FRAC:
        what = f"{100 * (1 - held):.0f} % of the operators that ran are not in the file"
        gaps.append(Gap(what, ("operators", "host time", "idle causes"), share=1 - held))
    gaps += [*_no_shapes(trace)]
    size = max(rank.world_size or 0 for rank in ranks)
    meets = graph is None or bool((graph.nodes_.scope == Scope.COMM).any())
    if size > len(ranks) and meets:
        what = f"{size - len(ranks)} of {size} ranks are not here"
        missing = ("communication", "waiting for other ranks")
        gaps.append(Gap(what, missing, count=size - len(ranks)))
    return gaps


def _in_graph_launches(trace: Trace, laid_back: Sequence[LaidBack | None]) -> Iterator[Gap]:
    busy_us, step_us = _busy_us(trace, in_graphs)
    share = busy_us / step_us if step_us else 0.0
    if share < LEAST_FRAC:
        return
    what = f"{100 * share:.0f} % of this step is in graph launches: "
    found = [each for each in laid_back if each]
    if found:
        laid = min(each.frac if each else 0.0 for each in laid_back)
        of = next((f" of {each.source}" for each in found if each.source), " that ran without one")
        what += f"{100 * laid:.0f} % of that is laid back onto operators{of}, by the kernels' order"
        yield Gap(what, ("host time", "rates"), share=share)
    else:
        touches = ("operators", "modules", "rates")
        yield Gap(what + "no operator can be blamed", touches, share=share)


def _untied(trace: Trace) -> Iterator[Gap]:
    untied_us, _ = _busy_us(trace, lambda _, links: links.device_launch < 0)
    all_us, _ = _busy_us(trace, lambda _, links: links.device_launch >= NONE)
    share = untied_us / all_us if all_us else 0.0
    if share >= LEAST_UNTIED_FRAC:
        what = f"the launches of {100 * share:.0f} % of the GPU time are not in the file"
        yield Gap(what, ("operators", "idle causes"), share=share)


def _busy_us(trace: Trace, chosen: Callable[[RankTrace, Links], Mask]) -> tuple[float, float]:
    """Of all ranks: time within steps in which chosen device operations run, and of the steps."""
    busy_us = step_us = 0.0
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        clock = StepClock(links, range(len(links.steps)))
        rows = links.device_rows[chosen(rank, links)]
        busy = interval_union(rank.start_us[rows], rank.end_us[rows])
        busy_us += float(clock.within_us(*busy).sum())
        step_us += clock.total_us
    return busy_us, step_us


def _no_shapes(trace: Trace) -> Iterator[Gap]:
    with_ops = [rank for rank in trace.ranks if len(rank.of(Category.CPU_OP))]
    known = [
        rank.rank in trace.execution_traces
        or bool((rank.input_shapes[rank.of(Category.CPU_OP)] != NONE).any())
        for rank in with_ops
    ]
    if known and not any(known):
        count = sum(len(rank.of(Category.CPU_OP)) for rank in with_ops)
        yield Gap("no shapes were recorded", ("rates", "kernels on other hardware"), count=count)
