"""Operators that give another view of a tensor and move nothing, and those that join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import (
    GRAIN,
    TYPE_CODES,
    Recorder,
    Shape,
    contiguous,
    is_contiguous,
    track,
)

CONTIGUOUS = 0
"""`torch.contiguous_format` among the arguments of an op."""


def as_strided(
    r: Recorder, x: Tensor, shape: Shape, strides: Shape, offset: int | None = None
) -> Tensor:
    """`offset` counts from the start of the storage."""
    out = r.view(x, shape, strides)
    r.leaf("aten::as_strided", (x, shape, strides, offset), out)
    return out


def transpose(r: Recorder, x: Tensor, first: int, second: int, *, tracked: bool = True) -> Tensor:
    """Swap two dims."""
    r.begin("aten::transpose", x, first, second)
    shape, strides = list(x.shape), list(x.strides)
    shape[first], shape[second] = shape[second], shape[first]
    strides[first], strides[second] = strides[second], strides[first]
    out = as_strided(r, x, tuple(shape), tuple(strides))
    r.end(out)
    if tracked:
        track(r, "aten::transpose", (x,), out, first, second)
    return out


def t(r: Recorder, x: Tensor) -> Tensor:
    """The transposed matrix."""
    r.begin("aten::t", x)
    out = transpose(r, x, 0, 1, tracked=False)
    r.end(out)
    track(r, "aten::t", (x,), out)
    return out


def expand(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Broadcast to `shape`."""
    r.begin("aten::expand", x, shape, False)
    missing = len(shape) - len(x.shape)
    strides = (0,) * missing + tuple(
        0 if old == 1 and new != 1 else stride
        for old, new, stride in zip(x.shape, shape[missing:], x.strides, strict=True)
    )
    out = as_strided(r, x, shape, strides)
    r.end(out)
    return out


def view(r: Recorder, x: Tensor, shape: Shape, name: str = "aten::view") -> Tensor:
    """Another shape of the same elements; one size may be -1."""
    full = _resolved(x, shape)
    out = r.view(x, full, view_strides(x, full) or contiguous(full))
    r.leaf(name, (x, shape), out)
    return out


def reshape(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Another shape: a view where the strides allow it, else of a contiguous copy."""
    full = _resolved(x, shape)
    r.begin("aten::reshape", x, shape)
    if view_strides(x, full) is not None:
        out = view(r, x, shape)
        r.end(out)
    else:
        out = view(r, clone(r, x), full, "aten::_unsafe_view")
        r.end(out)
    track(r, "aten::reshape", (x,), out)
    return out


def clone(r: Recorder, x: Tensor) -> Tensor:
    """A contiguous copy."""
    r.begin("aten::clone", x, CONTIGUOUS)
    out = r.tensor(x.shape, x.dtype)
    code = TYPE_CODES[x.dtype]
    r.begin("aten::empty_like", x, code, 0, r.place, None, CONTIGUOUS)
    r.leaf("aten::empty", (x.shape, code, 0, r.place, None, CONTIGUOUS), out)
    r.end(out)
    r.leaf("aten::copy_", (out, x, False), out)
    r.end(out)
    return out


def select(r: Recorder, x: Tensor, dim: int, index: int) -> Tensor:
    """One slice along `dim`, which goes."""
    r.begin("aten::select", x, dim, index)
    shape, strides = x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :]
    out = as_strided(r, x, shape, strides, (index % x.shape[dim]) * x.strides[dim])
    r.end(out)
    return out


def slice_(r: Recorder, x: Tensor, dim: int, start: int, stop: int) -> Tensor:
    """The elements `start` to `stop` of `dim`."""
    r.begin("aten::slice", x, dim, start, stop, 1)
    shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
    out = as_strided(r, x, shape, x.strides, start * x.strides[dim])
    r.end(out)
    return out


def narrow(r: Recorder, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of `dim` from `start`."""
    r.begin("aten::narrow", x, dim, start, length)
    out = slice_(r, x, dim, start, start + length)
    r.end(out)
    return out


def unsqueeze(r: Recorder, x: Tensor, dim: int) -> Tensor:
    """A dim of size 1 before `dim`."""
    r.begin("aten::unsqueeze", x, dim)
    stride = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    out = as_strided(r, x, shape, (*x.strides[:dim], stride, *x.strides[dim:]))
    r.end(out)
    track(r, "aten::unsqueeze", (x,), out, dim)
    return out


def squeeze(r: Recorder, x: Tensor, dim: int | None = None) -> Tensor:
    """Without the dims of size 1, or without `dim`."""
    r.begin("aten::squeeze", x, *(() if dim is None else (dim,)))
    gone = None if dim is None else dim % max(len(x.shape), 1)
    kept = [i for i, size in enumerate(x.shape) if size != 1 or (gone is not None and i != gone)]
    out = as_strided(r, x, tuple(x.shape[i] for i in kept), tuple(x.strides[i] for i in kept))
    r.end(out)
    if dim is not None:
        track(r, "aten::squeeze", (x,), out, dim)
    return out


def detach(r: Recorder, x: Tensor) -> Tensor:
    """The same tensor, out of autograd's sight."""
    r.begin("aten::detach", x)
    out = r.view(x, x.shape, x.strides)
    r.leaf("detach", (x,))
    r.end(out)
    return out


def view_strides(x: Tensor, shape: Shape) -> Shape | None:
    """Strides of `x` seen as `shape`, or None where that takes a copy."""
    if is_contiguous(x):
        return contiguous(shape)
    blocks = [(1, 1)]
    for size, stride in zip(x.shape[::-1], x.strides[::-1], strict=True):
        if size == 1:
            continue
        length, step = blocks[-1]
        if length > 1 and stride == length * step:
            blocks[-1] = (length * size, step)
        elif length == 1:
            blocks[-1] = (size, stride)
        else:
            blocks.append((size, stride))
    strides, left = [], 1
    length, step = blocks.pop(0)
    for size in shape[::-1]:
        if left == length and size != 1 and blocks:
            (length, step), left = blocks.pop(0), 1
        strides.append(step * left)
        left *= size
        if length % left:
            return None
    return tuple(strides[::-1])


def _resolved(x: Tensor, shape: Shape) -> Shape:
    if -1 not in shape:
        return shape
    rest = -prod(shape)
    return tuple(x.elements // rest if size == -1 else size for size in shape)


def cat(r: Recorder, tensors: Sequence[Tensor], dim: int, *, tracked: bool = True) -> Tensor:
    """One after the other along `dim`."""
    joined = tuple(tensors)
    r.begin("aten::cat", joined, dim)
    first = joined[0]
    total = sum(x.shape[dim] for x in joined)
    out = r.tensor((*first.shape[:dim], total, *first.shape[dim + 1 :]), first.dtype)
    if r.is_cpu:
        _into(r, out, joined, dim)
    r.end(out)
    if tracked:
        track(r, "aten::cat", joined, out, dim)
    return out


def stack(r: Recorder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Side by side along a new `dim`."""
    joined = tuple(tensors)
    r.begin("aten::stack", joined, dim)
    first = joined[0]
    flat = cat(r, joined, dim, tracked=False)
    out = view(r, flat, (*first.shape[:dim], len(joined), *first.shape[dim:]))
    r.end(out)
    track(r, "aten::stack", joined, out, dim)
    return out


def _into(r: Recorder, out: Tensor, joined: tuple[Tensor, ...], dim: int) -> None:
    """On a CPU: nothing where one thread copies it all, else a slice of `out` for each copy."""
    even = all(is_contiguous(x) for x in joined)
    if even and (out.elements < GRAIN or r.threads == 1):
        return
    start = 0
    alike = all(x.shape == joined[0].shape and x.strides == joined[0].strides for x in joined)
    for x in joined[:1] if alike else joined:
        narrow(r, out, dim, start, x.shape[dim])
        start += x.shape[dim]
