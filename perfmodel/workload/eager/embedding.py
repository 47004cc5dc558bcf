"""`nn.EmbeddingBag`: lookups of one table, and the sparse gradient of its weights."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import track
from perfmodel.workload.eager.creation import (
    arange,
    copy,
    empty,
    empty_like,
    fill,
    new_zeros,
    ones_like,
    resize,
    to_dtype,
)
from perfmodel.workload.eager.pointwise import scalar_in_place
from perfmodel.workload.eager.recorder import TYPE_CODES, Recorder, Shape, contiguous
from perfmodel.workload.eager.sparse import coo
from perfmodel.workload.eager.views import CONTIGUOUS, reshape, select, slice_

SUM = 0
NO_PADDING = -1


def even_bags(r: Recorder, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices and offsets of `indices` `[bags, pooling]`, as `nn.EmbeddingBag` makes them."""
    bags, pooling = indices.shape
    offsets = arange(r, bags * pooling, pooling)
    return reshape(r, indices, (-1,)), offsets


def embedding_bag(
    r: Recorder, weight: Tensor, flat: Tensor, offsets: Tensor, attributes: dict[str, str]
) -> Tensor:
    """Sums of the rows `flat` of `weight` `[rows, dim]`, one sum from each of the `offsets` on."""
    r.begin("aten::embedding_bag", weight, flat, offsets, False, SUM, True, None, False, None)
    train = r.tape is not None
    name = "aten::_embedding_bag" if train else "aten::_embedding_bag_forward_only"
    r.begin(name, weight, flat, offsets, False, SUM, True, None, False, NO_PADDING)
    out = (_cpu if r.is_cpu else _gpu)(r, weight, flat, offsets)
    r.end(*out, about=attributes)
    r.end(*out, about=attributes)
    track(r, "aten::embedding_bag", (weight,), out[0], flat, offsets, *out[1:], attributes)
    return out[0]


def embedding_bag_backward(
    r: Recorder,
    gradient: Tensor,
    weight: Tensor,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    attributes: dict[str, str],
) -> Tensor:
    """The sparse gradient of `weight`: a row for each lookup, repeats not summed."""
    flat, offsets, bag_of, sizes, most = saved
    rows = weight.shape[0]
    r.begin(
        "aten::_embedding_bag_backward",
        *(gradient, flat, offsets, bag_of, sizes, most),
        *(rows, False, SUM, True, None, NO_PADDING),
    )
    if not bag_of.elements:
        bag_of = _bags(r, flat, offsets)
    r.begin(
        "aten::_embedding_bag_sparse_backward",
        *(gradient, flat, offsets, bag_of, sizes),
        *(rows, False, SUM, None, NO_PADDING),
    )
    values = _index_select(r, gradient, bag_of)
    r.begin("aten::embedding_sparse_backward", values, flat, rows, NO_PADDING, False)
    indices = reshape(r, flat, (1, -1))
    columns = reshape(r, values, (-1, weight.shape[1]))
    out = coo(r, to_dtype(r, indices, "int64"), columns, weight.shape, typed=False)
    r.end(out, about=attributes)
    r.end(out, about=attributes)
    r.end(out, about=attributes)
    return out


def _gpu(
    r: Recorder, weight: Tensor, flat: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sizes = empty(r, offsets.shape, "int64")
    bag_of = empty(r, flat.shape, "int64")
    out = empty(r, (offsets.shape[0], weight.shape[1]), weight.dtype)
    return out, bag_of, sizes, empty(r, (0,), "int64")


def _cpu(
    r: Recorder, weight: Tensor, flat: Tensor, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Beside the sums, the size of every bag."""
    bags = offsets.shape[0]
    out = empty(r, (bags, weight.shape[1]), weight.dtype)
    bag_of, sizes = empty(r, (0,), "int64"), empty(r, (bags,), "int64")
    if bags > 1:
        starts = slice_(r, offsets, 0, 0, bags - 1)
        ends = slice_(r, offsets, 0, 1, bags)
        lengths = r.tensor((bags - 1,), "int64")
        r.leaf("aten::sub", (ends, starts, 1), lengths)
        copy(r, slice_(r, sizes, 0, 0, bags - 1), lengths)
    start = select(r, offsets, 0, bags - 1)
    last = empty_like(r, start)
    fill(r, last, flat.shape[0])
    r.leaf("aten::sub_", (last, start, 1), last)
    copy(r, select(r, sizes, 0, -1), last)
    most = empty(r, (bags,), "int64")
    copy(r, most, sizes)
    return out, bag_of, sizes, most


def _bags(r: Recorder, flat: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index, from where bags begin: ones there, summed up."""
    lookups = flat.shape[0]
    marks = new_zeros(r, offsets, (lookups + 1,), "int64")
    ones = ones_like(r, offsets, CONTIGUOUS)
    r.leaf("aten::index_add_", (marks, 0, offsets, ones, 1), marks)
    scalar_in_place(r, "aten::sub_", select(r, marks, 0, 0), 1, 1)
    r.begin("aten::cumsum", marks, 0, TYPE_CODES["int64"])
    to_dtype(r, marks, "int64")
    summed = r.tensor(marks.shape, "int64")
    r.end(summed)
    return resize(r, summed, (lookups,))


def _index_select(r: Recorder, x: Tensor, index: Tensor) -> Tensor:
    r.begin("aten::index_select", x, 0, index)
    shape = (index.shape[0], *x.shape[1:])
    if r.is_cpu:
        out = _shaped(empty(r, (0,), x.dtype), shape)
        select(r, x, 0, 0)
        select(r, out, 0, 0)
    else:
        out = r.tensor(shape, x.dtype)
    r.end(out)
    return out


def _shaped(x: Tensor, shape: Shape) -> Tensor:
    """A tensor made without elements, with the `shape` that a kernel gives it."""
    return replace(x, shape=shape, strides=contiguous(shape))
