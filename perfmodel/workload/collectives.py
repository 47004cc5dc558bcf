"""Collectives between ranks, as PyTorch's distributed package issues them."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Argument, Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import view
from perfmodel.workload.step import Run

GROUP = "0"
KEYS, DENSE = "keys", "dense"
"""Process groups of a pipeline's `own_groups`."""
NO_TIMEOUT = -1


def group_of(run: Run, name: str) -> str:
    """The process group of `KEYS` or `DENSE`."""
    return name if run.pipeline is not None and run.pipeline.own_groups else GROUP


def record_collective(r: Recorder, about: dict[str, str], *arguments: Argument) -> None:
    """What NCCL records below a call; Gloo's tasks are no ops."""
    if not r.is_cpu:
        r.leaf("record_param_comms", arguments, about=about)


def collective_attributes(
    kind: str,
    sent: Tensor,
    received: Tensor,
    ranks: int,
    splits: tuple[Sequence[int], Sequence[int]] | None = None,
    nodes: int | None = None,
    group: str = GROUP,
) -> dict[str, str]:
    """A collective's attributes: kind, group, elements sent and received, and how they split.

    `nodes`: over so many the ranks are spread, where they do not fill them one by one. Collectives
    of one group run one after the other, on its stream.
    Source: github.com/meta-pytorch/torchrec, pull request 4708.
    """
    about = {
        "collective": kind,
        "process_group": group,
        "group_size": str(ranks),
        "dtype": sent.dtype,
        "in_elements": str(sent.elements),
        "out_elements": str(received.elements),
    }
    if group != GROUP:
        about["stream"] = f"comm {group}"
    if nodes is not None:
        about["nodes"] = str(nodes)
    if splits is not None:
        about["in_split"], about["out_split"] = (",".join(map(str, each)) for each in splits)
    return about


def all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, sent_sizes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """`sent` `[n]` in pieces to the ranks, theirs into `received` `[m]`; differentiable."""
    splits, own = tuple(sizes), tuple(sent_sizes)
    r.begin("_AlltoAllSingle", received, splits, own, sent)
    all_to_all_call(r, sent, received, own, splits)
    out = view(r, received, received.shape, "view_as")
    r.end()

    def backward(gradient: Tensor) -> list[Tensor]:
        shape = (sum(own),)
        returned = r.made("aten::empty", (shape,), shape, gradient.dtype)
        return [all_to_all(r, gradient, returned, splits, own)]

    return r.track("_AlltoAllSingleBackward", (sent,), out, backward)


def all_to_all_call(
    r: Recorder,
    sent: Tensor,
    received: Tensor,
    sent_sizes: Sequence[int],
    sizes: Sequence[int],
    is_async: bool = False,
    nodes: int | None = None,
    group: str = GROUP,
) -> None:
    """The collective itself: `c10d::alltoall_base_`."""
    splits, own = tuple(sizes), tuple(sent_sizes)
    r.begin("c10d::alltoall_base_", received, sent, None, splits, own, is_async, NO_TIMEOUT)
    about = collective_attributes(
        "all_to_all", sent, received, len(splits), (own, splits), nodes, group
    )
    record_collective(r, about, sent, received)
    r.end(None, about=about)


def all_reduce(
    r: Recorder, bucket: Tensor, ranks: int, *, in_network: bool = False, group: str = GROUP
) -> None:
    """The sum over all ranks, into `bucket`; it goes on beside what follows.

    `in_network`: switches of the network may add up.
    """
    r.begin("c10d::allreduce_", (bucket,), None, None, None, True, NO_TIMEOUT)
    about = collective_attributes("all_reduce", bucket, bucket, ranks, group=group)
    if in_network:
        about["in_network"] = "1"
    record_collective(r, about, bucket)
    r.end((bucket,), None, about=about)


def even_all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, ranks: int, *, nodes: int | None = None
) -> None:
    """From each of `ranks` its share of `received`, to each one of `sent`; beside what follows."""
    own, theirs = ([x.elements // ranks] * ranks for x in (sent, received))
    all_to_all_call(r, sent, received, own, theirs, is_async=True, nodes=nodes)


def linked_collective(
    r: Recorder, kind: str, sent: Tensor, received: Tensor, ranks: int, group: str = GROUP
) -> None:
    """`kind` (`reduce_scatter all_gather`) of `sent` into `received` among linked ranks."""
    name = {"reduce_scatter": "c10d::_reduce_scatter_base_", "all_gather": "c10d::_allgather_base_"}
    r.begin(name[kind], received, sent, None, True, NO_TIMEOUT)
    about = collective_attributes(kind, sent, received, ranks, group=group)
    record_collective(r, about, sent, received)
    r.end(None, about=about)
