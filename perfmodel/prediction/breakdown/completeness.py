"""What a recording cannot tell: said before any answer from it, with the figures it touches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.arrays import has_code
from perfmodel.prediction.breakdown.hotspots import StepClock
from perfmodel.timeline.critical_path import interval_union
from perfmodel.timeline.graph.build import MIN_RECORDED_FRAC
from perfmodel.timeline.graph.kinds import IN_OPERATOR, NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace
from perfmodel.trace.categories import GRAPH_LAUNCH_CALL, Category
from perfmodel.trace.columns import NONE
from perfmodel.trace.recording import lost_launches
from perfmodel.trace.window import OPTIMIZER_STEP

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


def incomplete(gaps: Sequence[Gap]) -> list[str]:
    """All of it in one line; none of a whole recording."""
    parts = [f"{gap.what} (affects {', '.join(gap.touches)})" for gap in gaps]
    return [f"incomplete recording: {'; '.join(parts)}"] * bool(parts)


def completeness(trace: Trace, graph: ExecutionGraph | None = None) -> list[Gap]:
    """What the profiles of a trace cannot tell; nothing of a whole one, nor of shapes alone."""
    ranks = trace.ranks
    if not ranks:
        return []
    gaps = []
    if tools := [rank.tool for rank in ranks if rank.tool]:
        what = f"this is {tools[0]}, which has no types of inputs, sizes of collectives or memory"
        gaps.append(Gap(what, ("rates", "communication", "memory"), count=len(tools)))
    with_ops = [rank for rank in ranks if len(rank.of(Category.CPU_OP))]
    if without := len(ranks) - len(with_ops):
        whose = f" of {without} ranks" if with_ops else ""
        what = f"no operator{whose} was recorded"
        gaps.append(Gap(what, ("operators", "modules", "rates", "host overheads"), count=without))
    notes = ranks[0].of(Category.ANNOTATION) if trace.links[0].steps.is_window else ()
    made = Counter(name for name in map(ranks[0].text, notes) if OPTIMIZER_STEP.match(name))
    for name, calls in made.most_common(1):
        what = f"nothing marks steps, though {calls} were made: --steps-by '{name}'"
        gaps.extend([Gap(what, ("step", "medians"), count=calls)] * (calls > 1))
    lost, of = (sum(each) for each in zip(*map(lost_launches, ranks), strict=True))
    if lost:
        what = f"{lost} of {of} kernel launches have no kernel"
        gaps.append(Gap(what, ("GPU time", "idle time", "gains"), count=lost))
    busy_us = np.zeros(3)  # of graphs, of what no launch is known of, of all
    step_us = 0.0
    for rank, links in zip(ranks, trace.links, strict=True):
        clock, launch = StepClock(links, range(len(links.steps))), links.device_launch
        step_us += clock.total_us
        in_graphs = rank.name_matches(GRAPH_LAUNCH_CALL)[launch] & (launch >= 0)
        for at, chosen in enumerate((in_graphs, launch < 0, launch >= NONE)):
            rows = links.device_rows[chosen]
            busy = interval_union(rank.start_us[rows], rank.end_us[rows])
            busy_us[at] += clock.within_us(*busy).sum()
    share = float(busy_us[0] / step_us) if step_us else 0.0
    if share >= LEAST_FRAC:
        what = f"{100 * share:.0f} % of this step is in graph launches: no operator can be blamed"
        gaps.append(Gap(what, ("operators", "modules", "rates"), share=share))
    share = float(busy_us[1] / busy_us[2]) if with_ops and busy_us[2] else 0.0
    if share >= LEAST_UNTIED_FRAC:
        what = f"the launches of {100 * share:.0f} % of the GPU time are not in the file"
        gaps.append(Gap(what, ("operators", "idle causes"), share=share))
    held = min(links.recorded_frac for links in trace.links)
    if held < MIN_RECORDED_FRAC:
        what = f"{100 * (1 - held):.0f} % of the operators that ran are not in the file"
        gaps.append(Gap(what, ("operators", "host time", "idle causes"), share=1 - held))
    if with_ops and not any(
        rank.rank in trace.execution_traces
        or (rank.input_shapes[rank.of(Category.CPU_OP)] != NONE).any()
        for rank in with_ops
    ):
        count = sum(len(rank.of(Category.CPU_OP)) for rank in with_ops)
        missing = ("rates", "kernels on other hardware")
        gaps.append(Gap("no shapes were recorded", missing, count=count))
    size = max(rank.world_size or 0 for rank in ranks)
    meets = graph is None or bool((graph.nodes_.scope == Scope.COMM).any())
    if size > len(ranks) and meets:
        what = f"{size - len(ranks)} of {size} ranks are not here"
        missing = ("communication", "waiting for other ranks")
        gaps.append(Gap(what, missing, count=size - len(ranks)))
    return gaps


def lacks_work(graph: ExecutionGraph) -> bool:
    """Whether no operation of a device is there, though some were launched, or no operator either:
    what would help nobody can say."""
    nodes = graph.nodes_
    if graph.on_device.any():
        return False
    launched = (nodes.kind == NodeKind.LAUNCH).any()
    return bool(launched or not has_code(nodes.cause, IN_OPERATOR).any())


def unrecorded(trace: Trace, graph: ExecutionGraph) -> str:
    """Of a trace that lacks its work, why nothing can be said of what would help; else ''."""
    if not lacks_work(graph):
        return ""
    if launches := sum(len(links.launches) for links in trace.links):
        calls = "launch call" if launches == 1 else "launch calls"
        return f"no GPU work was recorded, but {launches:,} {calls}: the GPU's time is unknown"
    return (
        "no operator and no GPU work was recorded: did it run in another process or thread, or "
        "outside of the recording?"
    )
