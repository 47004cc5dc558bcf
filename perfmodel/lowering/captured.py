"""Which ops of a step CUDA graphs launch: all in a row that ask nothing of the host.

What stays alone is launched op by op: what brings a batch, whose keys are as many as they happen to
be; what the host waits for, does itself or hands over to a tier; a pipeline's work for later steps.
All but the pipeline's, which is no part of the step, cut the row: behind them another graph begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import Note
from perfmodel.lowering.arguments import OWN_STREAM
from perfmodel.lowering.lower import Lowered
from perfmodel.ops.graph import DEVICE_WIDE, INPUT, NO_OP, WAITING

BATCH, WAITS, AHEAD = "bring a batch", "wait for the device or the host", "are for later steps"


@dataclass(frozen=True)
class Capture:
    """Per outermost op the graph that could launch it, counted from 0, ops that none can left out;
    `graphs`: those that do. `notes` say what they hold."""

    possible: dict[int, int]
    graphs: dict[int, int]
    notes: tuple[Note, ...]

    @classmethod
    def of(cls, lowered: Lowered, tops: Sequence[int], launching: Sequence[bool]) -> Capture:
        """Of the outermost ops `tops` in order; `launching`: whether each starts anything."""
        alone, started = _launched_alone(lowered), dict(zip(tops, launching, strict=True))
        possible = _numbered(started, alone)
        if not lowered.graph.cuda_graphs:
            return cls(possible, {}, ())
        return cls(possible, possible, _notes(started, possible, alone))


def _launched_alone(lowered: Lowered) -> dict[int, str]:
    """Outermost ops that no graph can hold, to the reason."""
    ops = lowered.graph.ops
    outermost = list(range(len(ops)))
    alone: dict[int, str] = {}
    for index, op in enumerate(ops):
        if op.parent != NO_OP:
            outermost[index] = outermost[op.parent]
        if OWN_STREAM in op.attributes:
            alone[outermost[index]] = AHEAD
        elif op.phase == INPUT:
            alone.setdefault(outermost[index], BATCH)
        elif op.name in WAITING or DEVICE_WIDE.items() <= op.attributes.items():
            alone.setdefault(outermost[index], WAITS)
    for piece, top in zip(lowered.pieces, lowered.top_level.tolist(), strict=True):
        if piece.blocks or piece.kind in ("offload", "host"):
            alone.setdefault(top, WAITS)
    return alone


def _numbered(started: dict[int, bool], alone: dict[int, str]) -> dict[int, int]:
    """Ops to graphs, none of which begins with what starts nothing."""
    numbers: dict[int, int] = {}
    count, is_open = 0, False
    for top, starts in started.items():
        if top in alone:
            is_open = is_open and alone[top] == AHEAD
            continue
        numbers[top] = count - is_open
        if starts:
            count, is_open = numbers[top] + 1, True
    return numbers


def _notes(
    started: dict[int, bool], graphs: dict[int, int], alone: dict[int, str]
) -> tuple[Note, ...]:
    starting = [top for top, starts in started.items() if starts]
    held = [graphs[top] for top in starting if top in graphs]
    left = Counter(alone[top] for top in starting if top not in graphs and top in alone)
    because = ", ".join(f"{count} that {why}" for why, count in left.most_common())
    told = f"CUDA graphs: {len(set(held))} hold {len(held)} calls of a step"
    return (Note(f"{told}; launched alone: {because}" if because else told),)
