"""One rank's step: what is asked of an implementation, its ops, and the data edges between them.

What a step asks of each rank: classes of equal ranks, bytes exchanged.

Source: Mudigere et al., Neo (ISCA 2022), and TorchRec's sharding types: which collective each
scheme takes.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.calls import last_writers
from perfmodel.embedding import MicroBatch, Pipeline, Placement, TablePlacement
from perfmodel.errors import Note, WorkloadError
from perfmodel.hardware.parts import Target
from perfmodel.lowering.recorded import HELD_US, WAITED_US
from perfmodel.ops.graph import INPUT, Argument, Op, OpGraph, Tensor, tensors_in
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.settings import IMPLEMENTATIONS
from perfmodel.workload.sharding import Plan, own_placement, plan, plan_of_placement
from perfmodel.workload.stashed import stashed
from perfmodel.workload.tables import FP32_BYTES, Table, lookup_attributes


@dataclass(frozen=True)
class Run:
    """A step of `workload` on one of `ranks`: its `batch` samples, trained or not.

    The rank has most samples of all; on average ranks have `fill_frac` of them. They share one of
    `copies` of the tables, and their layers with the ranks of all copies. `plan` says which tables
    each rank holds, `placement` how; links join `linked` ranks each. `pipeline` is what the
    implementation `tiered` runs, and no other.
    """

    workload: Workload
    batch: int
    ranks: int
    rank: int
    target: Target
    train: bool
    plan: Plan
    linked: int
    placement: Placement
    pipeline: Pipeline = field(default_factory=Pipeline)
    micro_batch: MicroBatch = field(default_factory=MicroBatch)
    """Which part of the step's samples `batch` is, where a pipeline parts them."""
    sharers: float = 0.0
    """Ranks like this one that ask as much of the node's drives as all its ranks do."""
    copies: int = 1
    copies_nodes: int = 1
    """Over so many groups of linked ranks those of one place in each copy are spread."""
    fill_frac: float = 1.0

    @property
    def global_batch(self) -> int:
        """Samples whose rows come from the copy of the tables that this rank shares."""
        return max(round(self.batch * self.ranks * self.fill_frac), 1)

    @property
    def world(self) -> int:
        """Ranks that share the layers."""
        return self.ranks * self.copies

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


def data_edges(ops: Sequence[Op], views: set[int]) -> NDArray[np.int64]:
    """`[E, 2]`: (producer, consumer) by index of `ops`; `views` are tensors that views returned.

    An op reads the storages of its inputs when it is called. When it returns it has written those
    of its outputs that are no views, and of inputs that it returns: it worked in place.
    """
    reads: list[list[int]] = []
    writes: dict[int, list[int]] = {}
    for at, op in enumerate(ops):
        given, made = _tensors(op.inputs), _tensors(op.outputs)
        reads.append(list(map(_key, given)))
        if made:
            ids = {x.tensor_id for x in given}
            writes[at] = [_key(x) for x in made if x.tensor_id not in views or x.tensor_id in ids]
    above, thread = ([getattr(op, name) for op in ops] for name in ("parent", "thread"))
    return last_writers(above, thread, reads, writes)


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
NO_HOST_OPS = "training.host_ops and waited_us change nothing: on a CPU all ops are the model's"
BESIDE_MODEL = "program::beside_model"
"""One of `training.host_ops`."""


def op_graph(
    workload: Workload,
    batch: int | None = None,
    *,
    ranks: int = 1,
    rank: int = 0,
    target: Target = "cuda",
    train: bool = True,
    linked: int | None = None,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
    sharers: float = 0.0,
) -> OpGraph:
    """The ops of one step of `rank`; `batch` is global, of all `ranks`, shared out as evenly as can
    be: of ranks with one sample more, which decide the step.

    Links join `linked` ranks each (all, unless given); a network joins these groups. `target`
    decides what each op calls and on which thread the backward pass runs. With `train` off: the
    forward pass alone, without labels. Where tables have a `placement`, it says where they lie, and
    `pipeline` how the step runs; else the workload's implementation does. Of a node's drives, a
    rank has the part that it needs of what `sharers` like it do (0: all its ranks).
    Raises `WorkloadError`.
    """
    total = workload.batch if batch is None else batch
    check_ranks(workload, total, ranks, rank)
    within = ranks if placement is None else placement.within(ranks)
    near = linked if linked and within % linked == 0 else within
    name = workload.implementation.name
    if placement is None:
        placement, layout = own_placement(workload, ranks, near), plan(workload, ranks, near)
    else:
        name = name if workload.sequence.layers else TIERED
        layout = plan_of_placement(workload, placement, within, near)
    samples = -(-total // ranks)  # of the ranks with most
    pipeline = pipeline or Pipeline()
    stash = pipeline.stash
    run = Run(
        *(workload, samples, within, rank % within, target, train, layout, near, placement),
        pipeline=replace(pipeline, stash=None),
        sharers=sharers,
        copies=ranks // within,
        copies_nodes=max(ranks // max(within, linked or ranks), 1),
        fill_frac=total / (samples * ranks),
    )
    recorder = Recorder("cpu" if target == "cpu" else "cuda")
    recorder.tape = {} if train else None
    was_on = gc.isenabled()  # small objects that all stay: to look for garbage takes half the time
    gc.disable()
    host_ops = workload.training.host_ops if train else 0
    if waited_us := workload.training.waited_us:
        recorder.waiting = dict.fromkeys((WAITED_US, HELD_US), repr(waited_us))
    try:
        with recorder.during(INPUT):
            for _ in range(0 if target == "cpu" else host_ops):
                recorder.leaf(BESIDE_MODEL, (), about={"device": "cpu"})
        IMPLEMENTATIONS[name].record(recorder, run)
        ops = recorder.ops()
        ops = stashed(recorder, ops, *stash) if stash else ops
        data = data_edges(ops, recorder.views)
    finally:
        if was_on:
            gc.enable()
    graphs, is_cpu = workload.implementation.cuda_graphs, target == "cpu"
    without = {NO_GRAPHS: graphs, NO_HOST_OPS: host_ops or waited_us}
    notes = tuple(Note(text) for text, asked in without.items() if asked and is_cpu)
    if workload.recorded is not None:
        notes += tuple(map(Note, workload.recorded.at(run.batch).notes))
    return OpGraph(
        *(ops, data),
        rank=rank,
        world_size=ranks,
        source=workload.name,
        notes=notes,
        tf32=workload.implementation.precision == "tf32",
        cuda_graphs=graphs and not is_cpu,
    )


cached_op_graph = lru_cache(maxsize=8)(op_graph)
"""Of a sweep's points, and of what asks whether a step fits and how long it takes, many run the
same ops."""


def check_ranks(workload: Workload, batch: int, ranks: int, rank: int) -> None:
    """Raise `WorkloadError` for an impossible batch, rank or number of ranks."""
    if ranks < 1 or not 0 <= rank < ranks:
        raise WorkloadError(f"{workload.name}: there is no rank {rank} among {ranks} ranks")
    if batch < 1:
        raise WorkloadError(f"{workload.name}: a global batch of {batch}: expected 1 or more")


@dataclass(frozen=True)
class RankClass:
    """Ranks that hold equal tables in the same order; per sample each reads `looked_up` elements
    and sends `pooled`. Of a batch's distinct rows `beside` elements lie outside device memory. Its
    tables have `held_rows_bytes` in fp32."""

    ranks: tuple[int, ...]
    looked_up: float
    pooled: int
    beside: float = 0.0
    held_rows_bytes: int = 0


@lru_cache(maxsize=8)
def rank_classes(
    workload: Workload,
    ranks: int,
    linked: int | None = None,
    placement: Placement | None = None,
    batch: int | None = None,
) -> list[RankClass]:
    """The classes of `ranks` under `placement`, else the plan of `workload`, by their first rank;
    of groups with a copy of the tables each, those of one.

    `batch` is global, the workload's where it is not given.

    Raises `WorkloadError` as `plan` and `placed` do.
    """
    ways: list[TablePlacement | None] = [None] * len(workload.tables)
    if placement is None:
        held = plan(workload, ranks, linked)
    else:
        within = placement.within(ranks)
        batch = (batch or workload.batch) * within // ranks
        held = plan_of_placement(workload, placement, within, linked)
        ways = [replace(each, ranks=(0,), sharding="table_wise") for each in placement.tables]
    by_work: dict[tuple[tuple[Table, TablePlacement | None], ...], list[int]] = {}
    parts = held.of_each(lambda each: (each.of(workload.tables), ways[each.table]))
    for rank, own in enumerate(parts):
        by_work.setdefault(tuple(own), []).append(rank)
    return [
        RankClass(
            tuple(own),
            sum(table.pooling * table.dim for table, _ in key),
            round(sum(table.width for table, _ in key)),
            sum(
                table.unique_rows(batch or workload.batch) * table.dim
                for table, way in key
                if way is not None and way.tier != "hbm"
            ),
            sum(table.rows * table.dim for table, _ in key) * FP32_BYTES,
        )
        for key, own in by_work.items()
    ]


def deciding_classes(classes: list[RankClass], *works: str) -> list[RankClass]:
    """The class that looks up and sends most, and where others send most, read most beside the
    device, or have most of another of the `works`, those too."""
    first = max(classes, key=lambda each: each.looked_up + each.pooled)
    deciding = [first]
    for work in ("pooled", "beside", *works):
        other = max([*deciding, *classes], key=attrgetter(work))
        if other not in deciding:
            deciding.append(other)
    return deciding
