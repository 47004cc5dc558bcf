"""Narrower number types: of a whole graph, or of its all-to-all alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble, keep_ops
from perfmodel.ops.graph import (
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
    Tensor,
    last_called,
    outermost_of,
)

FLOAT_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Types of whole models; the narrow ones are for what matrix products read."""
NARROW = ("fp8", "int8")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm")


def cast(graph: OpGraph, dtype: str, *, optimizer: bool = True) -> Edited:
    """`graph` with its floating tensors as `dtype`; integers and bools stay.

    `fp8` and `int8` are taken by the inputs of matrix products only. With `optimizer=False` the
    optimizer keeps its types (fp32 states and master weights). Raises `WorkloadError` for a type
    that is none of these.
    """
    if dtype not in (*FLOAT_DTYPES, *NARROW):
        raise WorkloadError(
            f"unknown dtype {dtype!r}; one of {', '.join((*FLOAT_DTYPES, *NARROW))}"
        )
    narrow = dtype in NARROW
    ops = []
    for op in graph.ops:
        if op.phase == OPTIMIZER and not optimizer:
            ops.append(op)
        elif narrow:
            is_product = op.name.removeprefix("aten::") in _PRODUCTS
            inputs = _cast(op.inputs, dtype) if is_product else op.inputs
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
        else:
            ops.append(_cast_op(op, dtype))
    if all(new is old for new, old in zip(ops, graph.ops, strict=True)):
        what = "no matrix product has" if narrow else "no op has"
        return Edited(graph, (f"{what} floating tensors of another type than {dtype}",))
    skipped = []
    if narrow:
        skipped.append(f"only what matrix products read is {dtype}; no op quantises it")
    if not optimizer:
        skipped.append("no op casts between the optimizer's types and the model's")
    notes = (*graph.notes, f"cast to {dtype}")
    return Edited(replace(graph, ops=tuple(ops), notes=notes), tuple(skipped))


def _cast_op(op: Op, dtype: str) -> Op:
    inputs, outputs = _cast(op.inputs, dtype), _cast(op.outputs, dtype)
    attributes = op.attributes
    if attributes.get("dtype") in FLOAT_DTYPES:
        attributes = {**attributes, "dtype": dtype}
    if inputs == op.inputs and outputs == op.outputs and attributes is op.attributes:
        return op
    return replace(op, inputs=inputs, outputs=outputs, attributes=attributes)


def _cast(arguments: tuple[Argument, ...], dtype: str) -> tuple[Argument, ...]:
    return tuple(_one(argument, dtype) for argument in arguments)


def _one(argument: Argument, dtype: str) -> Argument:
    if isinstance(argument, Tensor):
        if argument.dtype in FLOAT_DTYPES and argument.dtype != dtype:
            return replace(argument, dtype=dtype)
        return argument
    return _cast(argument, dtype) if isinstance(argument, tuple) else argument


CLAMPED = {"fp16": True, "bf16": False}
"""Types that a payload may take, and whether values are clamped to their range before."""
WIDE_DTYPE = "fp32"


def exchange(graph: OpGraph, dtype: str) -> Edited:
    """`graph` whose all-to-alls of fp32 send `dtype`: encoded before the call, and decoded before
    the first op that reads or waits for what came (where that is unknown, after the call).

    Raises `WorkloadError` for another type.
    """
    if dtype not in CLAMPED:
        raise WorkloadError(f"cannot exchange {dtype!r}; one of {', '.join(CLAMPED)}")
    wide = [at for at, op in enumerate(graph.ops) if _is_wide(op)]
    if not wide:
        return Edited(graph, (f"no all-to-all of {WIDE_DTYPE}",))
    outermost, last = outermost_of(graph.ops), last_called(graph.ops)
    calls = {outermost[at]: at for at in wide}
    readers = dict(_first_readers(graph, outermost, calls))
    before: defaultdict[int, list[Op]] = defaultdict(list)
    behind: defaultdict[int, list[tuple[Op, int]]] = defaultdict(list)
    for top, at in calls.items():
        before[top] += _encoding(graph.ops[top], graph.ops[at], dtype)
        decoding = _decoding(graph.ops[readers.get(top, top)], graph.ops[at], dtype)
        behind[readers.get(top, last[top] + 1)].append((decoding, at))
    placed: list[PlacedOp] = []
    decoded: list[tuple[int, int]] = []
    for at in range(len(graph) + 1):
        for op, source in behind.get(at, ()):
            decoded.append((source, len(placed)))
            placed.append(PlacedOp(op))
        if at < len(graph):
            placed += [PlacedOp(op) for op in before.get(at, ())]
            placed += _narrowed(keep_ops(graph, [at]), dtype)
    note = f"{len(calls)} all-to-alls of {dtype} instead of {WIDE_DTYPE}"
    edited = assemble(graph, placed, note)
    new_of = {one.covers[0]: at for at, one in enumerate(placed) if one.covers}
    edges = np.array([(new_of[source], target) for source, target in decoded], np.int64)
    skipped = "no gradient of a clamp" if CLAMPED[dtype] else ""
    return Edited(
        replace(
            edited,
            data=_with(edited.data, edges) if len(edited.data) else edited.data,
            waits=None if edited.waits is None else _with(edited.waits, edges),
        ),
        (skipped,) if skipped else (),
    )


def _is_wide(op: Op) -> bool:
    about = op.attributes
    has_sizes = "in_elements" in about and "out_elements" in about
    return (
        about.get("collective") == "all_to_all" and about.get("dtype") == WIDE_DTYPE and has_sizes
    )


def _first_readers(
    graph: OpGraph, outermost: list[int], calls: dict[int, int]
) -> Iterator[tuple[int, int]]:
    """(call, the first outermost op behind it that reads what came, or waits for it)."""
    edges = graph.data if graph.waits is None else graph.waits
    first: dict[int, int] = {}
    for source, target in edges.tolist():
        top, reader = outermost[source], outermost[target]
        if top in calls and reader > top:
            first[top] = min(first.get(top, reader), reader)
    yield from first.items()


def _encoding(like: Op, collective: Op, dtype: str) -> list[Op]:
    wide, narrow = _payload(collective, "in_elements", dtype)
    clamp = [_op(like, "aten::clamp", (wide, None, None), wide)] if CLAMPED[dtype] else []
    return [*clamp, _op(like, "aten::copy_", (narrow, wide, False), narrow)]


def _decoding(like: Op, collective: Op, dtype: str) -> Op:
    wide, narrow = _payload(collective, "out_elements", dtype)
    return _op(like, "aten::copy_", (wide, narrow, False), wide)


def _payload(collective: Op, side: str, dtype: str) -> tuple[Tensor, Tensor]:
    """What is encoded, or decoded: as the program has it, and as it is sent."""
    place = next((t.device for t in collective.tensors if t.device), "")
    shape = (int(collective.attributes[side]),)
    return Tensor(shape, WIDE_DTYPE, device=place), Tensor(shape, dtype, device=place)


def _op(like: Op, name: str, inputs: tuple[Tensor | bool | None, ...], output: Tensor) -> Op:
    """An op of the same thread, phase and step; on the stream of the kernels."""
    about = {key: text for key, text in like.attributes.items() if key == "annotation"}
    return Op(name, inputs, (output,), NO_OP, like.thread, like.phase, like.step, -1, about)


def _narrowed(placed: list[PlacedOp], dtype: str) -> list[PlacedOp]:
    return [
        replace(one, op=replace(one.op, attributes={**one.op.attributes, "dtype": dtype}))
        if _is_wide(one.op)
        else one
        for one in placed
    ]


def _with(edges: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([edges, more.reshape(-1, 2)])
