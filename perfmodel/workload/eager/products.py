"""Matrix products. On a CPU, what they ask of their operands before BLAS is called."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import track
from perfmodel.workload.eager.creation import copy
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import expand, t


def linear(r: Recorder, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x `[m, k]` times weight `[n, k]` transposed, plus bias `[n]`."""
    r.begin("aten::linear", x, weight, bias)
    out = addmm(r, bias, x, t(r, weight))
    r.end(out)
    return out


def quantised_linear(r: Recorder, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`linear` of 16-bit x and one-byte weight: x rounded per row, its product scaled back."""
    out = r.tensor((x.shape[0], weight.shape[0]), x.dtype)
    r.leaf("quantised::linear", (x, weight, bias), out)
    return out


def addmm(r: Recorder, bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """bias `[n]` plus x `[m, k]` times y `[k, n]`."""
    r.begin("aten::addmm", bias, x, y, 1, 1)
    shape = (x.shape[0], y.shape[1])
    if r.is_cpu:
        spread = expand(r, bias, shape)
        out = r.tensor(shape, x.dtype)
        copy(r, out, spread)
        _resolve(r, out, x, y)
    else:
        out = r.tensor(shape, x.dtype)
    r.end(out)
    track(r, "aten::addmm", (bias, x, y), out, x, y)
    return out


def mm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[m, k]` times y `[k, n]`."""
    r.begin("aten::mm", x, y)
    out = r.tensor((x.shape[0], y.shape[1]), x.dtype)
    if r.is_cpu:
        _resolve(r, out, x, y)
    r.end(out)
    track(r, "aten::mm", (x, y), out, x, y)
    return out


def bmm(r: Recorder, x: Tensor, y: Tensor) -> Tensor:
    """x `[b, m, k]` times y `[b, k, n]`, one by one."""
    r.begin("aten::bmm", x, y)
    out = r.tensor((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    if r.is_cpu:
        for operand in (y, x):
            r.leaf("aten::resolve_conj", (operand,), operand)
    r.end(out)
    track(r, "aten::bmm", (x, y), out, x, y)
    return out


def _resolve(r: Recorder, out: Tensor, x: Tensor, y: Tensor) -> None:
    """The operands that go to a column-major BLAS as they are; transposed ones are not asked.

    Source: the layouts that a column-major GEMM can take, and execution traces of PyTorch 2.13.
    """
    (m, n), k = out.shape, x.shape[1]
    resolved = [out]
    row, column = out.strides
    if row == 1 and (n == 1 or column >= max(1, m)):
        as_they_are = ((x, m), (y, k))
    else:
        as_they_are = ((_mirrored(y), n), (_mirrored(x), k))
    resolved += [
        tensor
        for tensor, leading in as_they_are
        if tensor.strides[0] == 1 and tensor.strides[1] >= max(1, leading)
    ]
    for tensor in resolved:
        original = x if tensor.tensor_id == x.tensor_id else tensor
        original = y if tensor.tensor_id == y.tensor_id else original
        r.leaf("aten::resolve_conj", (original,), original)


def _mirrored(x: Tensor) -> Tensor:
    return Tensor(x.shape[::-1], x.dtype, x.tensor_id, x.storage_id, strides=x.strides[::-1])
