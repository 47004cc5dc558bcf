"""Narrower number types: of a whole graph, or of its all-to-all alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble
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
            about = op.attributes
            if about.get("dtype") in FLOAT_DTYPES:
                about = {**about, "dtype": dtype}
            inputs, outputs = _cast(op.inputs, dtype), _cast(op.outputs, dtype)
            is_same = about is op.attributes and (inputs, outputs) == (op.inputs, op.outputs)
            ops.append(
                op if is_same else replace(op, inputs=inputs, outputs=outputs, attributes=about)
            )
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


def _cast(arguments: tuple[Argument, ...], dtype: str) -> tuple[Argument, ...]:
    return tuple(
        _cast(each, dtype)
        if isinstance(each, tuple)
        else replace(each, dtype=dtype)
        if isinstance(each, Tensor) and each.dtype in FLOAT_DTYPES
        else each
        for each in arguments
    )


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
    reader: dict[int, int] = {}
    for source, target in (graph.data if graph.waits is None else graph.waits).tolist():
        top, later = outermost[source], outermost[target]
        if top in calls and later > top:
            reader[top] = min(reader.get(top, later), later)
    before: defaultdict[int, list[Op]] = defaultdict(list)
    behind: defaultdict[int, list[tuple[Op, int]]] = defaultdict(list)
    for top, at in calls.items():
        around, about = graph.ops[top], graph.ops[at].attributes
        place = next((t.device for t in graph.ops[at].tensors if t.device), "")
        sent, got = (  # as the program has it, and as it is sent
            [
                Tensor((int(about[f"{side}_elements"]),), t, device=place)
                for t in (WIDE_DTYPE, dtype)
            ]
            for side in ("in", "out")
        )
        if CLAMPED[dtype]:
            before[top].append(_op(around, "aten::clamp", (sent[0], None, None), sent[0]))
        before[top].append(_op(around, "aten::copy_", (sent[1], sent[0], False), sent[1]))
        like = graph.ops[reader.get(top, top)]
        decoding = _op(like, "aten::copy_", (got[0], got[1], False), got[0])
        behind[reader.get(top, last[top] + 1)].append((decoding, at))
    placed: list[PlacedOp] = []
    decoded: list[tuple[int, int]] = []
    for at in range(len(graph) + 1):
        for op, source in behind.get(at, ()):
            decoded.append((source, len(placed)))
            placed.append(PlacedOp(op))
        if at < len(graph):
            placed += [PlacedOp(op) for op in before.get(at, ())]
            op = graph.ops[at]
            narrow = replace(op, attributes={**op.attributes, "dtype": dtype})
            placed.append(PlacedOp(narrow if _is_wide(op) else op, (at,)))
    note = f"{len(calls)} all-to-alls of {dtype} instead of {WIDE_DTYPE}"
    edited = assemble(graph, placed, note)
    new_of = {one.covers[0]: at for at, one in enumerate(placed) if one.covers}
    edges = np.array([(new_of[source], target) for source, target in decoded], np.int64)
    data, waits = (
        np.concatenate([each, edges.reshape(-1, 2)]) if each is not None else None
        for each in (edited.data if len(edited.data) else None, edited.waits)
    )
    edited = replace(edited, data=edited.data if data is None else data, waits=waits)
    return Edited(edited, ("no gradient of a clamp",) if CLAMPED[dtype] else ())


def _is_wide(op: Op) -> bool:
    about = op.attributes
    has_sizes = "in_elements" in about and "out_elements" in about
    return (
        about.get("collective") == "all_to_all" and about.get("dtype") == WIDE_DTYPE and has_sizes
    )


def _op(like: Op, name: str, inputs: tuple[Tensor | bool | None, ...], output: Tensor) -> Op:
    """An op of the same thread, phase and step; on the stream of the kernels."""
    about = {key: text for key, text in like.attributes.items() if key == "annotation"}
    return Op(name, inputs, (output,), NO_OP, like.thread, like.phase, like.step, -1, about)
