"""`nn.EmbeddingBag`, elements picked by index, and the sparse gradients of both."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import TYPE_CODES, Recorder, Shape, is_contiguous
from perfmodel.workload.eager.tensors import (
    as_strided,
    clone,
    copy,
    new_zeros,
    reshape,
    to_device,
    to_dtype,
    zero,
)

ENDLESS = 2**63 - 1
"""The end of a slice that has none."""


def index_pairs(r: Recorder, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`x[:, rows, columns]`: of x `[b, n, n]`, the elements at those places, `[b, p]`.

    Places that lie on the host are sent to the device, each time.
    """
    r.begin("aten::index", x, (None, rows, columns))
    for index in (rows, columns):
        _on_device(r, index)
    out = r.tensor((x.shape[0], rows.shape[0]), x.dtype)
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        """Zeros, and `gradient` added where its elements came from."""
        of_x = new_zeros(r, gradient, x.shape, gradient.dtype)
        r.begin("aten::_index_put_impl_", of_x, (None, rows, columns), gradient, True, True)
        if not r.is_cpu:
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
        r.begin("aten::zeros", shape, TYPE_CODES[gradient.dtype])
        of_x = zero(r, r.tensor(shape, gradient.dtype))
        r.end(of_x)
        copy(r, full_slice(r, of_x), gradient)
        r.end(of_x)
        return [of_x]

    return r.track("SliceBackward0", (x,), out, backward)


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
        clone(r, gradient)
    places = linear[0]
    r.leaf("aten::divide_", (places, 1, "trunc"), places)
    r.made("aten::arange", (places.shape[0], 4, 0, r.place, None), places.shape, "int64")


def _on_device(r: Recorder, index: Tensor) -> Tensor:
    return index if index.device == r.place else to_device(r, index, r.place)


SPARSE = "sparse"


def coo(r: Recorder, indices: Tensor, values: Tensor, shape: Shape) -> Tensor:
    """A sparse tensor of `values` `[n, d]` at the rows `indices` `[1, n]`."""
    made = r.tensor(shape, values.dtype)
    out = Tensor(shape, made.dtype, made.tensor_id, 0, made.device, SPARSE, (0,) * len(shape))
    r.leaf("aten::_sparse_coo_tensor_unsafe", (indices, values, shape), out)
    r.sparse_parts[out.tensor_id] = (indices, values)
    return out


def accumulate_sparse(r: Recorder, gradient: Tensor) -> Tensor:
    """What `AccumulateGrad` keeps of a sparse gradient: a new tensor of the same parts."""
    indices, values = r.sparse_parts[gradient.tensor_id]
    for name in ("_indices", "_values", "_indices", "_values", "_values", "_indices"):
        part = indices if name == "_indices" else values
        r.leaf(f"aten::{name}", (gradient,), r.view(part, part.shape, part.strides))
    return coo(r, indices, values, gradient.shape)


def add_sparse(
    r: Recorder, weight: Tensor, gradient: Tensor, factor: float, attributes: Mapping[str, str]
) -> None:
    """`weight += factor * gradient` for a sparse `gradient`: the rows that it holds.

    On a GPU uncoalesced rows are added one by one, atomically. Source: PyTorch,
    `add_out_dense_sparse_cuda`, recalled.
    """
    r.begin("aten::add_", weight, gradient, factor)
    if not r.is_cpu:
        indices, values = r.sparse_parts[gradient.tensor_id]
        values = to_dtype(r, values, weight.dtype)
        flat = r.view(indices, indices.shape[1:], indices.strides[1:])
        r.leaf("aten::index_add_", (weight, 0, flat, values, factor), weight, about=attributes)
    r.end(weight, about=attributes)


SUM = 0
NO_PADDING = -1


def even_bags(r: Recorder, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices and offsets of `indices` `[bags, pooling]`, as `nn.EmbeddingBag` makes them."""
    bags, pooling = indices.shape
    offsets = r.made("aten::arange", (0, bags * pooling, pooling), (bags,), "int64")
    return reshape(r, indices, (-1,)), offsets


Saved = tuple[Tensor, ...]
"""Indices, offsets, the bag of each index, which a CPU makes of the offsets in backward, and sizes
of bags."""


def embedding_bag(
    r: Recorder, weight: Tensor, flat: Tensor, offsets: Tensor, attributes: dict[str, str]
) -> Tensor:
    """Sums of the rows `flat` of `weight` `[rows, dim]`, one sum from each of the `offsets` on."""
    name = "aten::_embedding_bag" if r.tape is not None else "aten::_embedding_bag_forward_only"
    given = (weight, flat, offsets, False, SUM, True, None, False)
    out = r.tensor((offsets.shape[0], weight.shape[1]), weight.dtype)
    bag_of = r.tensor((0,) if r.is_cpu else flat.shape, "int64")
    sizes = r.tensor(offsets.shape, "int64")
    made = (out, bag_of, sizes)
    r.begin("aten::embedding_bag", *given, None)
    r.leaf(name, (*given, NO_PADDING), *made, about=attributes)
    r.end(*made, about=attributes)

    def backward(gradient: Tensor) -> list[Tensor]:
        saved = (flat, offsets, bag_of, sizes)
        return [embedding_bag_backward(r, gradient, weight, saved, attributes)]

    return r.track("EmbeddingBagBackward0", (weight,), out, backward)


def embedding_bag_backward(
    r: Recorder, gradient: Tensor, weight: Tensor, saved: Saved, attributes: dict[str, str]
) -> Tensor:
    """The sparse gradient of `weight`: a row for each lookup, repeats not summed."""
    flat, _, bag_of, *_ = saved
    rows, dim = weight.shape
    lookups = (flat.shape[0], dim)
    r.begin("aten::_embedding_bag_backward", gradient, *saved, None, rows)
    values = r.made("aten::index_select", (gradient, 0, bag_of), lookups, gradient.dtype)
    indices = to_dtype(r, r.view(flat, (1, flat.shape[0]), (flat.shape[0], 1)), "int64")
    out = coo(r, indices, values, weight.shape)
    r.end(out, about=attributes)
    return out
