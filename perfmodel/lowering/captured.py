"""Which ops of a step CUDA graphs launch: all in a row that ask nothing of the host.

What stays alone is launched op by op: what brings a batch, whose keys are as many as they happen to
be; what the host waits for, does itself or hands over to a tier; a pipeline's work for later steps.
All but the pipeline's, which is no part of the step, cut the row: behind them another graph begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.errors import Note
from perfmodel.lowering.arguments import OWN_STREAM
from perfmodel.lowering.lower import Lowered
from perfmodel.ops.graph import DEVICE_WIDE, INPUT, WAITING, outermost_of

BATCH, WAITS, AHEAD = "bring a batch", "wait for the device or the host", "are for later steps"


@dataclass(frozen=True)
class Capture:
    """Outermost ops that a CUDA graph can launch, to whether one begins with them; `graphs`: those
    that one does launch. `notes` say what they hold."""

    possible: dict[int, bool]
    graphs: dict[int, bool]
    notes: tuple[Note, ...]

    @classmethod
    def of(cls, lowered: Lowered, launching: Mapping[int, bool]) -> Capture:
        """`launching`: the outermost ops in order, to whether they start anything."""
        alone = _launched_alone(lowered)
        possible = _in_graphs(lowered, launching, alone)
        if not lowered.graph.cuda_graphs:
            return cls(possible, {}, ())
        return cls(possible, possible, _notes(launching, possible, alone))


def _launched_alone(lowered: Lowered) -> dict[int, str]:
    """Outermost ops that no graph can hold, to the reason."""
    ops = lowered.graph.ops
    outermost = outermost_of(ops)
    alone: dict[int, str] = {}
    for index, op in enumerate(ops):
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


def _in_graphs(
    lowered: Lowered, launching: Mapping[int, bool], alone: dict[int, str]
) -> dict[int, bool]:
    """Ops that graphs can launch; each begins with what starts something, and ends with a step."""
    begins: dict[int, bool] = {}
    is_open, step = False, None
    for top, starts in launching.items():
        is_open = is_open and lowered.graph.ops[top].step == step
        step = lowered.graph.ops[top].step
        if top in alone:
            is_open = is_open and alone[top] == AHEAD
            continue
        begins[top] = starts and not is_open
        is_open = is_open or starts
    return begins


def _notes(
    launching: Mapping[int, bool], graphs: dict[int, bool], alone: dict[int, str]
) -> tuple[Note, ...]:
    starting = [top for top, starts in launching.items() if starts]
    held = sum(top in graphs for top in starting)
    left = Counter(alone[top] for top in starting if top in alone)
    because = ", ".join(f"{count} that {why}" for why, count in left.most_common())
    told = f"CUDA graphs: {sum(graphs.values())} hold {held} calls"
    return (Note(f"{told}; launched alone: {because}" if because else told),)
