"""Another floating type for a whole graph."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import WorkloadError
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import OPTIMIZER, Argument, Op, OpGraph, Tensor

WIDE = ("fp64", "fp32", "fp16", "bf16")
"""Types of whole models; the narrow ones are for what matrix products read."""
NARROW = ("fp8", "int8")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm")


def cast(graph: OpGraph, dtype: str, *, optimizer: bool = True) -> Edited:
    """`graph` with its floating tensors as `dtype`; integers and bools stay.

    `fp8` and `int8` are taken by the inputs of matrix products only. With `optimizer=False` the
    optimizer keeps its types (fp32 states and master weights). Raises `WorkloadError` for a type
    that is none of these.
    """
    if dtype not in (*WIDE, *NARROW):
        raise WorkloadError(f"unknown dtype {dtype!r}; one of {', '.join((*WIDE, *NARROW))}")
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
    undone = []
    if narrow:
        undone.append(f"only what matrix products read is {dtype}; no op quantises it")
    if not optimizer:
        undone.append("no op casts between the optimizer's types and the model's")
    notes = (*graph.notes, f"cast to {dtype}")
    return Edited(replace(graph, ops=tuple(ops), notes=notes), tuple(undone))


def _cast_op(op: Op, dtype: str) -> Op:
    inputs, outputs = _cast(op.inputs, dtype), _cast(op.outputs, dtype)
    attributes = op.attributes
    if attributes.get("dtype") in WIDE:
        attributes = {**attributes, "dtype": dtype}
    if inputs == op.inputs and outputs == op.outputs and attributes is op.attributes:
        return op
    return replace(op, inputs=inputs, outputs=outputs, attributes=attributes)


def _cast(arguments: tuple[Argument, ...], dtype: str) -> tuple[Argument, ...]:
    return tuple(_one(argument, dtype) for argument in arguments)


def _one(argument: Argument, dtype: str) -> Argument:
    if isinstance(argument, Tensor):
        if argument.dtype in WIDE and argument.dtype != dtype:
            return replace(argument, dtype=dtype)
        return argument
    return _cast(argument, dtype) if isinstance(argument, tuple) else argument
