"""How far the host is ahead of the device, and what part of a step nobody can explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfmodel.arrays import has_code
from perfmodel.graph.kinds import NOT_EXPLAINED, Cause, NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.timeline.critical_path import Piece, TimelinePath
from perfmodel.trace import Trace
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.units import human_us

IN_OPERATOR = (Cause.HOST_T2, Cause.HOST_T3, Cause.HOST_T5, Cause.HOST_OP_WITHOUT_LAUNCH)
"""Host time that an operator was recorded for."""


def lacks_work(graph: ExecutionGraph) -> bool:
    """Whether no operation of a device is there, though some were launched, or no operator either:
    what would help nobody can say."""
    nodes = graph.nodes_
    if graph.on_device.any():
        return False
    launched = (nodes.kind == NodeKind.LAUNCH).any()
    return bool(launched or not has_code(nodes.cause, IN_OPERATOR).any())


class Unrecorded(NamedTuple):
    """Of a trace that lacks its work: why nothing can be said of what would help."""

    why: str = ""
    """In a line; '' of a trace that does not."""
    device: str = ""
    """What it ran on, as far as that is known."""
    is_said: bool = False
    """Whether the warnings of the trace say it already."""

    @classmethod
    def of(cls, trace: Trace, graph: ExecutionGraph) -> Unrecorded:
        if not lacks_work(graph):
            return cls()
        named = [device.name for rank in trace.ranks for device in rank.devices if device.name]
        gpu = [*named, "gpu"][0]
        launches = sum(len(links.launches) for links in trace.links)
        if launches:
            calls = "launch call" if launches == 1 else "launch calls"
            why = f"no GPU work was recorded, but {launches:,} {calls}: the GPU's time is unknown"
            return cls(why, gpu, is_said=True)
        if any(len(rank.memory) for rank in trace.ranks):
            is_on_gpu = any((rank.memory.device_type > 0).any() for rank in trace.ranks)
            why = "no operator and no GPU work was recorded, only allocations"
            return cls(why, gpu if is_on_gpu else trace.device, is_said=True)
        counts = [
            (sum(len(rank.of(kind)) for rank in trace.ranks), words)
            for kind, words in (
                (Category.RUNTIME, "runtime calls"),
                (Category.PYTHON, "Python functions"),
                (Category.ANNOTATION, "annotations"),
            )
        ]
        rest = " and ".join(f"{words} ({count:,})" for count, words in counts if count)
        why = (
            f"no operator and no GPU work was recorded, only {rest or 'marks of steps'}: "
            "did it run in another process or thread, or outside of the recording?"
        )
        return cls(why, [*named, trace.device][0])


class QueueDepth(NamedTuple):
    """The launch queue within one step, all streams together."""

    step: str
    mean_count: float
    max_count: int
    empty_frac: float
    """Share of the step in which nothing waited: the host was no further than the device."""


def queue_depths(rank: RankTrace, links: Links) -> list[QueueDepth]:
    """One per step; none of a rank without launched operations.

    An operation waits from the end of its launch call to its own start; one that begins before
    the call ends does not wait. All of a graph launch wait from the end of the one call.
    """
    launched = links.device_launch >= 0
    if not launched.any():
        return []
    leaves = rank.start_us[links.device_rows[launched]]
    enters = np.minimum(rank.end_us[links.device_launch[launched]], leaves)
    at_us = np.concatenate([leaves, enters])
    change = np.repeat([-1, 1], len(leaves))
    order = np.lexsort((change, at_us))
    at_us, change = at_us[order], change[order]
    # Where an operation enters and leaves at once, the sum would dip: it never waited.
    depth = np.maximum(np.cumsum(change), 0)
    length = np.diff(at_us, append=at_us[-1])
    waited = np.concatenate([[0.0], np.cumsum(depth * length)[:-1]])
    empty = np.concatenate([[0.0], np.cumsum((depth == 0) * length)[:-1]])
    steps, depths = links.steps, []
    bounds = zip(steps.names, steps.start_us.tolist(), steps.end_us.tolist(), strict=True)
    for name, low, high in bounds:
        waited_us, empty_us = (
            float(np.subtract(*np.interp([high, low], at_us, total))) for total in (waited, empty)
        )
        step_us = max(high - low, np.finfo(float).tiny)
        empty_us += float(max(at_us[0] - low, 0.0) + max(high - at_us[-1], 0.0))
        first, last = np.searchsorted(at_us, [low, high])
        most = int(depth[max(first - 1, 0) : last].max(initial=0))
        depths.append(QueueDepth(name, waited_us / step_us, most, min(empty_us / step_us, 1.0)))
    return depths


MAX_UNEXPLAINED_FRAC = 0.05
"""A step of which more is unexplained is said to be so."""
MAX_ERROR_FRAC = 0.015
"""A replay further off than this does not follow from its graph."""


@dataclass(frozen=True)
class Unexplained:
    """What of a step's critical path waited for something that was not recorded."""

    step: str
    rank: int
    frac: float
    """Share of the step, 0 to 1."""
    longest: str
    """The longest of these waits, in words; empty where there is none."""

    @classmethod
    def of(cls, graph: ExecutionGraph, mark: int, path: TimelinePath) -> Unexplained:
        """That of the step in row `mark` of `graph.marks`, whose critical path is `path`."""
        name, rank = graph.marks.name[mark], int(graph.marks.rank[mark])
        waits = [piece for piece in path.plain if piece[2] in NOT_EXPLAINED]
        if not waits:
            return cls(name, rank, 0.0, "")
        step_us = path.plain[-1][4] - path.plain[0][3]
        taken_us = sum(end_us - start_us for *_, start_us, end_us in waits)
        worst = Piece(*max(waits, key=lambda piece: piece[4] - piece[3]))
        missing = worst.cause == Cause.RECORDING_MISSING
        where = graph.resources[int(graph.nodes_.resource[worst.node])].partition("/")[2]
        label = graph.labels[worst.node].removeprefix("wait before ")
        length = human_us(worst.end_us - worst.start_us)
        reason = " (work that was not recorded)" if missing else ""
        longest = f"{length} before {label[:60]!r} on {where}{reason}"
        return cls(name, rank, taken_us / step_us, longest)


def unexplained_warnings(steps: Sequence[Unexplained]) -> list[str]:
    """One line per rank of which a step is unexplained to more than `MAX_UNEXPLAINED_FRAC`."""
    lines = []
    for rank in dict.fromkeys(step.rank for step in steps):
        many = [s for s in steps if s.rank == rank and s.frac > MAX_UNEXPLAINED_FRAC]
        if many:
            worst = max(many, key=lambda step: step.frac)
            others = f" (and much of {len(many) - 1} more)" if len(many) > 1 else ""
            lines.append(
                f"rank {rank}: {worst.frac:.1%} of {worst.step}{others} is unexplained: "
                f"the longest wait is {worst.longest}. A replay keeps it as measured; only "
                "--scale unexplained=FACTOR changes it"
            )
    return lines


def error_warnings(rank: int, steps: Sequence[tuple[str, float, float]]) -> list[str]:
    """One line where the replay of a step, as (name, predicted, measured), is off by more than
    `MAX_ERROR_FRAC`."""
    off = [(name, us / true_us - 1) for name, us, true_us in steps if true_us]
    off = [(name, error) for name, error in off if abs(error) > MAX_ERROR_FRAC]
    if not off:
        return []
    name, error = max(off, key=lambda each: abs(each[1]))
    others = f" (of {len(off)} such steps)" if len(off) > 1 else ""
    return [
        f"rank {rank}: the replay of {name}{others} is {error:+.1%} off what was measured, for "
        "a reason that stays unexplained: treat what-ifs of it with care"
    ]
