"""Operators that make, fill, copy and join tensors, view them anew, send them to the device, or to
other ranks: collectives, as PyTorch's distributed package issues them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfmodel.ops.graph import Argument, Tensor
from perfmodel.workload.eager.recorder import Recorder, Shape, contiguous, is_contiguous


def new_zeros(r: Recorder, like: Tensor, shape: Shape, dtype: str) -> Tensor:
    r.begin("aten::new_zeros", like, shape, dtype)
    out = zero(r, r.tensor(shape, dtype))
    r.end(out)
    return out


def empty_like(r: Recorder, x: Tensor) -> Tensor:
    return r.made("aten::empty_like", (x,), x.shape, x.dtype)


def zero(r: Recorder, x: Tensor) -> Tensor:
    r.leaf("aten::zero_", (x,), x)
    return x


def copy(r: Recorder, to: Tensor, source: Tensor, *, non_blocking: bool = False) -> None:
    """Elements of `source` into `to`, converted where their dtypes differ."""
    r.leaf("aten::copy_", (to, source, non_blocking), to)


def clone(r: Recorder, x: Tensor) -> Tensor:
    r.begin("aten::clone", x)
    out = r.like(x)
    copy(r, out, x)
    r.end(out)
    return out


def to_dtype(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as `dtype`; itself where it is one already."""
    out = _converted(r, x, dtype, x.device, (dtype, False))
    if out is x:
        return x
    return r.track("ToCopyBackward0", (x,), out, lambda g: [to_dtype(r, g, x.dtype)])


def to_device(r: Recorder, x: Tensor, place: str, *, non_blocking: bool = False) -> Tensor:
    """`x` on the device `place`; itself where it is there already."""
    return _converted(r, x, x.dtype, place, (x.dtype, 0, place, None, non_blocking))


def _converted(
    r: Recorder, x: Tensor, dtype: str, place: str, arguments: tuple[Argument, ...]
) -> Tensor:
    r.begin("aten::to", x, *arguments)
    out = x
    if (x.dtype, x.device) != (dtype, place):
        r.begin("aten::_to_copy", x, *arguments)
        out = r.made("aten::empty_strided", (x.shape,), x.shape, dtype, place=place)
        copy(r, out, x, non_blocking=bool(arguments[-1]))
        r.end(out)
    made = () if out is x else (out,)
    r.end(*made)
    return out


def cast(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """`x` as autocast gives it to an op: no op where it is a `dtype`."""
    return x if x.dtype == dtype else to_dtype(r, x, dtype)


def send_from_host(r: Recorder, shape: Shape, dtype: str, *, pinned: bool) -> Tensor:
    """A host tensor of the batch, sent to the device; from pageable memory the host waits."""
    host = r.tensor(shape, dtype, place="cpu")
    return to_device(r, host, r.place, non_blocking=pinned)


def _viewed(
    r: Recorder, name: str, x: Tensor, arguments: tuple[Argument, ...], shape: Shape, strides: Shape
) -> Tensor:
    """The same elements with another shape and other strides, by the operator `name`."""
    out = r.view(x, shape, strides)
    r.leaf(f"aten::{name}", (x, *arguments), out)
    return out


def as_strided(r: Recorder, x: Tensor, shape: Shape, strides: Shape, offset: int) -> Tensor:
    """`offset` counts from the start of the storage."""
    return _viewed(r, "as_strided", x, (shape, strides, offset), shape, strides)


def transpose(r: Recorder, x: Tensor, first: int, second: int) -> Tensor:
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    shape, strides = (tuple(each[dim] for dim in order) for each in (x.shape, x.strides))
    out = _viewed(r, "transpose", x, (first, second), shape, strides)
    return r.track("TransposeBackward0", (x,), out, lambda g: [transpose(r, g, first, second)])


def t(r: Recorder, x: Tensor) -> Tensor:
    out = _viewed(r, "t", x, (), x.shape[::-1], x.strides[::-1])
    return r.track("TBackward0", (x,), out, lambda g: [t(r, g)])


def view(r: Recorder, x: Tensor, shape: Shape, name: str = "view") -> Tensor:
    """Another shape of the same elements; one size may be -1."""
    full = _resolved(x, shape)
    return _viewed(r, name, x, (shape,), full, view_strides(x, full) or contiguous(full))


def reshape(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Another shape: a view where the strides allow it, else of a contiguous copy."""
    full = _resolved(x, shape)
    r.begin("aten::reshape", x, shape)
    if view_strides(x, full) is not None:
        out = view(r, x, shape)
    else:
        out = view(r, clone(r, x), full, "_unsafe_view")
    r.end(out)
    return r.track("ViewBackward0", (x,), out, lambda g: [reshape(r, g, x.shape)])


def select(r: Recorder, x: Tensor, dim: int, index: int) -> Tensor:
    """One slice along `dim`, which goes."""
    shape, strides = x.shape[:dim] + x.shape[dim + 1 :], x.strides[:dim] + x.strides[dim + 1 :]
    return _viewed(r, "select", x, (dim, index), shape, strides)


def narrow(r: Recorder, x: Tensor, dim: int, start: int, length: int) -> Tensor:
    """`length` elements of `dim` from `start`."""
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return _viewed(r, "narrow", x, (dim, start, length), shape, x.strides)


def unsqueeze(r: Recorder, x: Tensor, dim: int) -> Tensor:
    """A dim of size 1 before `dim`."""
    stride = x.shape[dim] * x.strides[dim] if dim < len(x.shape) else 1
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    strides = (*x.strides[:dim], stride, *x.strides[dim:])
    out = _viewed(r, "unsqueeze", x, (dim,), shape, strides)
    return r.track("UnsqueezeBackward0", (x,), out, lambda g: [squeeze(r, g, dim)])


def squeeze(r: Recorder, x: Tensor, dim: int) -> Tensor:
    """Without `dim`, where it is of size 1."""
    gone = dim % len(x.shape)
    behind = gone + (x.shape[gone] == 1)
    shape, strides = (each[:gone] + each[behind:] for each in (x.shape, x.strides))
    out = _viewed(r, "squeeze", x, (dim,), shape, strides)
    return r.track("SqueezeBackward1", (x,), out, lambda g: [unsqueeze(r, g, gone)])


def detach(r: Recorder, x: Tensor) -> Tensor:
    """The same tensor, out of autograd's sight."""
    return _viewed(r, "detach", x, (), x.shape, x.strides)


def view_strides(x: Tensor, shape: Shape) -> Shape | None:
    """Strides of `x`, or of rows of a part, seen as `shape`; None where that takes a copy."""
    usual = contiguous(shape)
    if is_contiguous(x):
        return usual
    are_rows = x.shape[:1] == shape[:1] and x.strides[1:] == contiguous(x.shape)[1:]
    return (x.strides[0], *usual[1:]) if are_rows else None


def _resolved(x: Tensor, shape: Shape) -> Shape:
    if -1 not in shape:
        return shape
    rest = -prod(shape)
    return tuple(x.elements // rest if size == -1 else size for size in shape)


def cat(r: Recorder, tensors: Sequence[Tensor], dim: int, *, tracked: bool = True) -> Tensor:
    """One after the other along `dim`."""
    joined, first = tuple(tensors), tensors[0]
    total = sum(x.shape[dim] for x in joined)
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    out = r.made("aten::cat", (joined, dim), shape, first.dtype)
    wanted = [tracked and r.needs_gradient(x) for x in joined]

    def backward(gradient: Tensor) -> list[Tensor | None]:
        parts, start = list[Tensor | None](), 0
        for x, wants in zip(joined, wanted, strict=True):
            parts.append(narrow(r, gradient, dim, start, x.shape[dim]) if wants else None)
            start += x.shape[dim]
        return parts

    return r.track("CatBackward0", joined, out, backward) if tracked else out


def stack(r: Recorder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    joined, shape = tuple(tensors), tensors[0].shape
    r.begin("aten::stack", joined, dim)
    flat = cat(r, joined, dim, tracked=False)
    out = view(r, flat, (*shape[:dim], len(joined), *shape[dim:]))
    r.end(out)

    def backward(gradient: Tensor) -> list[Tensor]:
        return [select(r, gradient, dim, number) for number in range(len(joined))]

    return r.track("StackBackward0", joined, out, backward)


GROUP = "0"
DENSE = "dense"
"""The process group of layers where tables have copies too."""


CALLS = {
    "all_to_all": "c10d::alltoall_base_",
    "all_reduce": "c10d::allreduce_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_gather": "c10d::_allgather_base_",
}


def linked_collective(
    r: Recorder,
    kind: str,
    sent: Tensor,
    received: Tensor,
    ranks: int,
    group: str = GROUP,
    **about: str,
) -> None:
    """`kind` (of `CALLS`) of `sent` into `received` among `ranks`; it goes on beside what follows.

    Collectives of one group run one after the other, on its stream. `about`: more attributes.
    Source: github.com/meta-pytorch/torchrec, pull request 4708.
    """
    about |= {
        "collective": kind,
        "process_group": group,
        "group_size": str(ranks),
        "dtype": sent.dtype,
        "in_elements": str(sent.elements),
        "out_elements": str(received.elements),
    }
    if group != GROUP:
        about["stream"] = f"comm {group}"
    r.begin(CALLS[kind], received, sent)
    if not r.is_cpu:  # what NCCL records below a call; Gloo's tasks are no ops
        r.leaf("record_param_comms", (sent, received), received, about=about)
    r.end(received, about=about)


def all_to_all_call(
    r: Recorder,
    sent: Tensor,
    received: Tensor,
    sent_sizes: Sequence[int],
    sizes: Sequence[int],
    *,
    nodes: int | None = None,
    group: str = GROUP,
) -> None:
    """`sent` in pieces of `sent_sizes` elements to the ranks, theirs, of `sizes`, into `received`.

    `nodes`: over so many the ranks are spread, where they do not fill them one by one.
    """
    about = {} if nodes is None else {"nodes": str(nodes)}
    for name, split in (("in_split", sent_sizes), ("out_split", sizes)):
        about[name] = ",".join(map(str, split))
    linked_collective(r, "all_to_all", sent, received, len(sizes), group, **about)


def shares(count: int, ranks: int) -> list[int]:
    """`count` among `ranks` as evenly as can be."""
    less, more = divmod(count, ranks)
    return [less + 1] * more + [less] * (ranks - more)


def even_all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, ranks: int, *, nodes: int | None = None
) -> None:
    """From each of `ranks` its share of `received`, to each one of `sent`."""
    own, theirs = (shares(x.elements, ranks) for x in (sent, received))
    all_to_all_call(r, sent, received, own, theirs, nodes=nodes)


def all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, sent_sizes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """`sent` `[n]` in pieces to the ranks, theirs into `received` `[m]`; differentiable."""
    r.begin("_AlltoAllSingle", received, sent)
    all_to_all_call(r, sent, received, sent_sizes, sizes)
    out = view(r, received, received.shape, "view_as")
    r.end()

    def backward(gradient: Tensor) -> list[Tensor]:
        shape = (sum(sent_sizes),)
        returned = r.made("aten::empty", (shape,), shape, gradient.dtype)
        return [all_to_all(r, gradient, returned, sizes, sent_sizes)]

    return r.track("_AlltoAllSingleBackward", (sent,), out, backward)


def all_reduce(
    r: Recorder,
    bucket: Tensor,
    ranks: int,
    *,
    in_network: bool = False,
    nodes: int | None = None,
    group: str = GROUP,
) -> None:
    """The sum over all ranks, into `bucket`. `in_network`: switches of the network may add up;
    `nodes` as in `all_to_all_call`."""
    about = {"in_network": "1"} if in_network else {}
    about |= {} if nodes is None else {"nodes": str(nodes)}
    linked_collective(r, "all_reduce", bucket, bucket, ranks, group, **about)
