"""From a workload to the ops that one rank runs in one step."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from perfmodel.errors import WorkloadError
from perfmodel.graph.ops import OpGraph
from perfmodel.placement import Pipeline, Placement
from perfmodel.workload.autograd.tape import Tape
from perfmodel.workload.eager.edges import data_edges
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.run import IMPLEMENTATIONS, Run, Target
from perfmodel.workload.shards import placed, plan

TIERED = "tiered"
"""The implementation that runs a placement and a pipeline."""


def op_graph(
    workload: Workload,
    batch: int | None = None,
    *,
    ranks: int = 1,
    rank: int = 0,
    target: Target = "cuda",
    train: bool = True,
    threads: int = 1,
    linked: int | None = None,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
) -> OpGraph:
    """The ops of one step of `rank`; `batch` is global, of all `ranks`.

    Links join `linked` ranks each (all, unless given); a network joins these groups. `target`
    decides what each op calls and on which thread the backward pass runs; `threads` are a CPU's
    intra-op threads. With `train` off: the forward pass alone, without labels. Where tables have a
    `placement`, it says where they lie, and `pipeline` how the step runs; else the workload's
    implementation does.
    Raises `WorkloadError`.
    """
    total = workload.batch if batch is None else batch
    check_ranks(workload, total, ranks, rank)
    near = linked if linked and ranks % linked == 0 else ranks
    if placement is None:
        name, layout = str(workload.implementation.name), plan(workload, ranks, near)
    else:
        name, layout = TIERED, placed(workload, placement, ranks, near)
    own = total // ranks
    run = Run(workload, own, ranks, rank, target, train, layout, near, placement, pipeline)
    recorder = Recorder("cpu" if target == "cpu" else "cuda", threads=threads)
    recorder.tape = Tape() if train else None
    with _without_collector():
        IMPLEMENTATIONS[name](recorder, run)
        ops = recorder.ops()
        data = data_edges(ops, recorder.views)
    return OpGraph(ops, data, rank=rank, world_size=ranks, source=workload.name)


def inference(workload: Workload, batch: int | None = None, **settings: int | str) -> OpGraph:
    """The forward pass alone; `settings` are those of `op_graph`."""
    return op_graph(workload, batch, train=False, **settings)  # type: ignore[arg-type]


def check_ranks(workload: Workload, batch: int, ranks: int, rank: int) -> None:
    """Raise `WorkloadError` for a batch, or a number of ranks, that cannot be."""
    if ranks < 1 or not 0 <= rank < ranks:
        raise WorkloadError(f"{workload.name}: rank {rank} of {ranks} ranks cannot be")
    if batch < 1 or batch % ranks:
        near = max(ranks, round(batch / ranks) * ranks)
        raise WorkloadError(
            f"{workload.name}: a global batch of {batch} cannot be divided among {ranks} ranks; "
            f"nearest: {near}"
        )


@contextmanager
def _without_collector() -> Iterator[None]:
    """Many small objects that all stay: looking for garbage among them would take half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
