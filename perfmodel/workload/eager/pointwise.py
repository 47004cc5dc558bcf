"""Operators that work element by element, and reductions."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import track
from perfmodel.workload.eager.creation import fill, to_dtype
from perfmodel.workload.eager.recorder import Recorder, Shape
from perfmodel.workload.eager.views import as_strided, view


def relu(r: Recorder, x: Tensor) -> Tensor:
    """max(x, 0)."""
    r.begin("aten::relu", x)
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::clamp_min", (x, 0), out)
    r.end(out)
    track(r, "aten::relu", (x,), out, out)
    return out


def sigmoid(r: Recorder, x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::sigmoid", (x,), out)
    track(r, "aten::sigmoid", (x,), out, out)
    return out


def add(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x + y."""
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::add", (x, y, 1), out)
    track(r, "aten::add", (x, y), out)
    return out


def mul(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x * y, elementwise."""
    out = r.tensor(x.shape, x.dtype)
    r.leaf("aten::mul", (x, y), out)
    track(r, "aten::mul", (x, y), out, x, y)
    return out


def scalar_in_place(r: Recorder, name: str, x: Tensor, value: int, *rest: int) -> None:
    """`name` in place with a number, which becomes a tensor of no dims; a CPU converts it."""
    r.begin(name, x, value, *rest)
    number = r.tensor((), "int64", place="cpu")
    r.begin(name, x, number, *rest)
    if r.is_cpu and x.dtype != number.dtype:
        to_dtype(r, number, x.dtype)
    r.end(x)
    r.end(x)


def mean(r: Recorder, x: Tensor) -> Tensor:
    """The mean of all elements."""
    r.begin("aten::mean", x, None)
    r.begin("aten::mean", x, (), False, None)
    out = r.tensor((), x.dtype)
    ones: Shape = (1,) * len(x.shape)
    if r.is_cpu:
        r.begin("aten::sum", x, (), False, 6, out)
        fill(r, as_strided(r, out, ones, (0,) * len(ones)), 0.0)
        r.end(out)
        scalar_in_place(r, "aten::div_", out, x.elements)
    else:
        as_strided(r, out, ones, (0,) * len(ones))
    r.end(out)
    r.end(out)
    return out


def sum_to(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Sum over the leading dims that `shape` lacks, as autograd does for what was broadcast."""
    extra = len(x.shape) - len(shape)
    r.begin("aten::sum", x, tuple(range(extra)), True, None)
    out = r.tensor((1,) * extra + x.shape[extra:], x.dtype)
    if r.is_cpu:
        fill(r, out, 0.0)
    r.end(out)
    return view(r, out, shape)
