"""Collectives between ranks, as PyTorch's distributed package issues them."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import BACKWARD, Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.recorder import TYPE_CODES, Recorder
from perfmodel.workload.eager.views import view

GROUP = {"process_group": "0"}
NO_TIMEOUT = -1


def collective(r: Recorder, kind: str, inputs: Sequence[Tensor]) -> None:
    """What the backend runs below a call: of Gloo a task, of NCCL its record and its kernel."""
    about = {**GROUP, "collective": kind}
    if r.is_cpu:
        r.leaf(f"gloo:{kind}", tuple(inputs), backend="gloo", **about)
        return
    r.begin("record_param_comms", *inputs, kind)
    r.leaf(f"nccl:{kind}", tuple(inputs), backend="nccl", **about)
    r.end(backend="nccl", **about)


def all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, sent_sizes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """`sent` `[n]` in pieces to the ranks, theirs into `received` `[m]`; differentiable."""
    splits, own = tuple(sizes), tuple(sent_sizes)
    r.begin("_AlltoAllSingle", received, splits, own, sent)
    all_to_all_call(r, sent, received, own, splits)
    r.begin("aten::view_as", received, received)
    out = view(r, received, received.shape)
    r.end(out)
    r.end()
    track(r, "_AlltoAllSingle", (sent,), out, own, splits)
    return out


def all_to_all_call(
    r: Recorder,
    sent: Tensor,
    received: Tensor,
    sent_sizes: Sequence[int],
    sizes: Sequence[int],
    *,
    is_async: bool = False,
) -> None:
    """The collective itself: `c10d::alltoall_base_`."""
    splits, own = tuple(sizes), tuple(sent_sizes)
    r.begin("c10d::alltoall_base_", received, sent, None, splits, own, is_async, NO_TIMEOUT)
    collective(r, "all_to_all", (sent,))
    r.end(None)


def all_reduce(r: Recorder, bucket: Tensor) -> None:
    """The sum over all ranks, into `bucket`; it goes on beside what follows."""
    r.begin("c10d::allreduce_", (bucket,), None, None, None, True, NO_TIMEOUT)
    collective(r, "all_reduce", (bucket,))
    r.end((bucket,), None)


@rule("_AlltoAllSingle", "_AlltoAllSingleBackward")
def _all_to_all_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None and r.phase == BACKWARD
    sent_sizes, sizes = node.saved
    shape = (sum(sent_sizes),)
    received = r.tensor(shape, gradient.dtype)
    code = TYPE_CODES[gradient.dtype]
    r.leaf("aten::empty", (shape, code, None, r.place, False, None), received)
    return [all_to_all(r, gradient, received, sizes, sent_sizes)]


def like(r: Recorder, x: Tensor, size: int) -> Tensor:
    """`x.new_empty(size)`."""
    r.begin("aten::new_empty", x, (size,), None, None, None, False)
    out = r.tensor((size,), x.dtype)
    r.leaf("aten::empty", ((size,), TYPE_CODES[x.dtype], 0, r.place, False, None), out)
    r.end(out)
    return out
