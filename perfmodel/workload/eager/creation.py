"""Operators that make, fill and copy tensors, and send them to the device."""

from __future__ import annotations

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import GRAIN, TYPE_CODES, Recorder, Shape, contiguous, track
from perfmodel.workload.eager.views import CONTIGUOUS

PRESERVE = 1
"""`torch.preserve_format` among the arguments of an op."""
STRIDED = 0
"""`torch.strided` among the arguments of an op."""


def empty(r: Recorder, shape: Shape, dtype: str = "fp32", form: int | None = None) -> Tensor:
    """A new tensor, not filled; `form` is the memory format."""
    out = r.tensor(shape, dtype)
    r.leaf("aten::empty", (shape, TYPE_CODES[dtype], STRIDED, r.place, None, form), out)
    return out


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
    out = r.tensor(shape, dtype, place=place)
    strides = contiguous(shape)
    code = TYPE_CODES[dtype]
    r.leaf("aten::empty_strided", (shape, strides, code, STRIDED, place or r.place, pinned), out)
    return out


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


def zero(r: Recorder, x: Tensor) -> None:
    """Every element to 0: on a CPU by `memset` where one thread does it."""
    r.begin("aten::zero_", x)
    if not r.is_cpu or x.elements >= GRAIN:
        fill(r, x, 0)
    r.end(x)


def arange(r: Recorder, stop: int, step: int) -> Tensor:
    """0, `step`, … below `stop`, as int64."""
    code = TYPE_CODES["int64"]
    r.begin("aten::arange", 0, stop, step, code, None, r.place, False)
    before = r.tensor((0,), "int64")
    r.leaf("aten::empty", ((0,), code, None, r.place, False, None), before)
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
    track(r, "aten::_to_copy", (x,), out)
    return out


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
