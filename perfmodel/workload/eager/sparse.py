"""Sparse gradients: tensors of row numbers and of rows."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import empty, resize, to_dtype
from perfmodel.workload.eager.recorder import TYPE_CODES, Recorder, Shape
from perfmodel.workload.eager.views import reshape, select, view

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
