"""Estimators for TorchRec's planner: what a shard takes is what perfmodel's own has it take.

Words are those of TorchRec's `distributed/planner/types.py`; what they are made of is
`designs/layouts/surrogate.py`: lookups with each table's skew, misses of its cache, copies, its
part of the collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB, US_PER_MS
from perfmodel.designs import Deployment
from perfmodel.designs.layouts.problem import ANY, EVERY, GROUP, WHOLE, Problem, Way, replica_bytes
from perfmodel.designs.layouts.surrogate import End, keys_us, missed_us, timed
from perfmodel.embedding import Pipeline, Placement, RowDtype, Sharding
from perfmodel.errors import UsageError, WorkloadError
from perfmodel.explore.torchrec import CACHED, CACHED_FRAC, KERNELS, known, number_of
from perfmodel.hardware import Cluster
from perfmodel.prediction.request import Hardware, changed_workload
from perfmodel.prediction.step import cluster_of
from perfmodel.torchrec.plans import check_names, module_of, pipeline_of, tables_of
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.settings import Implementation, Training
from perfmodel.workload.sharding import Shard
from perfmodel.workload.tables import Table

if TYPE_CHECKING:
    import pandas as pd

SHARDINGS: dict[str, tuple[Sharding, int]] = {
    "table_wise": ("table_wise", ANY),
    "column_wise": ("column_wise", ANY),
    "table_column_wise": ("column_wise", ANY),
    "row_wise": ("row_wise", EVERY),
    "table_row_wise": ("table_row_wise", GROUP),
    "grid_shard": ("table_row_wise", GROUP),
    "data_parallel": ("data_parallel", EVERY),
}
"""TorchRec's types of sharding, to how their shards are exchanged and whose ranks hold them."""
DTYPES: dict[str, RowDtype] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPES |= {"uint8": "int8"}
PERF = (
    *("fwd_compute", "fwd_comms", "bwd_compute", "bwd_comms"),
    *("prefetch_compute", "input_dist_comms"),
)
"""Parts of TorchRec's `Perf`; the last is not in its total."""
ENDS: tuple[End, ...] = ("duration_us", "low_us", "high_us")
KEY_BYTES, ROW_ITEM_BYTES = 8.0, 4.0
"""Of an id, and of an element of a pooled row, in device memory."""
UNNAMED = Workload(
    "torchrec",
    training=Training(table_optimizer="rowwise_adagrad"),
    implementation=Implementation("torchrec"),
)
"""What tables are trained with where no workload says."""


class Times(NamedTuple):
    """What one shard takes: `parts_us` as of `PERF`, their total's 90 % interval (every model off
    the same way); and which way it is, of a table that counts as one for each of its `features`."""

    parts_us: Floats
    low_us: float
    high_us: float
    place: int
    features: int


@dataclass
class Asked:
    """The `tables` of a planner's sharding options on a machine, as they become known: the
    `workload`'s, or the planner's own where that has none."""

    machine: Cluster
    pipeline: Pipeline
    train: bool
    workload: Workload
    names: Sequence[str]
    skew: float | Mapping[str, float]
    tables: dict[str, Table] = field(default_factory=dict)

    def deployment(self, options: Sequence[Any]) -> Deployment:
        """All tables so far. Raises `WorkloadError` for one that the workload has not."""
        self.tables |= {option.fqn: self._table(option) for option in options}
        for name in self.skew if isinstance(self.skew, Mapping) else ():
            if not any(fqn.endswith(f".{name}") for fqn in self.tables):
                raise WorkloadError(f"skew: {name}: the planner's module has no such table")
        workload = replace(self.workload, tables=tuple(self.tables.values()))
        placement = Placement((WHOLE,) * len(self.tables))
        batch = options[0].batch_size * self.machine.gpus
        return Deployment(workload, self.machine, batch, placement, train=self.train)

    def _table(self, option: Any) -> Table:
        rows, dim = option.tensor.shape
        if not self.workload.tables:
            skew = self.skew
            alpha = skew.get(option.name, 0.0) if isinstance(skew, Mapping) else skew
            pooling = sum(option.input_lengths) / len(option.input_lengths)
            return Table(rows, dim, pooling, alpha, pooled=bool(option.is_pooled))
        table = self.workload.tables[number_of(option.name, self.workload, option.name, self.names)]
        if (table.rows, table.dim) != (rows, dim):
            has = f"{self.workload.name} has {table.rows} x {table.dim}"
            raise WorkloadError(f"{option.fqn}: {rows} x {dim}, but {has}")
        return table

    def ways(self, option: Any) -> list[Way]:
        """One for each shard. Raises `UsageError` for a sharding, a kernel or a type of rows that
        has no counterpart."""
        kernel, where = option.compute_kernel, option.fqn
        sharding, reach = known(SHARDINGS, option.sharding_type, f"{where}: sharding_type")
        tier = known(KERNELS, kernel, f"{where}: compute_kernel")
        dtype = known(DTYPES, str(option.tensor.dtype).removeprefix("torch."), f"{where}: dtype")
        frac = (option.cache_load_factor or CACHED_FRAC) if kernel in CACHED else 0.0
        table, number = self.tables[where], list(self.tables).index(where)
        training, held, made = self.workload.training, replace(WHOLE, dtype=dtype, tier=tier), []
        optimizers = training.table_optimizer, training.dense_optimizer
        fused, dense = optimizers if self.train else (None, None)
        for shard in option.shards:
            part = replace(table, dim=shard.size[1])
            parts, size = len(option.shards), shard_bytes(part, held, fused)
            if sharding == "data_parallel":
                size = replica_bytes(part, held, dense)
            else:
                parts = sum(other.offset[1] == shard.offset[1] for other in option.shards)
                part, size = Shard(0, parts).of((part,)), size / parts
            made.append(Way(number, sharding, tier, parts, reach, part, dtype, size, frac))
        return made


@dataclass
class PerfEstimator:
    """TorchRec's `ShardEstimator` of times, and its `PerfModel` of plans.

    `times` holds what was estimated: by table, type of sharding, kernel, share of rows cached and
    the shard's offsets.
    """

    asked: Asked
    times: dict[tuple[Any, ...], Times] = field(default_factory=dict)
    problem: Problem | None = None

    def estimate(self, sharding_options: Sequence[Any], *_: Any, **__: Any) -> None:
        """Gives every shard its `Perf`, in milliseconds. Raises `PerfmodelError`."""
        if not sharding_options:
            return
        perf = module_of("distributed.planner.types").Perf
        has = {each.name for each in fields(perf)}  # some came with later releases
        deployment = self.asked.deployment(sharding_options)
        of_option = [self.asked.ways(option) for option in sharding_options]
        before = self.problem.ways if self.problem else ()  # proposers ask again, for other caches
        ways = tuple(dict.fromkeys((*before, *chain(*of_option))))
        at = {way: place for place, way in enumerate(ways)}
        self.problem = timed(deployment, ways)
        pipeline = self.asked.pipeline
        every = np.array([_parts_us(deployment, ways, pipeline, end) for end in ENDS])
        for option, own in zip(sharding_options, of_option, strict=True):
            features = len(option.input_lengths)
            for number, (shard, way) in enumerate(zip(option.shards, own, strict=True)):
                place = at[way]
                parts_us = every[:, :, place] * features
                # of blocks by popularity the first has more, and all others less
                more_us = self.problem.first_us[place] * features
                parts_us[:, 0] += more_us / (1 if number == 0 else 1 - max(way.parts, 2))
                _, low_us, high_us = parts_us[:, :-1].sum(axis=1).tolist()
                times = Times(parts_us[0], low_us, high_us, place, features)
                self.times[key_of(option.fqn, option, shard.offset)] = times
                named = zip(PERF, (parts_us[0] / US_PER_MS).tolist(), strict=True)
                shard.perf = perf(**{name: ms for name, ms in named if name in has})

    def rate(self, plan: Sequence[Any]) -> float:
        """Milliseconds of a step of the plan (sharding options whose shards have ranks), as
        `Layout.step_us`; or the next step's rows, where they take longer beside it."""
        it = self.problem
        if it is None:
            raise UsageError("performance_model: the enumerator has not estimated with it yet")
        sent_us, (work, fetched) = np.zeros((2, 2, it.ranks))
        chosen = list[int]()
        for option in plan:
            for shard in option.shards:
                own = self.times[key_of(option.fqn, option, shard.offset)]
                work[shard.rank] += own.parts_us[[0, 2]].sum()
                sent_us[:, shard.rank] += it.sent_us[:, own.place] * own.features
                fetched[shard.rank] += own.parts_us[4]
            chosen += [own.place] * own.features
        every = np.array(chosen)
        shared_us, *of_replicas = it.shared(every)
        busiest_us = work.max() + it.spread_us(every)
        step_us = it.step_us(busiest_us, sent_us.max(axis=1).sum() + shared_us, *of_replicas)
        return float(max(step_us, fetched.max())) / US_PER_MS

    def shards(self, plan: Any) -> pd.DataFrame:
        """Of TorchRec's `ShardingPlan`, a row per shard: its rank, parts and total in milliseconds,
        and the total's interval. Raises `UsageError` for shards that were never estimated."""
        import pandas as pd

        rows = []
        for fqn, _, about in tables_of(plan):
            spec, kind, kernel = about.sharding_spec, about.sharding_type, about.compute_kernel
            offsets = [each.shard_offsets for each in spec.shards] if spec else [[0, 0]]
            for number, offset in enumerate(offsets):
                if (it := self.times.get(key_of(fqn, about, offset))) is None:
                    raise UsageError(f"{fqn}: {kind}, {kernel} at {offset} was not estimated here")
                ends = {"total": it.parts_us[:-1].sum(), "low": it.low_us, "high": it.high_us}
                times = dict(zip(PERF, it.parts_us, strict=True)) | ends
                row = {"table": fqn, "sharding": kind, "kernel": kernel}
                row["rank"] = about.ranks[number] if spec else None
                rows.append(row | {f"{key}_ms": us / US_PER_MS for key, us in times.items()})
        return pd.DataFrame(rows)


def _parts_us(
    deployment: Deployment, ways: tuple[Way, ...], pipeline: Pipeline, end: End
) -> Floats:
    """`[PERF, ways]` of one shard: of a forward pass, and what a training step has beyond it.

    A kind of collective's fixed part is shared by the shards that a rank has on average. Missed
    rows are part of lookups, or of the prefetch.
    """
    ahead = replace(deployment, train=False)
    one, both = timed(ahead, ways, end), timed(deployment, ways, end)
    prefetched = [missed_us(it, ways) * pipeline.rows_ahead for it in (ahead, deployment)]
    work, work_both = one.work_us - prefetched[0], both.work_us - prefetched[1]
    shards = np.maximum(one.parts * len(deployment.workload.tables) / one.ranks, 1.0)
    comms, comms_both = (
        it.sent_us[0] + it.shared_us + it.summed_us + np.array(it.fixed_us)[it.kind] / shards
        for it in (one, both)
    )
    keys, fixed_us = keys_us(deployment, ways, end)
    sent = keys + fixed_us / shards * (keys > 0)
    shown = 0.0 if pipeline.input_ahead else sent
    back, comms_back = work_both - work, comms_both - comms
    return np.array([work, comms + shown, back, comms_back, prefetched[1], sent])


@dataclass
class StorageEstimator:
    """TorchRec's `ShardEstimator` of bytes: rows with their optimizer's state and cache, gradients
    of replicas, ids of the batches under way, and pooled rows of one both ways."""

    asked: Asked

    def estimate(self, sharding_options: Sequence[Any], *_: Any, **__: Any) -> None:
        """Gives every shard its `Storage`. Raises `PerfmodelError`."""
        if not sharding_options:
            return
        storage = module_of("distributed.planner.types").Storage
        it, pipeline = self.asked.deployment(sharding_options), self.asked.pipeline
        batches = 1 + pipeline.input_ahead + pipeline.rows_ahead
        for option in sharding_options:
            features = len(option.input_lengths)
            for shard, way in zip(option.shards, self.asked.ways(option), strict=True):
                samples = it.samples if way.sharding == "data_parallel" else it.batch
                ids_bytes = KEY_BYTES * way.shard.lookups(samples) * batches
                rows_bytes = ROW_ITEM_BYTES * samples * way.shard.width * (1 + it.train)
                hbm_bytes = way.bytes_in("hbm") + features * (ids_bytes + rows_bytes)
                shard.storage = storage(hbm=round(hbm_bytes), ddr=round(way.bytes_in("host")))


def estimators(
    hardware: Hardware,
    topology: Any,
    *,
    nodes: int | None = None,
    workload: str | Path | Workload = UNNAMED,
    names: Sequence[str] = (),
    skew: float | Mapping[str, float] = 0.0,
    pipeline: Any = "train_sparse_dist",
    train: bool = True,
) -> tuple[PerfEstimator, StorageEstimator]:
    """Of times and of bytes, for TorchRec's `EmbeddingEnumerator(estimator=[...])`; that of times
    is a `performance_model` as well.

    `hardware` is a node or cluster (`nodes` of them) with the ranks of TorchRec's `topology`.
    Tables and lookups are those of the planner's module and constraints, accessed by Zipf's
    distribution of exponent `skew` (of all, or by table); under a `workload` the tables, optimizer,
    wires and layers are its own, and `names` are TorchRec's of its tables (by default they end in
    the table's number). `pipeline` is TorchRec's `PipelineType`, or its value.
    Raises `UsageError` for a topology that is missing or of another machine, and where TorchRec is
    missing or too old.
    """
    types, machine = module_of("distributed.planner.types"), cluster_of(hardware, nodes)
    if topology is None:
        raise UsageError("topology: missing: perfmodel.torchrec.topology(hardware) makes one")
    has, of = (topology.world_size, topology.local_world_size), (machine.gpus, machine.linked_gpus)
    if has != of:
        raise UsageError(f"topology: (ranks, of a node) {has}, but {machine.name} has {of}")
    model = changed_workload(workload, ())
    check_names(names, model)
    if skew and model.tables:
        raise UsageError(f"skew: {model.name} has its own: leave out it, or the workload")
    asked = Asked(machine, pipeline_of(pipeline), train, model, names, skew)
    for each in (PerfEstimator, StorageEstimator):
        types.ShardEstimator.register(each)
    types.PerfModel.register(PerfEstimator)
    return PerfEstimator(asked), StorageEstimator(asked)


def topology(hardware: Hardware, nodes: int | None = None) -> Any:
    """TorchRec's `Topology` of a machine: its ranks, memories and rates."""
    machine = cluster_of(hardware, nodes)
    node, (hbm, host, intra, inter) = machine.node, rates_of(machine)
    return module_of("distributed.planner.types").Topology(
        world_size=machine.gpus,
        local_world_size=machine.linked_gpus,
        compute_device="cuda",  # what PyTorch calls AMD's devices, too
        hbm_cap=int(node.device.hbm_bytes),
        ddr_cap=int((node.host_memory_bytes or 0) / node.gpus),
        hbm_mem_bw=hbm / US_PER_MS,  # bytes per millisecond, all of these
        hbm_to_ddr_mem_bw=host / US_PER_MS,
        intra_host_bw=intra / US_PER_MS,
        inter_host_bw=inter / US_PER_MS,
    )


def rates_of(machine: Cluster) -> tuple[float, float, float, float]:
    """Bytes per second of one rank: device memory, between that and the host's, to ranks that links
    join, to others."""
    node = machine.node
    inter = node.nic.gb_per_s * (node.nics or 0) / node.gpus if node.nic else node.peer_gb_per_s
    in_gb = node.device.hbm_gb_per_s, node.device.pcie_gb_per_s or 1.0, node.peer_gb_per_s, inter
    hbm, host, intra, inter = (rate * BYTES_PER_GB for rate in in_gb)
    return hbm, host, intra, inter


def key_of(fqn: str, about: Any, offset: Iterable[int]) -> tuple[Any, ...]:
    """Of a sharding option, or of a `ParameterSharding`."""
    cached = about.cache_params and about.cache_params.load_factor
    return fqn, about.sharding_type, about.compute_kernel, cached, tuple(offset)
