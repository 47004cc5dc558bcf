"""`lower`: an op graph to the pieces that its ops become on a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.cost.coefficients import coefficients
from perfmodel.hardware import Device
from perfmodel.lowering.arguments import FP32, TF32
from perfmodel.lowering.context import complete_ops
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.walk import Target, pieces_by_op
from perfmodel.ops.dtypes import is_known
from perfmodel.ops.graph import NO_OP, OpGraph, last_called, outermost_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import CONVOLUTION, MATMUL
from perfmodel.ops.vocabulary.movement import HOST_COPIES, UNKNOWN


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
    """Per op of the graph: index of the op whose rule stands for it, itself or a caller, or -1
    where only what it calls becomes something."""
    unknown: Counter[str]
    """Names of the ops that the fallback stands in for, and how often."""
    undivided: Counter[str]
    """Names of the ops whose rule stands for all that they called, what an edit removed as well."""

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def rows(self) -> Rows:
        """The pieces as rows; `launches` of a piece are one row. All ranks copy at once."""
        ranks = {"ranks": float(self.graph.world_size)}
        return Rows.of([p.to_row() | (ranks if p.op in HOST_COPIES else {}) for p in self.pieces])

    @cached_property
    def waits_for(self) -> dict[int, list[int]] | None:
        """Per op that makes pieces: the ops that do and that it, or what it calls, waits for; else
        those whose results they read; None where neither is known."""
        edges = self.graph.data if self.graph.waits is None else self.graph.waits
        if self.graph.waits is None and not len(edges):
            return None
        waits: dict[int, list[int]] = {}
        for producer, consumer in edges.tolist():
            source, target = int(self.answered_by[producer]), int(self.answered_by[consumer])
            if NO_OP not in (source, target) and source != target:
                waits.setdefault(target, []).append(source)
        return waits

    def by_top_level(self) -> tuple[list[int], list[list[int]]]:
        pieces: dict[int, list[int]] = {top: [] for top in self.graph.top_level()}
        for piece, top in enumerate(self.top_level.tolist()):
            pieces[top].append(piece)
        return list(pieces), list(pieces.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What the fallback stands in for, and what is guessed."""
        guessed = Counter(
            self.graph.ops[owner].name
            for piece, owner in zip(self.pieces, self.owner.tolist(), strict=True)
            if piece.guessed and piece.op != UNKNOWN
        )
        on = self.target
        together = "what an edit removed of it stays in their time"
        counted = (
            (self.unknown, "calls", f"no rule on {on}: taken to stream their operands"),
            (guessed, "pieces", "sizes that the graph does not tell: guessed"),
            (self.undivided, "calls", f"one rule for all that they call on {on}: {together}"),
        )
        return tuple(
            f"{count} {what} of {name} have {why}"
            for counts, what, why in counted
            for name, count in counts.most_common()
        )


def lower(graph: OpGraph, target: Target, *, device: Device | None = None) -> Lowered:
    """What the ops of `graph` become on `target`.

    An op becomes what its rule says and what the ops that it calls become (see `LOWERINGS`); one
    without a rule that calls nothing becomes the fallback, which streams its operands and is
    counted in `unknown`. Ops whose tensors all lie in host memory launch nothing on a GPU.
    `device` and `graph.tf32`, PyTorch's switch, decide whether fp32 products run in TF32.
    """
    ops = complete_ops(graph)
    kept, answered = pieces_by_op([*ops, *graph.removed], target)
    undivided = {at for at in answered[len(ops) :] if 0 <= at < len(ops)}
    kept = {index: pieces for index, pieces in kept.items() if index < len(ops)}
    last, outermost = last_called(ops), outermost_of(ops)
    order = sorted(kept, key=lambda index: (last[index], -index))
    owner = [index for index in order for _ in kept[index]]
    pieces = [piece for index in order for piece in kept[index]]
    return Lowered(
        graph,
        target,
        tuple(in_units(pieces, device, bool(graph.tf32))),
        np.array(owner, np.int64),
        np.array([outermost[index] for index in owner], np.int64),
        np.array(answered[: len(ops)], np.int64),
        Counter(ops[index].name for index in order if kept[index][0].op == UNKNOWN),
        Counter(ops[index].name for index in undivided),
    )


def in_units(pieces: Sequence[Piece], device: Device | None, tf32: bool) -> Iterator[Piece]:
    """The pieces, fp32 products as TF32 where the device has it and it is allowed.

    PyTorch allows it for convolutions and for products of recurrent layers (which come in TF32),
    for other products (since 1.12) only when told, by `tf32`. A dtype that is not known
    counts as fp32. Ahead of such a convolution cuDNN lays input and weights out channels last, each
    by a kernel, where that pays.
    """
    has_tf32 = device is not None and device.target == "cuda" and bool(device.tf32_tflop_per_s)
    changed = {CONVOLUTION, *([MATMUL] * tf32)} if has_tf32 else set()
    for piece in pieces:
        if not is_known(piece.dtype) or (piece.dtype == TF32 and not has_tf32):
            piece = replace(piece, dtype=FP32)
        if piece.dtype == FP32 and OPS[piece.op].family in changed:
            piece = replace(piece, dtype=TF32)
            if OPS[piece.op].family == CONVOLUTION and is_laid_out(piece):
                piece = replace(piece, launches=piece.launches + LAYOUTS)
        yield piece


LAYOUTS = 2
_VECTOR = coefficients("gpu.convolution").vector_bytes / 4.0
"""Channels that matrix units take at once, of the bytes of a value in TF32."""


def is_laid_out(piece: Piece) -> bool:
    """Whether operands of a convolution in TF32 lie channels first and its kernel wants them last:
    not of depthwise ones, nor forward where every pixel is multiplied by itself, or of fewer
    channels than a vector has."""
    dims, is_forward = piece.dims, piece.direction == "fwd"
    groups, depth = dims.get("groups", 1.0), max(dims.get("depth", 0.0), 1.0)
    channels = dims["in_channels"] / depth
    window = dims.get("kernel_size", 0.0) if "kernel_h" not in dims else 0.0
    is_product = window * dims.get("stride", 1.0) * groups * depth == 1.0
    as_they_lie = is_forward and (is_product or channels < _VECTOR)
    return not (dims.get("channels_last") or 1.0 < groups == channels or as_they_lie)
