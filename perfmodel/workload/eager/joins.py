"""Operators that join tensors."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import GRAIN, Recorder, is_contiguous
from perfmodel.workload.eager.views import narrow, view


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
    if tracked and r.tape is not None:
        r.tape.add("aten::cat", joined, (out,), (dim,))
    return out


def stack(r: Recorder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Side by side along a new `dim`."""
    joined = tuple(tensors)
    r.begin("aten::stack", joined, dim)
    first = joined[0]
    flat = cat(r, joined, dim, tracked=False)
    out = view(r, flat, (*first.shape[:dim], len(joined), *first.shape[dim:]))
    r.end(out)
    if r.tape is not None:
        r.tape.add("aten::stack", joined, (out,), (dim,))
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
