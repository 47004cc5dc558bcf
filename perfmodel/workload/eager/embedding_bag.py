"""`nn.EmbeddingBag`, elements picked by index, and the sparse gradients of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.arithmetic import scalar_in_place
from perfmodel.workload.eager.recorder import (
    TYPE_CODES,
    Recorder,
    Shape,
    contiguous,
    is_contiguous,
)
from perfmodel.workload.eager.tensors import (
    CONTIGUOUS,
    arange,
    as_strided,
    clone,
    copy,
    empty,
    empty_like,
    fill,
    new_zeros,
    ones_like,
    reshape,
    resize,
    select,
    slice_,
    to_device,
    to_dtype,
    view,
    zero,
)

ENDLESS = 2**63 - 1
"""The end of a slice that has none."""


def index_pairs(r: Recorder, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`x[:, rows, columns]`: of x `[b, n, n]`, the elements at those places, `[b, p]`.

    Places that lie on the host are sent to the device, each time.
    """
    r.begin("aten::index", x, (None, rows, columns))
    _views(r, x, _on_device(r, rows), _on_device(r, columns))
    out = r.tensor((x.shape[0], rows.shape[0]), x.dtype)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        """Zeros, and `gradient` added where its elements came from."""
        of_x = new_zeros(r, gradient, x.shape, gradient.dtype)
        r.begin("aten::_index_put_impl_", of_x, (None, rows, columns), gradient, True, True)
        if r.is_cpu:
            _views(r, of_x, rows, columns)
        else:
            _sorted_put(r, of_x, gradient, rows, columns)
        r.end(of_x)
        return [of_x]

    return r.track("IndexBackward0", (x,), out, backward)


def full_slice(r: Recorder, x: Tensor) -> Tensor:
    """`x[:]`, as older PyTorch takes it before indices that follow."""
    r.begin("aten::slice", x, 0, 0, ENDLESS, 1)
    out = as_strided(r, x, x.shape, x.strides, 0)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        """A copy into zeros."""
        shape = gradient.shape
        r.begin("aten::slice_backward", gradient, shape, 0, 0, ENDLESS, 1)
        r.begin("aten::zeros", shape, TYPE_CODES[gradient.dtype], 0, r.place, None)
        of_x = zero(r, empty(r, shape, gradient.dtype))
        r.end(of_x)
        copy(r, full_slice(r, of_x), gradient)
        r.end(of_x)
        return [of_x]

    return r.track("SliceBackward0", (x,), out, backward)


def _views(r: Recorder, x: Tensor, rows: Tensor, columns: Tensor) -> None:
    as_strided(r, x, (x.shape[0], rows.shape[0]), (x.strides[0], 0))
    for index in (rows, columns):
        reshape(r, index, (1, index.shape[0]))


def _sorted_put(r: Recorder, x: Tensor, gradient: Tensor, rows: Tensor, columns: Tensor) -> None:
    """What a GPU calls around its sort: linear places, then room for them sorted.

    Source: execution trace of DLRM_default, PyTorch of 2022.
    """
    linear = []
    for index, size, stride in zip((rows, columns), x.shape[1:], x.strides[1:], strict=True):
        wrapped, scaled = (r.tensor(index.shape, "int64", place=index.device) for _ in range(2))
        r.leaf("aten::remainder", (index, size), wrapped)
        r.leaf("aten::mul", (wrapped, stride), scaled)
        linear.append(_on_device(r, scaled))
    r.leaf("aten::add_", (linear[0], linear[1], 1), linear[0])
    if not is_contiguous(gradient):
        r.begin("aten::contiguous", gradient, CONTIGUOUS)
        r.end(clone(r, gradient))
    places = reshape(r, linear[0], (rows.shape[0],))
    empty_like(r, places, CONTIGUOUS)
    empty_like(r, places, CONTIGUOUS)
    r.leaf("aten::divide_", (places, 1, "trunc"), places)
    r.made("aten::arange", (places.shape[0], 4, 0, r.place, None), places.shape, "int64")


def _on_device(r: Recorder, index: Tensor) -> Tensor:
    return index if index.device == r.place else to_device(r, index, r.place)


SPARSE = "sparse"
SPARSE_CODE = 1
"""`torch.sparse_coo` among the arguments of an op."""


def coo(r: Recorder, indices: Tensor, values: Tensor, shape: Shape, *, typed: bool) -> Tensor:
    """A sparse tensor of `values` `[n, d]` at the rows `indices` `[1, n]`."""
    kind = (TYPE_CODES[values.dtype], SPARSE_CODE, r.place, None, None)
    given = kind if typed else (None,) * len(kind)
    r.begin("aten::_sparse_coo_tensor_unsafe", indices, values, shape, *given)
    r.begin("aten::_sparse_coo_tensor_with_dims_and_tensors", 1, 1, shape, indices, values, *kind)
    no_values, no_indices = empty(r, (0,), values.dtype), empty(r, (1, 0), "int64")
    resize(r, no_values, (0, shape[1]))
    resize(r, no_indices, (1, 0))
    made = r.tensor(shape, values.dtype)
    out = Tensor(shape, made.dtype, made.tensor_id, 0, made.device, SPARSE, (0,) * len(shape))
    r.end(out)
    r.end(out)
    r.sparse_parts[out.tensor_id] = (indices, values)
    return out


def accumulate_sparse(r: Recorder, gradient: Tensor) -> Tensor:
    """What `AccumulateGrad` keeps of a sparse gradient: a new tensor of the same parts."""
    for name in ("_indices", "_values", "_indices", "_values", "_values", "_indices"):
        _part(r, gradient, name)
    return coo(r, *r.sparse_parts[gradient.tensor_id], gradient.shape, typed=True)


def add_sparse(
    r: Recorder, weight: Tensor, gradient: Tensor, factor: float, attributes: Mapping[str, str]
) -> None:
    """`weight += factor * gradient` for a sparse `gradient`: the rows that it holds."""
    r.begin("aten::add_", weight, gradient, factor)
    r.begin("aten::add", weight, gradient, factor, weight)
    if r.is_cpu:
        _add_on_cpu(r, weight, gradient)
    else:
        _add_on_gpu(r, weight, gradient, factor, attributes)
    r.end(weight, about=attributes)
    r.end(weight, about=attributes)


def _add_on_cpu(r: Recorder, weight: Tensor, gradient: Tensor) -> None:
    r.begin("aten::resize_as_", weight, weight, None)
    resize(r, weight, weight.shape)
    r.end(weight)
    entries = r.sparse_parts[gradient.tensor_id][1].shape[0]
    r.leaf("aten::_nnz", (gradient,), entries)
    r.leaf("aten::sparse_dim", (gradient,), 1)
    values = _part(r, gradient, "_values")
    r.leaf("aten::is_coalesced", (gradient,), False)
    _part(r, gradient, "_indices")
    to_dtype(r, values, weight.dtype)
    r.leaf("aten::sparse_dim", (gradient,), 1)
    r.leaf("aten::_nnz", (gradient,), entries)


def _add_on_gpu(
    r: Recorder, weight: Tensor, gradient: Tensor, factor: float, attributes: Mapping[str, str]
) -> None:
    """Uncoalesced rows are added one by one, atomically.

    Source: PyTorch, `add_out_dense_sparse_cuda`, recalled.
    """
    values = to_dtype(r, _part(r, gradient, "_values"), weight.dtype)
    indices = _part(r, gradient, "_indices")
    flat = select(r, indices, 0, 0)
    target = view(r, weight, weight.shape)
    rows = reshape(r, values, values.shape)
    r.leaf("aten::index_add_", (target, 0, flat, rows, factor), target, about=attributes)


def _part(r: Recorder, gradient: Tensor, name: str) -> Tensor:
    indices, values = r.sparse_parts[gradient.tensor_id]
    part = indices if name == "_indices" else values
    out = r.view(part, part.shape, part.strides)
    r.leaf(f"aten::{name}", (gradient,), out)
    return out


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
    bag_of, sizes, most = out[1:]

    def backward(gradient: Tensor) -> list[Tensor]:
        saved = (flat, offsets, bag_of, sizes, most)
        return [embedding_bag_backward(r, gradient, weight, saved, attributes)]

    return r.track("EmbeddingBagBackward0", (weight,), out[0], backward)


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
        lengths = r.made("aten::sub", (ends, starts, 1), (bags - 1,), "int64")
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
        out = replace(empty(r, (0,), x.dtype), shape=shape, strides=contiguous(shape))
        select(r, x, 0, 0)
        select(r, out, 0, 0)
    else:
        out = r.tensor(shape, x.dtype)
    r.end(out)
    return out
