"""`lower`: an op graph to the pieces that its ops become on a target, by rules, by what they call,
and by the fallback where neither tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.hardware import Device
from perfmodel.hardware.parts import Target
from perfmodel.lowering.arguments import (
    BY_CALLS,
    FP32,
    HOST,
    TF32,
    bytes_of,
    lies_on_host,
    rule_of,
    tensor_bytes,
)
from perfmodel.lowering.context import GUESSED, self_contained
from perfmodel.lowering.piece import (
    LEAF,
    OF_PROFILE,
    TIER,
    WHOLE,
    Lowering,
    MissingArguments,
    Piece,
    nothing,
)
from perfmodel.ops.graph import (
    NO_OP,
    Argument,
    Op,
    OpGraph,
    Tensor,
    last_called,
    outermost_of,
    tensors_in,
    with_tensors,
)
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, is_known
from perfmodel.ops.vocabulary.matmul import CONVOLUTION, MATMUL
from perfmodel.ops.vocabulary.streaming import HOST_COPIES, UNKNOWN

CPU: Target = "cpu"
Pieces: TypeAlias = tuple[Piece, ...]


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
        return Rows.of([row_of(p) | (ranks if p.op in HOST_COPIES else {}) for p in self.pieces])

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


def row_of(piece: Piece) -> dict[str, Any]:
    """As a row of the measurement table."""
    return {"op": piece.op, "dtype": piece.dtype, "direction": piece.direction, **piece.dims}


def lower(graph: OpGraph, target: Target, *, device: Device | None = None) -> Lowered:
    """What the ops of `graph` become on `target`.

    An op becomes what its rule says and what the ops that it calls become (see `LOWERINGS`); one
    without a rule that calls nothing becomes the fallback, which streams its operands and is
    counted in `unknown`. Ops whose tensors all lie in host memory launch nothing on a GPU.
    `device` and `graph.tf32`, PyTorch's switch, decide whether fp32 products run in TF32.
    """
    ops = self_contained(graph).ops
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
    counts as fp32.
    """
    has_tf32 = device is not None and device.target == "cuda" and bool(device.tf32_tflop_per_s)
    changed = {CONVOLUTION, *([MATMUL] if tf32 else [])} if has_tf32 else set()
    for piece in pieces:
        if not is_known(piece.dtype) or (piece.dtype == TF32 and not has_tf32):
            piece = replace(piece, dtype=FP32)
        if piece.dtype == FP32 and OPS[piece.op].family in changed:
            piece = replace(piece, dtype=TF32)
        yield piece


_MAX_ANSWERS = 1 << 16
"""Of one target: then they are forgotten."""
INDEX_DTYPES = ("int32", "int64")
"""Types of indices; operands of such types that are none (packed weights) are long, and bound
nothing."""
COPIES = ("aten::copy_", "aten::copy")
"""PyTorch returns at once from one of a tensor onto itself."""
_REPEATABLE = ("elementwise", "fill", "copy")
"""Work that an op may do itself and let others do once more; any other is done once."""


def pieces_by_op(ops: Sequence[Op], target: Target) -> tuple[dict[int, Pieces], list[int]]:
    """Per op that launches something itself its pieces; per op the op that answers for it: itself,
    the caller whose rule stands for all, or `NO_OP`. An op that calls one of its own name (variants
    with an output given) leaves the work to it."""
    moves = target != CPU and all(lies_on_host(op) is not False for op in ops)
    is_cpus = moves and any(map(lies_on_host, ops))
    rules = _known_rules(target, not moves)
    own: list[Pieces | None] = [None] * len(ops)
    answered = [NO_OP] * len(ops)
    covered = [False] * len(ops)
    calls = [False] * len(ops)
    by_itself = [False] * len(ops)
    for index, op in enumerate(ops):
        parent = op.parent
        if parent != NO_OP:
            calls[parent] = True
            by_itself[parent] |= ops[parent].name == op.name
            if covered[parent] and not op.name.startswith(OF_PROFILE):
                covered[index], answered[index] = True, answered[parent]
                continue
        own[index], covered[index] = rules.of(op)
        if own[index] is not None:
            answered[index] = index
            # What a CPU's operator called within itself (a bias copied for `addmm`) stays there.
            covered[index] |= is_cpus and rule_of(op.name, CPU, WHOLE) is not None
    kept: dict[int, Pieces] = {}
    below: dict[int, set[tuple[str, str]]] = {}
    for index in range(len(ops) - 1, -1, -1):
        if answered[index] not in (index, NO_OP):
            continue
        op, pieces, done = ops[index], own[index], below.pop(index, None)
        if pieces is None and not done:
            pieces = rules.of_leaf(op, calls[index])
            answered[index] = index if pieces is not None else NO_OP
        elif pieces and by_itself[index] and not covered[index]:
            pieces = ()
        elif pieces and done:
            left = () if BY_CALLS in op.attributes else pieces
            pieces = tuple(
                p for p in left if p.op in _REPEATABLE or (p.op, p.direction) not in done
            )
        if pieces:
            kept[index] = pieces
            done = (done or set()) | {(piece.op, piece.direction) for piece in pieces}
        if done and op.parent != NO_OP:
            below.setdefault(op.parent, set()).update(done)
    return kept, answered


class _Rules:
    """The rules of one target, each asked once about calls that it cannot distinguish.

    A program `stays` where it ran, what it did on the host too; one that ran on a CPU alone moves
    to a GPU as a whole.
    """

    def __init__(self, target: Target, stays: bool) -> None:
        self._target, self._stays = target, stays
        self._answers: dict[Hashable, Pieces | None] = {}

    def of(self, op: Op) -> tuple[Pieces | None, bool]:
        """What an op launches itself, None without a rule; whether that is all it becomes."""
        ids = [tensor.tensor_id for tensor in op.tensors] if op.name in COPIES else []
        if ids and ids[:1] == ids[1:] != [NO_OP]:
            return (), True
        whole = rule_of(op.name, self._target, WHOLE)
        rule = whole or rule_of(op.name, self._target)
        if rule is None:
            return None, False
        pieces = self._ask(rule, op)
        return pieces, whole is not None and pieces is not None

    def of_leaf(self, op: Op, calls: bool) -> Pieces | None:
        """What an op becomes none of whose calls become anything."""
        rule = rule_of(op.name, self._target, LEAF)
        if rule is not None:
            pieces = self._ask(rule, op)
            if pieces is not None:
                return pieces
        elif calls and rule_of(op.name, self._target) is None:
            return None
        return self._ask(fallback, op)

    def _ask(self, rule: Lowering, op: Op) -> Pieces | None:
        """The pieces of `op`; None where the rule misses arguments."""
        if rule is nothing:
            return ()
        about = frozenset(op.attributes.items())
        key = rule, op.name, tuple(map(_one, op.inputs)), tuple(map(_one, op.outputs)), about
        if key in self._answers:
            return self._answers[key]
        if len(self._answers) >= _MAX_ANSWERS:
            self._answers.clear()
        is_hosts = op.attributes.get("device") == HOST or (self._stays and lies_on_host(op))
        launches = self._target == CPU or op.name.startswith(TIER) or not is_hosts
        pieces: Pieces | None = ()
        if launches or rule is fallback:
            inputs, outputs = (
                with_tensors(given, lambda each: replace(each, tensor_id=-1, storage_id=-1))
                for given in (op.inputs, op.outputs)
            )
            try:
                pieces = tuple(rule(Op(op.name, inputs, outputs, attributes=op.attributes)))
            except MissingArguments:
                pieces = None
            if pieces and GUESSED in op.attributes:
                pieces = tuple(replace(piece, guessed=True) for piece in pieces)
        self._answers[key] = pieces
        return pieces


_known_rules = lru_cache(maxsize=8)(_Rules)
"""Programs that are predicted one after the other share most calls."""


def fallback(op: Op) -> Pieces:
    """One piece that streams an op's tensors; none for an op that has no tensors.

    Where there are indices, the longest tensors that are as long as none of them are pools (caches,
    tables): of those a row per index, or as much as the others hold, if that is more. Of a sparse
    tensor, whose shape does not say what it holds, so many elements as its lookups.
    """
    inputs, outputs = op.tensors, tuple(tensors_in(op.outputs))
    held = (*inputs, *outputs)
    indices = [each for each in held if each.dtype in INDEX_DTYPES and each.shape]
    values = [each for each in held if each.dtype not in INDEX_DTYPES and len(each.shape) > 1]
    rows = max((each.shape[0] for each in values), default=0)
    others = sum(tensor_bytes(each) for each in values if each.shape[0] != rows)
    has_pool = indices and others and rows not in {each.shape[0] for each in indices}
    most = max((each.elements for each in indices), default=0)

    def reached_bytes(each: Tensor) -> float:
        full = tensor_bytes(each)
        if each.layout:
            return min(full, float(op.attributes.get("lookups", 0)) * bytes_of(each.dtype))
        if not has_pool or each.shape[:1] != (rows,) or len(each.shape) < 2:
            return full
        return min(full, max(most * full / rows, others))

    widest = max(held, key=reached_bytes, default=None)
    if widest is None or not (full := reached_bytes(widest)):
        return ()
    read, written = (sum(map(reached_bytes, each)) / full for each in (inputs, outputs))
    dims = {
        "elements": full / bytes_of(widest.dtype),
        "reads": read,
        "writes": written if outputs else 1.0,
    }
    return (Piece(UNKNOWN, dims, widest.dtype, guessed=True),)


def _one(argument: Argument) -> Hashable:
    if isinstance(argument, Tensor):
        return argument.shape, argument.dtype, argument.device, argument.strides, argument.layout
    if isinstance(argument, tuple):
        return tuple(map(_one, argument))
    return type(argument), argument
