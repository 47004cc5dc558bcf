"""Collectives between ranks, as PyTorch's distributed package issues them."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import view
from perfmodel.workload.step import Run

GROUP = "0"
KEYS, DENSE = "keys", "dense"
"""Process groups of a pipeline's `own_groups`; layers have theirs where tables have copies too."""


def group_of(run: Run, name: str) -> str:
    """The process group of `KEYS` or `DENSE`."""
    has_own = run.pipeline is not None and run.pipeline.own_groups
    return name if has_own or (name == DENSE and run.copies > 1) else GROUP


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
