"""TorchRec's sharding planner with perfmodel's durations, and plans of either as the other's.

`estimators` of a machine take the places of TorchRec's own. What a shard takes is what perfmodel's
planner has it take (`designs/layouts/surrogate.py`): lookups with each table's skew, misses of its
cache, copies, its part of the collectives. Words are those of TorchRec's
`distributed/planner/types.py`; TorchRec is imported where one of its types is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.units import US_PER_MS
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.layouts.problem import (
    ANY,
    EVERY,
    GRADIENT_BYTES,
    GROUP,
    WHOLE,
    Problem,
    Way,
)
from perfmodel.designs.layouts.surrogate import End, exchange_line, missed_us, timed
from perfmodel.embedding import Pipeline, Placement, RowDtype, Sharding
from perfmodel.errors import UsageError, WorkloadError
from perfmodel.explore import torchrec as plans
from perfmodel.hardware import Cluster, Part
from perfmodel.prediction.step import cluster_of
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.settings import Implementation, Training
from perfmodel.workload.sharding import Shard, plan_of_placement
from perfmodel.workload.tables import Table

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.explore.planner import Plan

OLDEST = (1, 1)
"""The first TorchRec whose planner knows the rate between device and host memory."""
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
DTYPES: dict[str, RowDtype] = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "int8",
}
PIPELINES = {
    "none": Pipeline(),
    "train_base": Pipeline(),
    "train_sparse_dist": Pipeline(input_ahead=True),
    "train_prefetch_sparse_dist": Pipeline(input_ahead=True, rows_ahead=True),
}
"""By the values of TorchRec's `PipelineType`."""
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
    the same way); and which way of a problem it has, of a table that `features` look up."""

    parts_us: Floats
    low_us: float
    high_us: float
    problem: Problem
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
        for option in options:
            if option.fqn not in self.tables:
                self.tables[option.fqn] = self._table(option)
        workload = replace(self.workload, tables=tuple(self.tables.values()))
        placement = Placement((WHOLE,) * len(self.tables))
        batch = options[0].batch_size * self.machine.gpus
        return Deployment(workload, self.machine, batch, placement, train=self.train)

    def _table(self, option: Any) -> Table:
        rows, dim = option.tensor.shape
        if not self.workload.tables:
            alpha = self.skew
            alpha = alpha.get(option.name, 0.0) if isinstance(alpha, Mapping) else alpha
            pooling = sum(option.input_lengths) / len(option.input_lengths)
            return Table(rows, dim, pooling, alpha, pooled=bool(option.is_pooled))
        table = self.workload.tables[_number(option.name, self.names, self.workload)]
        if (table.rows, table.dim) != (rows, dim):
            has = f"{self.workload.name} has {table.rows} x {table.dim}"
            raise WorkloadError(f"{option.fqn}: {rows} x {dim}, but {has}")
        return table

    def ways(self, option: Any) -> list[Way]:
        """One for each shard. Raises `UsageError` for a sharding, a kernel or a type of rows that
        has no counterpart."""
        kernel, where = option.compute_kernel, option.fqn
        sharding, reach = _known(SHARDINGS, option.sharding_type, f"{where}: sharding_type")
        tier = _known(plans.KERNELS, kernel, f"{where}: compute_kernel")
        dtype = _known(DTYPES, str(option.tensor.dtype), f"{where}: dtype")
        frac = (option.cache_load_factor or plans.CACHED_FRAC) if kernel in plans.CACHED else 0.0
        table, number = self.tables[where], list(self.tables).index(where)
        optimizer = self.workload.training.table_optimizer if self.train else None
        held, made = replace(WHOLE, dtype=dtype, tier=tier), []
        for shard in option.shards:
            part = replace(table, dim=shard.size[1])
            parts, size = len(option.shards), shard_bytes(part, held, optimizer)
            if sharding == "data_parallel":
                size += part.rows * part.dim * GRADIENT_BYTES * self.train
            else:
                parts = sum(other.offset[1] == shard.offset[1] for other in option.shards)
                part, size = Shard(0, parts).of((part,)), size / parts
            made.append(Way(number, sharding, tier, parts, reach, part, dtype, size, frac))
        return made


class PerfEstimator:
    """TorchRec's `ShardEstimator` of times, and its `PerfModel` of plans.

    `times` holds what was estimated: by table, type of sharding, kernel, share of rows cached and
    the shard's offsets.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.times: dict[tuple[Any, ...], Times] = {}

    def estimate(self, sharding_options: Sequence[Any], *_: Any, **__: Any) -> None:
        """Gives every shard its `Perf`, in milliseconds. Raises `PerfmodelError`."""
        perf = _module("distributed.planner.types").Perf
        known = {each.name for each in fields(perf)}  # some came with later releases
        deployment = self.asked.deployment(sharding_options)
        of_option = [self.asked.ways(option) for option in sharding_options]
        ways = tuple(dict.fromkeys(way for own in of_option for way in own))
        at = {way: place for place, way in enumerate(ways)}
        problem = timed(deployment, ways)
        every = [_parts_us(deployment, ways, self.asked.pipeline, end) for end in ENDS]
        for option, own in zip(sharding_options, of_option, strict=True):
            features = len(option.input_lengths)
            for number, (shard, way) in enumerate(zip(option.shards, own, strict=True)):
                place = at[way]
                parts_us, low, high = (of[:, place] * features for of in every)
                more = problem.first_us[place] * features  # of blocks by popularity
                more /= 1 if number == 0 else 1 - max(way.parts, 2)
                parts_us[0] += more
                low_us, high_us = (float(each[:-1].sum() + more) for each in (low, high))
                times = Times(parts_us, low_us, high_us, problem, place, features)
                self.times[_key(option.fqn, option, shard.offset)] = times
                named = zip(PERF, (parts_us / US_PER_MS).tolist(), strict=True)
                shard.perf = perf(**{name: ms for name, ms in named if name in known})

    def rate(self, plan: Sequence[Any]) -> float:
        """Milliseconds of a step of the plan (sharding options whose shards have ranks): the
        busiest rank, what the exchange shows, rows of the next step beside it."""
        work, sent, fetched = np.zeros((3, self.asked.machine.gpus))
        kinds, shared, summed = dict[int, float](), 0.0, 0.0
        for option in plan:
            own = [self.times[_key(option.fqn, option, each.offset)] for each in option.shards]
            it, at = own[0].problem, own[0].place
            kinds[int(it.kind[at])] = it.fixed_us[it.kind[at]]
            shared += it.shared_us[at] * own[0].features
            summed += it.summed_us[at]
            for shard, times in zip(option.shards, own, strict=True):
                work[shard.rank] += times.parts_us[[0, 2]].sum()
                sent[shard.rank] += it.sent_us[times.place] * times.features
                fetched[shard.rank] += times.parts_us[4]
        exchange = sent.max() + shared + sum(kinds.values())
        step_us = it.step_us(work.max(), exchange, summed)
        return float(max(step_us, fetched.max())) / US_PER_MS

    def shards(self, plan: Any) -> pd.DataFrame:
        """Of TorchRec's `ShardingPlan`, a row per shard: its rank, parts and total in milliseconds,
        and the total's interval. Raises `UsageError` for shards that were never estimated."""
        import pandas as pd

        rows = []
        for fqn, _, about in _tables(plan):
            spec, kind, kernel = about.sharding_spec, about.sharding_type, about.compute_kernel
            offsets = [each.shard_offsets for each in spec.shards] if spec else [[0, 0]]
            for number, offset in enumerate(offsets):
                if (it := self.times.get(_key(fqn, about, offset))) is None:
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
        it.sent_us + it.shared_us + it.summed_us + np.array(it.fixed_us)[it.kind] / shards
        for it in (one, both)
    )
    ids_bytes = np.array([way.shard.lookups(deployment.batch) for way in ways]) * KEY_BYTES
    ids_bytes *= [way.sharding != "data_parallel" for way in ways]
    size = float((ids_bytes * shards).mean())
    fixed_us, per_byte = exchange_line(deployment.machine, "all_to_all", one.ranks, size, end=end)
    sent = (ids_bytes * per_byte + fixed_us / shards) * (ids_bytes > 0)
    shown = 0.0 if pipeline.input_ahead else sent
    back, comms_back = work_both - work, comms_both - comms
    return np.array([work, comms + shown, back, comms_back, prefetched[1], sent])


class StorageEstimator:
    """TorchRec's `ShardEstimator` of bytes: rows with their optimizer's state and cache, gradients
    of replicas, ids of the batches under way, and pooled rows of one both ways."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def estimate(self, sharding_options: Sequence[Any], *_: Any, **__: Any) -> None:
        """Gives every shard its `Storage`. Raises `PerfmodelError`."""
        storage = _module("distributed.planner.types").Storage
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
    hardware: str | Path | Part,
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
    types, machine = _module("distributed.planner.types"), cluster_of(hardware, nodes)
    if topology is None:
        raise UsageError("topology: missing: perfmodel.torchrec.topology(hardware) makes one")
    has, of = (topology.world_size, topology.local_world_size), (machine.gpus, machine.linked_gpus)
    if has != of:
        what = "{} ranks, of which {} are linked".format
        raise UsageError(f"topology: {what(*has)}, but {machine.name} has {what(*of)}")
    model = _workload(workload)
    if names and len(names) != len(model.tables):
        raise UsageError(f"names: {len(names)}, but {model.name} has {len(model.tables)} tables")
    asked = Asked(machine, _pipeline(pipeline), train, model, names, skew)
    for each in (PerfEstimator, StorageEstimator):
        types.ShardEstimator.register(each)
    types.PerfModel.register(PerfEstimator)
    return PerfEstimator(asked), StorageEstimator(asked)


def topology(hardware: str | Path | Part, nodes: int | None = None) -> Any:
    """TorchRec's `Topology` of a machine: its ranks, memories and rates."""
    machine = cluster_of(hardware, nodes)
    node, it = machine.node, plans.topology_of(machine)
    return _module("distributed.planner.types").Topology(
        world_size=it.ranks,
        local_world_size=it.local_ranks,
        compute_device="cuda",  # what PyTorch calls AMD's devices, too
        hbm_cap=int(node.device.hbm_bytes),
        ddr_cap=int((node.host_memory_bytes or 0) / node.gpus),
        hbm_mem_bw=it.hbm_bytes_per_s / US_PER_MS,  # bytes per millisecond, all of these
        hbm_to_ddr_mem_bw=it.host_bytes_per_s / US_PER_MS,
        intra_host_bw=it.intra_bytes_per_s / US_PER_MS,
        inter_host_bw=it.inter_bytes_per_s / US_PER_MS,
    )


def deployment(
    plan: Any,
    workload: str | Path | Workload,
    hardware: str | Path | Part,
    *,
    nodes: int | None = None,
    batch: int | None = None,
    names: Sequence[str] = (),
    pipeline: Any = "train_sparse_dist",
    train: bool = True,
) -> Deployment:
    """The workload with its tables as TorchRec's `ShardingPlan` has them, for `perfmodel.predict`;
    arguments as of `estimators`, `batch` of all ranks. Raises `PerfmodelError`."""
    model, machine = _workload(workload), cluster_of(hardware, nodes)
    placement = plans.placement_of_torchrec(document(plan, model, names), model, machine)
    plan_of_placement(model, placement, machine.gpus, machine.linked_gpus)
    own = deployment_of(model, machine, batch, train=train)
    return own.with_(placement=placement, pipeline=_pipeline(pipeline))


def document(plan: Any, workload: Workload, names: Sequence[str] = ()) -> dict[str, Any]:
    """TorchRec's `ShardingPlan` as JSON that `--plan` takes, its tables named by their numbers.

    Slices of a table on one rank count as one, and shards without rows as none.
    """
    found: dict[str, Any] = {}
    for fqn, name, about in _tables(plan):
        ranks, kind, cached = about.ranks, about.sharding_type, about.cache_params
        shards = about.sharding_spec.shards if about.sharding_spec else []
        if shards and ranks:
            pairs = zip(ranks, shards, strict=True)
            ranks = list(dict.fromkeys(rank for rank, each in pairs if each.shard_sizes[0]))
        sizes = [{"shard_sizes": list(each.shard_sizes)} for each in shards]
        tables = found.setdefault(fqn.removesuffix(f".{name}"), {})
        tables[f"table_{_number(name, names, workload)}"] = {
            "sharding_type": "column_wise" if kind == "table_column_wise" else kind,
            "compute_kernel": about.compute_kernel,
            "ranks": ranks,
            "sharding_spec": {"shards": sizes} if shards else None,
            "cache_params": cached and {"load_factor": cached.load_factor},
        }
    return found


def sharding_plan(
    given: Plan | Deployment, *, names: Sequence[str] = (), module: str = plans.MODULE
) -> Any:
    """TorchRec's `ShardingPlan` of `perfmodel.plan`'s answer, or of a deployment: all tables in the
    `module` of that path, with `names` in the workload's order. Raises `WorkloadError` for what
    TorchRec's plans have not."""
    it = given if isinstance(given, Deployment) else given.deployment
    types, made = _module("distributed.types"), {}
    written = plans.torchrec_document(it.placement, it.workload, it.machine)[plans.MODULE]
    for name, about in zip(names or written, written.values(), strict=True):
        spec, cached = about["sharding_spec"], about["cache_params"]
        shards = [types.ShardMetadata(**each) for each in spec["shards"]] if spec else []
        made[name] = types.ParameterSharding(
            sharding_type=about["sharding_type"],
            compute_kernel=about["compute_kernel"],
            ranks=about["ranks"],
            sharding_spec=types.EnumerableShardingSpec(shards) if spec else None,
            cache_params=types.CacheParams(**cached) if cached else None,
        )
    return types.ShardingPlan({module: types.EmbeddingModuleShardingPlan(made)})


def _tables(plan: Any) -> Iterable[tuple[str, str, Any]]:
    """(path, name, `ParameterSharding`) of each."""
    for path, module in plan.plan.items():
        yield from ((f"{path}.{name}", name, about) for name, about in module.items())


def _workload(given: str | Path | Workload) -> Workload:
    return given if isinstance(given, Workload) else load_workload(given)


def _pipeline(given: Any) -> Pipeline:
    found: Pipeline = _known(PIPELINES, getattr(given, "value", given), "pipeline")
    return found


def _number(name: str, names: Sequence[str], workload: Workload) -> int:
    if names and name not in names:
        raise WorkloadError(f"{name[:60]}: not among the {len(names)} names of tables")
    return list(names).index(name) if names else plans.number_of(name, workload, name[:60])


def _key(fqn: str, about: Any, offset: Iterable[int]) -> tuple[Any, ...]:
    """Of a sharding option, or of a `ParameterSharding`."""
    cached = about.cache_params and about.cache_params.load_factor
    return fqn, about.sharding_type, about.compute_kernel, cached, tuple(offset)


def _known(table: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in table:
        raise UsageError(f"{where} {str(key)[:60]!r}: expected one of {', '.join(table)}")
    return table[key]


def _module(name: str) -> Any:
    """One of TorchRec's modules. Raises `UsageError` where it is missing or too old."""
    needed = "{}.{} or later: pip install 'perfmodel[torchrec]'".format(*OLDEST)
    try:
        found = version("torchrec")
        if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
            raise UsageError(f"TorchRec {found} is too old: perfmodel.torchrec needs {needed}")
        return import_module(f"torchrec.{name}")
    except (PackageNotFoundError, ImportError, OSError) as error:  # OSError: of FBGEMM's libraries
        reason = str(error)[:100]
        raise UsageError(f"perfmodel.torchrec needs TorchRec {needed} ({reason})") from None
