"""One rank's step: what is asked of an implementation, its ops, and the data edges between them."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.embedding import MicroBatch, Pipeline, Placement
from perfmodel.errors import Note, WorkloadError
from perfmodel.ops.graph import NO_OP, Argument, Op, OpGraph, Tensor, tensors_in
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.settings import IMPLEMENTATIONS
from perfmodel.workload.sharding import Plan, plan, plan_of_placement
from perfmodel.workload.tables import Table, lookup_attributes

Target = Literal["cuda", "rocm", "cpu"]


@dataclass(frozen=True)
class Run:
    """A step of `workload` on one of `ranks`: `batch` samples of each rank, trained or not.

    `plan` says which tables each rank holds; links join `linked` ranks each. `placement` and
    `pipeline` are what the implementation `tiered` runs, and no other.
    """

    workload: Workload
    batch: int
    ranks: int
    rank: int
    target: Target
    train: bool
    plan: Plan
    linked: int
    placement: Placement | None = None
    pipeline: Pipeline | None = None
    micro_batch: MicroBatch = field(default_factory=MicroBatch)
    """Which part of the step's samples `batch` is, where a pipeline parts them."""
    sends_partial_sums: bool = False
    """By the all-to-all of whole tables, where parts of one lie on several ranks."""
    sharers: float = 0.0
    """Ranks like this one that ask as much of the node's drives as all its ranks do."""

    @property
    def global_batch(self) -> int:
        return self.batch * self.ranks

    @property
    def groups(self) -> int:
        """How many groups of linked ranks there are."""
        return self.ranks // self.linked

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables that this rank holds, and parts of tables."""
        return tuple(shard.of(self.workload.tables) for shard in self.plan.shards[self.rank])

    @cached_property
    def replicas(self) -> tuple[Table, ...]:
        """The tables that every rank holds."""
        return tuple(self.workload.tables[number] for number in self.plan.replicated)

    @cached_property
    def attributes(self) -> tuple[dict[str, str], ...]:
        """Per table of this rank: what the global batch looks up, as attributes of an op."""
        return tuple(lookup_attributes((table,), self.global_batch) for table in self.tables)

    @property
    def style(self) -> str:
        """How the dense optimizer runs: what PyTorch picks unless the workload says."""
        asked = self.workload.implementation.optimizer_style
        if asked != "default":
            return asked
        return "loop" if self.target == "cpu" else "foreach"


def data_edges(ops: Sequence[Op], views: set[int]) -> NDArray[np.int64]:
    """`[E, 2]`: (producer, consumer) by index of `ops`; `views` are tensors that views returned.

    An op reads the storages of its inputs when it is called. When it returns it has written those
    of its outputs that are no views, and of inputs that it returns: it worked in place.
    """
    writer: dict[int, int] = {}
    edges: list[tuple[int, int]] = []
    writing: list[tuple[int, list[int]]] = []
    for index, op in enumerate(ops):
        while writing and writing[-1][0] > op.parent:
            returned, written = writing.pop()
            for key in written:
                writer[key] = max(writer.get(key, NO_OP), returned)
        given, made = _tensors(op.inputs), _tensors(op.outputs)
        sources = {writer[key] for key in map(_key, given) if key in writer}
        edges += [(source, index) for source in sorted(sources)]
        if made:
            ids = {x.tensor_id for x in given}
            written = [_key(x) for x in made if x.tensor_id not in views or x.tensor_id in ids]
            writing.append((index, written))
    return np.array(edges, np.int64).reshape(-1, 2)


def _tensors(arguments: tuple[Argument, ...]) -> list[Tensor]:
    tensors = []
    for argument in arguments:  # a shortcut for most: no tuple
        if type(argument) is Tensor:
            tensors.append(argument)
        elif type(argument) is tuple:
            tensors += tensors_in(argument)
    return [x for x in tensors if 0 not in x.shape]


def _key(tensor: Tensor) -> int:
    return tensor.storage_id or -tensor.tensor_id


TIERED = "tiered"
"""The implementation that runs a placement and a pipeline."""
NO_GRAPHS = "implementation.cuda_graphs changes nothing: a CPU launches no graphs"


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
    sharers: float = 0.0,
) -> OpGraph:
    """The ops of one step of `rank`; `batch` is global, of all `ranks`.

    Links join `linked` ranks each (all, unless given); a network joins these groups. `target`
    decides what each op calls and on which thread the backward pass runs; `threads` are a CPU's
    intra-op threads. With `train` off: the forward pass alone, without labels. Where tables have a
    `placement`, it says where they lie, and `pipeline` how the step runs; else the workload's
    implementation does. Of a node's drives, a rank has the part that it needs of what `sharers`
    like it do (0: all its ranks).
    Raises `WorkloadError`.
    """
    total = workload.batch if batch is None else batch
    check_ranks(workload, total, ranks, rank)
    near = linked if linked and ranks % linked == 0 else ranks
    if placement is None:
        name, layout = workload.implementation.name, plan(workload, ranks, near)
    else:
        name = workload.implementation.name if workload.sequence.layers else TIERED
        layout = plan_of_placement(workload, placement, ranks, near)
    about = (workload, total // ranks, ranks, rank, target, train, layout, near)
    run = Run(*about, placement, pipeline, sharers=sharers)
    recorder = Recorder("cpu" if target == "cpu" else "cuda", threads=threads)
    recorder.tape = {} if train else None
    was_on = gc.isenabled()  # small objects that all stay: to look for garbage takes half the time
    gc.disable()
    try:
        IMPLEMENTATIONS[name].record(recorder, run)
        ops = recorder.ops()
        data = data_edges(ops, recorder.views)
    finally:
        if was_on:
            gc.enable()
    graphs, is_cpu = workload.implementation.cuda_graphs, target == "cpu"
    notes = (Note(NO_GRAPHS),) if graphs and is_cpu else ()
    return OpGraph(
        *(ops, data),
        rank=rank,
        world_size=ranks,
        source=workload.name,
        notes=notes,
        cuda_graphs=graphs and not is_cpu,
    )


def check_ranks(workload: Workload, batch: int, ranks: int, rank: int) -> None:
    """Raise `WorkloadError` for an impossible batch, rank or number of ranks."""
    if ranks < 1 or not 0 <= rank < ranks:
        raise WorkloadError(f"{workload.name}: there is no rank {rank} among {ranks} ranks")
    if batch < 1 or batch % ranks:
        near = max(ranks, round(batch / ranks) * ranks)
        raise WorkloadError(
            f"{workload.name}: a global batch of {batch} cannot be divided among {ranks} ranks; "
            f"nearest: {near}"
        )
