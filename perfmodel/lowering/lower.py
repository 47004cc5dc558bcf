"""`lower`: an op graph to the pieces that its ops become on a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import NO_OP, Argument, Op, OpGraph, Tensor, tensors_in
from perfmodel.hardware import Device
from perfmodel.lowering.arguments import on_host, tensor_bytes
from perfmodel.lowering.context import completed
from perfmodel.lowering.names import rule_of
from perfmodel.lowering.piece import Piece, Untold
from perfmodel.lowering.precision import in_units
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.fallback import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
Target = Literal["cuda", "rocm", "cpu"]
CPU: Target = "cpu"
_TOLD = (
    *("hash_size", "dim", "batch", "pooling", "unique_rows", "alpha", "copy"),
    *("collective", "group_size", "dtype", "in_elements", "out_elements"),
)
"""Attributes of an op that a rule may read."""


@dataclass(frozen=True)
class Lowered:
    """All pieces of an op graph in order, as rows of the measurement table, and whose they are."""

    graph: OpGraph
    target: Target
    pieces: tuple[Piece, ...]
    owner: Ints
    """Per piece: index of the op whose rule made it."""
    top_level: Ints
    """Per piece: index of the outermost op around its owner."""
    answered_by: Ints
    """Per op of the graph: index of the op that lowered it, itself or a caller, or -1 where only
    what it calls does."""
    unknown: Counter[str]
    """Names of the ops that the fallback stands in for, and how often."""

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def rows(self) -> Rows:
        """The pieces as rows; `launches` of a piece are one row."""
        return Rows.of(
            [
                {"op": p.op, "dtype": p.dtype, "direction": p.direction, **p.dims}
                for p in self.pieces
            ]
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What the fallback stands in for, and what is guessed."""
        notes = [
            f"{count} calls of {name} have no rule on {self.target}: taken to stream their operands"
            for name, count in self.unknown.most_common()
        ]
        guessed = Counter(
            self.graph.ops[owner].name
            for piece, owner in zip(self.pieces, self.owner.tolist(), strict=True)
            if piece.guessed and piece.op != UNKNOWN
        )
        notes += [
            f"{count} pieces of {name} have sizes that the graph does not tell: guessed"
            for name, count in guessed.most_common()
        ]
        return tuple(notes)

    def to_frame(self) -> pd.DataFrame:
        """One row per piece as a pandas frame: owner, kind, stream, op, dtype, direction, dims."""
        import pandas as pd

        ops, owners = self.graph.ops, self.owner.tolist()
        return pd.DataFrame(
            {
                "owner": [ops[at].name for at in owners],
                "top_level": [ops[at].name for at in self.top_level.tolist()],
                "phase": [ops[at].phase for at in owners],
                "kind": [piece.kind for piece in self.pieces],
                "stream": [piece.stream for piece in self.pieces],
                "blocks": [piece.blocks for piece in self.pieces],
                "launches": [piece.launches for piece in self.pieces],
                "op": self.rows.op,
                "dtype": self.rows.dtype,
                "direction": self.rows.direction,
                **self.rows.dims,
            }
        )


def lower(
    graph: OpGraph,
    target: Target,
    *,
    device: Device | None = None,
    tf32_matmul: bool = False,
    tf32_convolution: bool = True,
) -> Lowered:
    """What the ops of `graph` become on `target`.

    An op with a rule becomes the rule's pieces; without one, what it calls; without calls, its rule
    as a leaf, else a fallback that streams its operands (counted in `unknown`). Ops whose tensors
    all lie in host memory launch nothing on a GPU. `device` decides with the two switches, which
    are PyTorch's, whether fp32 products run in TF32.
    """
    ops = completed(graph)
    known: dict[Hashable, tuple[Piece, ...] | None] = {}
    pieces: list[Piece] = []
    owner: list[int] = []
    top: list[int] = []
    answered = [NO_OP] * len(ops)
    outermost = list(range(len(ops)))
    has_calls = np.zeros(len(ops), bool)
    has_calls[[op.parent for op in ops if op.parent != NO_OP]] = True
    unknown: Counter[str] = Counter()
    calls = has_calls.tolist()
    for index, op in enumerate(ops):
        parent = op.parent
        if parent != NO_OP:
            outermost[index] = outermost[parent]
            if answered[parent] != NO_OP:
                answered[index] = answered[parent]
                continue
        key = (op.name, calls[index], _signature(op.inputs), _signature(op.outputs), _told(op))
        if key in known:
            found = known[key]
        else:
            found = known[key] = _pieces(op, target, calls[index])
        if found is None:
            continue
        answered[index] = index
        if found:
            pieces += found
            owner += [index] * len(found)
            top += [outermost[index]] * len(found)
            if found[0].op == UNKNOWN:
                unknown[op.name] += 1
    return Lowered(
        graph,
        target,
        tuple(in_units(pieces, device, tf32_matmul, tf32_convolution)),
        np.array(owner, np.int64),
        np.array(top, np.int64),
        np.array(answered, np.int64),
        unknown,
    )


def _pieces(op: Op, target: Target, calls: bool) -> tuple[Piece, ...] | None:
    """The pieces of an op, or None where what it calls says more."""
    rule = rule_of(op.name, target)
    if rule is None and calls:
        return None
    if target != CPU and on_host(op):
        return ()
    if rule is None:
        rule = rule_of(op.name, target, leaf=True)
    if rule is None:
        return fallback(op)
    try:
        return tuple(rule(op))
    except (Untold, IndexError, ValueError, ZeroDivisionError):
        return None if calls else fallback(op)


def fallback(op: Op) -> tuple[Piece, ...]:
    """One piece that streams an op's tensors; none for an op that has no tensors."""
    inputs, outputs = list(op.tensors), list(tensors_in(op.outputs))
    tensors = inputs + outputs
    if not tensors:
        return ()
    widest = max(tensors, key=tensor_bytes)
    full = tensor_bytes(widest)
    if not full:
        return ()
    read = sum(map(tensor_bytes, inputs)) / full
    written = sum(map(tensor_bytes, outputs)) / full if outputs else 1.0
    dims = {"elements": float(widest.elements), "reads": read, "writes": written}
    return (Piece(UNKNOWN, dims, widest.dtype, guessed=True),)


def _signature(arguments: Sequence[Argument]) -> Hashable:
    return tuple(map(_one, arguments))


def _one(argument: Argument) -> Hashable:
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device, argument.strides, argument.layout
    if isinstance(argument, tuple):
        return tuple(map(_one, argument))
    return type(argument), argument


def _told(op: Op) -> Hashable:
    about = op.attributes
    if len(about) < 2 and "copy" not in about:
        return None
    return tuple(about.get(name) for name in _TOLD)
