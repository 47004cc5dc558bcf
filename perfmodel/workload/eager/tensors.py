"""Operators that make, fill, copy and join tensors, send them to the device, or view them anew."""

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
)

CONTIGUOUS, PRESERVE, STRIDED = 0, 1, 0
"""`torch.contiguous_format`, `torch.preserve_format` and `torch.strided` among the arguments of an
op."""


def empty(r: Recorder, shape: Shape, dtype: str = "fp32", form: int | None = None) -> Tensor:
    """A new tensor, not filled; `form` is the memory format."""
    given = (shape, TYPE_CODES[dtype], STRIDED, r.place, None, form)
    return r.made("aten::empty", given, shape, dtype)


def empty_like(
    r: Recorder, x: Tensor, form: int | None = PRESERVE, *, pinned: bool | None = None
) -> Tensor:
    """A tensor shaped like `x`, not filled."""
    r.begin("aten::empty_like", x, None, None, None, pinned, form)
    if form == CONTIGUOUS:
        out = empty(r, x.shape, x.dtype, CONTIGUOUS)
    else:
        out = empty_strided(r, x.shape, x.dtype, pinned=pinned)
    r.end(out)
    return out


def empty_strided(
    r: Recorder, shape: Shape, dtype: str, *, place: str = "", pinned: bool | None = None
) -> Tensor:
    """A new tensor with its strides given, not filled."""
    given = (shape, contiguous(shape), TYPE_CODES[dtype], STRIDED, place or r.place, pinned)
    return r.made("aten::empty_strided", given, shape, dtype, place=place)


def ones_like(
    r: Recorder, x: Tensor, form: int = PRESERVE, *, pinned: bool | None = None
) -> Tensor:
    """Ones, shaped like `x`."""
    r.begin("aten::ones_like", x, None, None, None, pinned, form)
    out = empty_like(r, x, form, pinned=pinned)
    fill(r, out, 1.0)
    r.end(out)
    return out


def new_zeros(r: Recorder, like: Tensor, shape: Shape, dtype: str) -> Tensor:
    """Zeros of `shape` on the device of `like`."""
    arguments = (like, shape, TYPE_CODES[dtype], STRIDED, r.place, None)
    r.begin("aten::new_zeros", *arguments)
    r.begin("aten::new_empty", *arguments)
    out = empty(r, shape, dtype)
    r.end(out)
    zero(r, out)
    r.end(out)
    return out


def fill(r: Recorder, x: Tensor, value: float) -> None:
    """Every element to `value`."""
    r.leaf("aten::fill_", (x, value), x)


def zero(r: Recorder, x: Tensor) -> Tensor:
    """Every element to 0: on a CPU by `memset` where one thread does it."""
    r.begin("aten::zero_", x)
    if not r.is_cpu or x.elements >= GRAIN:
        fill(r, x, 0)
    r.end(x)
    return x


def arange(r: Recorder, stop: int, step: int) -> Tensor:
    """0, `step`, … below `stop`, as int64."""
    code = TYPE_CODES["int64"]
    r.begin("aten::arange", 0, stop, step, code, None, r.place, False)
    before = r.made("aten::empty", ((0,), code, None, r.place, False, None), (0,), "int64")
    r.begin("aten::arange", 0, stop, step, before)
    out = resize(r, before, (-(-stop // step),))
    r.end(out)
    r.end(out)
    return out


def resize(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """The same tensor with another shape, and memory for it."""
    out = Tensor(shape, x.dtype, x.tensor_id, x.storage_id, x.device, x.layout, contiguous(shape))
    r.leaf("aten::resize_", (x, shape, None), out)
    return out


def copy(r: Recorder, to: Tensor, source: Tensor, *, non_blocking: bool = False) -> None:
    """Elements of `source` into `to`, converted where their dtypes differ."""
    r.leaf("aten::copy_", (to, source, non_blocking), to)


def clone(r: Recorder, x: Tensor) -> Tensor:
    """A contiguous copy."""
    r.begin("aten::clone", x, CONTIGUOUS)
    rest = (TYPE_CODES[x.dtype], STRIDED, r.place, None, CONTIGUOUS)
    r.begin("aten::empty_like", x, *rest)
    out = r.made("aten::empty", (x.shape, *rest), x.shape, x.dtype)
    r.end(out)
    copy(r, out, x)
    r.end(out)
    return out


def to_dtype(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as `dtype`; itself where it is one already."""
    code = TYPE_CODES[dtype]
    r.begin("aten::to", x, code, False, False, None)
    if x.dtype == dtype:
        r.end(x)
        return x
    r.begin("aten::_to_copy", x, code, None, None, None, False, None)
    out = empty_strided(r, x.shape, dtype, place=x.device, pinned=False)
    copy(r, out, x)
    r.end(out)
    r.end(out)
    return r.track("ToCopyBackward0", (x,), out, lambda g: [to_dtype(r, g, x.dtype)])


def cast(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as autocast gives it to an op: no op where it is a `dtype`."""
    return x if x.dtype == dtype else to_dtype(r, x, dtype)


def to_device(r: Recorder, x: Tensor, place: str, *, non_blocking: bool = False) -> Tensor:
    """`x` on the device `place`; itself where it is there already."""
    code = TYPE_CODES[x.dtype]
    r.begin("aten::to", x, code, STRIDED, place, None, non_blocking, False, None)
    if x.device == place:
        r.end(x)
        return x
    r.begin("aten::_to_copy", x, code, STRIDED, place, None, non_blocking, None)
    out = empty_strided(r, x.shape, x.dtype, place=place, pinned=False)
    copy(r, out, x, non_blocking=non_blocking)
    r.end(out)
    r.end(out)
    return out


def send_from_host(r: Recorder, shape: Shape, dtype: str, *, pinned: bool) -> Tensor:
    """A host tensor of the batch, sent to the device; from pageable memory the host waits."""
    host = r.tensor(shape, dtype, place="cpu")
    return to_device(r, host, r.place, non_blocking=pinned)


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
    if not tracked:
        return out
    return r.track("TransposeBackward0", (x,), out, lambda g: [transpose(r, g, first, second)])


def t(r: Recorder, x: Tensor) -> Tensor:
    """The transposed matrix."""
    r.begin("aten::t", x)
    out = transpose(r, x, 0, 1, tracked=False)
    r.end(out)
    return r.track("TBackward0", (x,), out, lambda g: [t(r, g)])


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
    else:
        out = view(r, clone(r, x), full, "aten::_unsafe_view")
    r.end(out)
    return r.track("ViewBackward0", (x,), out, lambda g: [reshape(r, g, x.shape)])


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
    return r.track("UnsqueezeBackward0", (x,), out, lambda g: [squeeze(r, g, dim)])


def squeeze(r: Recorder, x: Tensor, dim: int | None = None) -> Tensor:
    """Without the dims of size 1, or without `dim`."""
    r.begin("aten::squeeze", x, *(() if dim is None else (dim,)))
    gone = None if dim is None else dim % max(len(x.shape), 1)
    kept = [i for i, size in enumerate(x.shape) if size != 1 or (gone is not None and i != gone)]
    out = as_strided(r, x, tuple(x.shape[i] for i in kept), tuple(x.strides[i] for i in kept))
    r.end(out)
    if gone is None:
        return out
    return r.track("SqueezeBackward1", (x,), out, lambda g: [unsqueeze(r, g, gone)])


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
    wanted = [tracked and r.needs_gradient(x) for x in joined]

    def backward(gradient: Tensor) -> list[Tensor | None]:
        parts, start = list[Tensor | None](), 0
        for x, wants in zip(joined, wanted, strict=True):
            parts.append(narrow(r, gradient, dim, start, x.shape[dim]) if wants else None)
            start += x.shape[dim]
        return parts

    return r.track("CatBackward0", joined, out, backward) if tracked else out


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


def stack(r: Recorder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Side by side along a new `dim`."""
    joined = tuple(tensors)
    r.begin("aten::stack", joined, dim)
    first = joined[0]
    flat = cat(r, joined, dim, tracked=False)
    out = view(r, flat, (*first.shape[:dim], len(joined), *first.shape[dim:]))
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        return [select(r, gradient, dim, number) for number in range(len(joined))]

    return r.track("StackBackward0", joined, out, backward)
