"""Elements of a tensor picked by their places, and their gradient."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import track
from perfmodel.workload.eager.creation import copy, empty, empty_like, new_zeros, to_device, zero
from perfmodel.workload.eager.recorder import TYPE_CODES, Recorder, is_contiguous
from perfmodel.workload.eager.views import CONTIGUOUS, as_strided, clone, reshape

ENDLESS = 2**63 - 1
"""The end of a slice that has none."""


def index_pairs(r: Recorder, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`x[:, rows, columns]`: of x `[b, n, n]`, the elements at those places, `[b, p]`.

    Places that lie on the host are sent to the device, each time.
    """
    r.begin("aten::index", x, (None, rows, columns))
    _views(r, x, _here(r, rows), _here(r, columns))
    out = r.tensor((x.shape[0], rows.shape[0]), x.dtype)
    r.end(out)
    track(r, "aten::index", (x,), out, rows, columns)
    return out


def index_backward(
    r: Recorder, gradient: Tensor, x: Tensor, rows: Tensor, columns: Tensor
) -> Tensor:
    """Zeros, and `gradient` added where its elements came from."""
    out = new_zeros(r, gradient, x.shape, gradient.dtype)
    r.begin("aten::_index_put_impl_", out, (None, rows, columns), gradient, True, True)
    if r.is_cpu:
        _views(r, out, rows, columns)
    else:
        _sorted_put(r, out, gradient, rows, columns)
    r.end(out)
    return out


def whole(r: Recorder, x: Tensor) -> Tensor:
    """`x[:]`, as older PyTorch takes it before indices that follow."""
    r.begin("aten::slice", x, 0, 0, ENDLESS, 1)
    out = as_strided(r, x, x.shape, x.strides, 0)
    r.end(out)
    track(r, "aten::slice", (x,), out)
    return out


def whole_backward(r: Recorder, gradient: Tensor) -> Tensor:
    """A copy into zeros."""
    shape = gradient.shape
    r.begin("aten::slice_backward", gradient, shape, 0, 0, ENDLESS, 1)
    code = TYPE_CODES[gradient.dtype]
    r.begin("aten::zeros", shape, code, 0, r.place, None)
    out = empty(r, shape, gradient.dtype)
    zero(r, out)
    r.end(out)
    r.begin("aten::slice", out, 0, 0, ENDLESS, 1)
    part = as_strided(r, out, shape, out.strides, 0)
    r.end(part)
    copy(r, part, gradient)
    r.end(out)
    return out


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
        linear.append(_here(r, scaled))
    r.leaf("aten::add_", (linear[0], linear[1], 1), linear[0])
    if not is_contiguous(gradient):
        r.begin("aten::contiguous", gradient, CONTIGUOUS)
        r.end(clone(r, gradient))
    places = reshape(r, linear[0], (rows.shape[0],))
    empty_like(r, places, CONTIGUOUS)
    empty_like(r, places, CONTIGUOUS)
    r.leaf("aten::divide_", (places, 1, "trunc"), places)
    order = r.tensor(places.shape, "int64")
    r.leaf("aten::arange", (places.shape[0], 4, 0, r.place, None), order)


def _here(r: Recorder, index: Tensor) -> Tensor:
    return index if index.device == r.place else to_device(r, index, r.place)
