"""Bytes that only move: copies within a device, with another type or layout, to the host and back;
and collectives, from what the op graph says of them (`perfmodel.ops.read.attributes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.lowering.arguments import (
    HOST,
    broadcast,
    bytes_of,
    flag,
    layout_dims,
    output,
    size,
    stored,
    tensor,
)
from perfmodel.lowering.piece import LEAF, LOWERINGS, MissingArguments, Piece, entries
from perfmodel.lowering.records import fill_of, pointwise
from perfmodel.ops.graph import Op, Tensor, integer, integers

CONTIGUOUS, TRANSPOSED, STRIDED = "contiguous", "transposed", "strided"
MEMCPY = ("memcpy_h2d", "memcpy_d2h")


def copy_pieces(target: Tensor, source: Tensor, *, non_blocking: bool = False) -> Sequence[Piece]:
    """What `target.copy_(source)` becomes."""
    elements = size(target.shape)
    if not elements:
        return ()
    to_host, from_host = target.device.startswith(HOST), source.device.startswith(HOST)
    if to_host != from_host and target.device and source.device:
        name = "copy_d2h" if to_host else "copy_h2d"
        return host_device_copy(name, target, non_blocking=non_blocking)
    if source.dtype != target.dtype or stored(source) != elements:
        (piece,) = pointwise([source], [target], flop=0.0)
        is_wider = bytes_of(target.dtype) > bytes_of(source.dtype)
        return (replace(piece, dims={**piece.dims, "widened": 1.0}) if is_wider else piece,)
    if TRANSPOSED in (layout(source), layout(target)) and layout(source) != layout(target):
        rows, cols = _matrix(source if layout(source) == TRANSPOSED else target)
        return (Piece("transpose_copy", {"rows": rows, "cols": cols}, target.dtype),)
    dims = {"elements": 2.0 * elements} | layout_dims([target, source], target.shape)
    return (Piece("copy", dims, target.dtype),)


def host_device_copy(
    name: str, moved: Tensor, *, non_blocking: bool = False, pinned: bool = False
) -> Sequence[Piece]:
    """A copy between host and device: unless told otherwise, PyTorch waits for it.

    One that is not waited for is taken to be of pinned memory.
    """
    dims = {"elements": float(size(moved.shape)), "pinned": float(non_blocking or pinned)}
    return (Piece(name, dims, moved.dtype, kind="copy", blocks=not non_blocking),)


def layout(values: Tensor) -> str:
    """Whether the last dimension is the one whose elements lie side by side."""
    lengths = [(n, s) for n, s in zip(values.shape, values.strides, strict=False) if n > 1]
    if not lengths:
        return CONTIGUOUS
    if lengths[-1][1] == 1:
        return CONTIGUOUS
    return TRANSPOSED if any(stride == 1 for _, stride in lengths) else STRIDED


def _matrix(values: Tensor) -> tuple[float, float]:
    """A transposed tensor as rows x cols: `cols` are the elements that lie side by side."""
    at = values.strides.index(1)
    cols = values.shape[at]
    return size(values.shape) / cols, float(cols)


@LOWERINGS.register(*entries("copy_", "copy", "_copy_from"))
def copy_(op: Op) -> Sequence[Piece]:
    """`copy_(target, source, non_blocking)`."""
    target, source = tensor(op, 0), tensor(op, 1)
    if op.attributes.get("copy") in MEMCPY:
        name = "copy_h2d" if op.attributes["copy"] == "memcpy_h2d" else "copy_d2h"
        pinned = op.attributes.get("pinned") == "1"
        return host_device_copy(name, target, non_blocking=bool(flag(op, 2)), pinned=pinned)
    return copy_pieces(target, source, non_blocking=bool(flag(op, 2)))


@LOWERINGS.register(*entries("select_backward", "slice_backward", scope=LEAF))
def into_zeros(op: Op) -> Sequence[Piece]:
    """`(gradient, input_sizes, dim, …)`: zeros, and the gradient copied to its place among them;
    `slice_backward` has its step behind start and end."""
    gradient, sizes, dim = tensor(op, 0), integers(op, 1), integer(op, 2)
    if not sizes or dim is None or not -len(sizes) <= dim < len(sizes):
        raise MissingArguments
    strides = [size(sizes[at + 1 :]) for at in range(len(sizes))]
    if len(gradient.shape) < len(sizes):
        del strides[dim]
    else:
        strides[dim] *= integer(op, 5) or 1
    whole = replace(gradient, shape=sizes, strides=())
    return (*fill_of(whole), *copy_pieces(replace(gradient, strides=tuple(strides)), gradient))


@LOWERINGS.register(*entries("masked_fill", scope=LEAF))
def masked_fill(op: Op) -> Sequence[Piece]:
    """`(x, mask, value)`: a copy, which is then filled in place."""
    values, mask = tensor(op, 0), tensor(op, 1)
    made = output(op) or replace(values, shape=broadcast((values, mask)), strides=())
    return (*copy_pieces(made, values), *pointwise([made, mask], [made]))


@LOWERINGS.register(*entries("constant_pad_nd", scope=LEAF))
def padded(op: Op) -> Sequence[Piece]:
    """`(x, pad, value)`: a tensor filled with the value, and what is kept copied into it."""
    values, result = tensor(op, 0), output(op)
    if result is None:
        raise MissingArguments
    kept = tuple(map(min, values.shape, result.shape))
    return (
        *fill_of(result),
        *copy_pieces(replace(result, shape=kept), replace(values, shape=kept)),
    )


@LOWERINGS.register(*entries("clone contiguous _to_copy", scope=LEAF))
def clone(op: Op) -> Sequence[Piece]:
    """A copy of the first argument, of another type or on another device as the output is."""
    source, result = tensor(op, 0), output(op)
    if result is None and op.name == "aten::_to_copy":
        raise MissingArguments
    return copy_pieces(result or replace(source, strides=()), source)


@LOWERINGS.register(
    *entries("to", "type_as", "float", "half", "double", "cpu", "cuda", "reshape", scope=LEAF),
    *entries("flatten", "ravel", "item", "_reshape_copy", scope=LEAF),
)
def maybe_copied(op: Op) -> Sequence[Piece]:
    """A copy only where the output is another tensor; a graph that records calls has it below."""
    source, result = op.tensors[:1], output(op)
    if not source or result is None or result.device == source[0].device == "":
        return ()
    if (result.dtype, result.device) == (source[0].dtype, source[0].device):
        return ()
    return copy_pieces(result, source[0])


@LOWERINGS.register(*entries("_local_scalar_dense"))
def scalar_to_host(op: Op) -> Sequence[Piece]:
    """One element to the host, which waits for it; nothing where it is there already."""
    values = tensor(op, 0)
    return (
        ()
        if values.device.startswith(HOST)
        else host_device_copy("copy_d2h", Tensor((1,), values.dtype))
    )


RECEIVED = ("all_gather", "gather", "recv")
"""Collectives whose size is what a rank ends up with; of all others, what it gives."""
EXCHANGED = ("all_to_all",)
"""Collectives that take as long as the larger of what a rank gives and gets."""
TABLE = {
    "gather": "all_gather",
    "scatter": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
    "barrier": "barrier",
}
NOTHING = ("wait", "init", "work_wait")
KNOWN = (
    *("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("send_recv", "barrier"),
)
ONE_BYTE = 1.0


@LOWERINGS.register(
    "any/record_param_comms",
    *entries("c10d::*", "c10d_functional::*", "_c10d_functional::*", scope=LEAF),
)
def collective(op: Op) -> Sequence[Piece]:
    """One kernel on the stream of collectives; a size that is not told stands at one byte."""
    about = op.attributes
    word = about.get("collective", "")
    if word in NOTHING or not word:
        return ()
    name = TABLE.get(word, word)
    if name not in KNOWN:
        return ()
    elements = about.get("out_elements" if word in RECEIVED else "in_elements")
    if word in EXCHANGED:
        elements = max(elements, about.get("out_elements"), key=lambda text: float(text or 0))
    dtype = about.get("dtype", "fp32")
    size_bytes = float(elements or 0) * bytes_of(dtype)
    dims = {"size_bytes": max(size_bytes, ONE_BYTE), "ranks": float(about.get("group_size", 2))}
    dims |= {key: float(about[key]) for key in ("nodes", "in_network") if key in about}
    guessed = elements is None and name != "barrier"
    return (Piece(name, dims, dtype, kind="collective", stream="comm", guessed=guessed),)
