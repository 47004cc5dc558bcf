"""Designs of how a system trains: Neo, TorchRec's pipelines, copies of tables in groups of ranks,
micro-batches, activations in host memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment, Phase
from perfmodel.designs.layouts.default import deployment_of, searched
from perfmodel.designs.layouts.problem import CACHED_FRACS
from perfmodel.embedding import RowDtype
from perfmodel.errors import WorkloadError
from perfmodel.workload.memory_tiers import in_gb

BEYOND = "tables that device memory does not hold"
Layout = Literal["balanced", "as_deployed"]
Wire = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True)
class Neo(settings.Checked, of="neo"):
    """Neo: 4D sharding, fused row-wise optimizer, device memory as a cache, quantised exchange.

    `sharding` `balanced` lays tables out by bytes and work per rank (table-, row-, column-wise,
    data-parallel, row-wise within a node); `as_deployed` keeps the layout, such as a plan's.
    `rows` are stored, and pooled rows sent (`wire`, both ways), in 16 bits. Tables beyond device
    memory lie in the hosts', behind a cache with at most `cache_frac` of their rows (0: none).
    Source: Mudigere et al., Neo (ISCA 2022); formats and cache as recalled; the share is FBGEMM's
    default.
    """

    sharding: Layout = settings.step(
        "balanced",
        plain="as_deployed",
        start={"sharding": "table_wise"},
        acts_on="ranks that whole tables load unevenly",
        less=settings.instead("as_deployed"),
    )
    rows: RowDtype = settings.step("fp16", plain="fp32", start={"table_precision": "fp32"})
    wire: Wire = settings.step(
        "fp16", plain="fp32", start={"exchange_precision": "fp32"}, less=settings.instead("fp32")
    )
    cache_frac: settings.Share = settings.step(0.2, plain=0.0, acts_on=BEYOND)
    input_ahead: bool = settings.step(True, plain=False, start={"prefetch": False})
    rows_ahead: bool = settings.step(True, plain=False, acts_on=BEYOND)

    def apply(self, deployment: Deployment) -> Deployment:
        if deployment.machine.node.device.target == "cpu":
            raise WorkloadError("neo: a machine of CPUs has no device memory to shard tables over")
        optimizer = deployment.workload.training.table_optimizer
        workload = deployment.workload.with_(
            implementation__exchange_precision=self.wire,
            training__table_optimizer="rowwise_adagrad" if optimizer == "adagrad" else optimizer,
        )
        stored = deployment.placement.edited(lambda _number, _placed: {"dtype": self.rows})
        told = ["neo: rowwise_adagrad in the place of adagrad"] * (optimizer == "adagrad")
        deployed = deployment.with_(*told, workload=workload, placement=stored)
        if self.sharding == "balanced":
            smaller = (frac for frac in CACHED_FRACS if frac < self.cache_frac)
            laid = searched(deployed, beside=True, cached_fracs=(self.cache_frac, *smaller))
            if laid is None:
                size, beside = in_gb(sum(deployed.table_bytes)), in_gb(deployed.beside_bytes)
                raise WorkloadError(
                    f"neo: {deployed.workload.name}: tables of {size} fit in no layout into host "
                    f"memory and what {beside} of layers and activations leave of each device's"
                )
            deployed = laid
        has_slow = any(placed.tier != "hbm" for placed in deployed.placement.tables)
        pipeline = replace(
            deployed.pipeline,
            input_ahead=self.input_ahead,
            rows_ahead=self.rows_ahead and has_slow,
        )
        return deployed.with_(pipeline=pipeline)


@dataclass(frozen=True)
class PrefetchPipeline(settings.Checked, of="prefetch_pipeline"):
    """TorchRec's pipelines: the next batch distributed, and rows that caches lack fetched, ahead.

    With neither it is `TrainPipelineBase`, with `input_ahead` `TrainPipelineSparseDist`, with
    `rows_ahead` as well `PrefetchTrainPipelineSparseDist`. Rows are those of tables behind caches:
    `software_cache+prefetch_pipeline`.

    Source: torchrec/distributed/train_pipeline. Of peers TorchRec's planner alone knows it: rows
    fetched ahead cost it nothing.
    """

    input_ahead: bool = settings.step(True, plain=False, start={"prefetch": False})
    rows_ahead: bool = settings.step(True, plain=False, acts_on="tables behind a cache of kernels")

    def apply(self, deployment: Deployment) -> Deployment:
        if self.rows_ahead and any(
            cache.kept_by == "operators" for cache in deployment.placement.caches
        ):
            raise WorkloadError("prefetch_pipeline: a cache of operators waits for every count")
        pipeline = replace(
            deployment.pipeline, input_ahead=self.input_ahead, rows_ahead=self.rows_ahead
        )
        if pipeline == deployment.pipeline:
            why = (*deployment.without_gain, "the step has that pipeline already")
            return deployment.with_(without_gain=why)
        return deployment.with_(pipeline=pipeline)


@dataclass(frozen=True)
class TwoDSharding(settings.Checked, of="two_d_sharding"):
    """2D sharding: tables sharded within groups of ranks, a copy in each; copies are averaged.

    Keys and pooled rows stay within `group_ranks` ranks in a row, over which tables lie as the
    workload's settings say; layers are trained by all ranks. In training every `sync_every` steps
    rows and their optimizer's state become the mean over all groups (1: no rank works on rows that
    another changed; what more costs in accuracy only a model's owner can measure).

    Source: TorchRec's `DMPCollection`. Of peers TorchRec's planner lays a group out, none predicts
    what a group gains or the averaging costs.
    """

    group_ranks: settings.SomeCount = 8
    sync_every: settings.SomeCount = 1

    def apply(self, deployment: Deployment) -> Deployment:
        ranks, within = deployment.ranks, self.group_ranks
        linked = deployment.machine.linked_gpus
        if ranks % within or (within % linked and linked % within):
            raise WorkloadError(
                f"two_d_sharding: groups of {within} ranks do not divide the machine's {ranks}, of "
                f"which links join {linked} each"
            )
        if within == ranks:
            return deployment.unchanged(self.of, "one group has all ranks")
        if any(placed.tier != "hbm" or placed.caches for placed in deployment.placement.tables):
            raise WorkloadError("two_d_sharding: copies are of tables in device memory")
        batch = deployment.batch * within // ranks
        # so many ranks in a row: some of the machine's nodes, or a part of one
        node = replace(deployment.machine.node, gpus=min(deployment.machine.node.gpus, within))
        group = replace(deployment.machine, node=node, nodes=-(-within // node.gpus))
        laid = deployment_of(deployment.workload, group, batch, train=deployment.train)
        dtypes = [placed.dtype for placed in deployment.placement.tables]
        placement = replace(
            laid.placement.edited(lambda number, _: {"dtype": dtypes[number]}), group_ranks=within
        )
        plain = deployment.pipeline
        synced = replace(plain, averages_copies=deployment.train)
        often = 1.0 / self.sync_every
        phases = (
            Phase("averaging", often, placement, synced),
            Phase("other", 1.0 - often, placement, plain),
        )
        return deployment.with_(
            f"two_d_sharding: {ranks // within} groups of {within} ranks, a copy of all tables in "
            "each",
            *laid.notes,
            placement=placement,
            pipeline=synced,
            own_layout=None,
            phases=phases if deployment.train and self.sync_every > 1 else (),
        )


@dataclass(frozen=True)
class GradientAccumulation(settings.Checked, of="gradient_accumulation"):
    """A batch in equal micro-batches, one after the other: less memory, layers updated once.

    Dense gradients of `micro_batches` are added up and reduced over ranks with the last. Rows are
    exchanged, and updated by the optimizer fused into each backward pass, with every one: FBGEMM
    has no gradients of tables to keep.

    Source: PyTorch, `DistributedDataParallel.no_sync`; TorchRec's fused optimizers. Peers predict
    it for transformers (SimuMax), none for tables.
    """

    micro_batches: settings.SomeCount = 4

    def apply(self, deployment: Deployment) -> Deployment:
        samples = deployment.samples
        if not deployment.train:
            raise WorkloadError("gradient_accumulation: inference has no gradients")
        if self.micro_batches > samples:
            raise WorkloadError(
                f"gradient_accumulation: {self.micro_batches} micro-batches of the {samples} "
                "samples of a rank"
            )
        parts = tuple(
            replace(part, samples_frac=part.samples_frac / self.micro_batches)
            for part in deployment.pipeline.micro_batches
            for _ in range(self.micro_batches)
        )
        return deployment.with_(pipeline=replace(deployment.pipeline, micro_batches=parts))


@dataclass(frozen=True)
class StashedActivations(settings.Checked, of="stashed_activations"):
    """Activations wait in host memory for the backward pass: less device memory, more copies.

    Of each rank `most_gib`, those made first, are copied out behind their last use, by one copy
    engine, and back by the other, in turn with the input, from `nodes_ahead` nodes of autograd
    before they are needed. Memory is that of copies that keep up with the step, on the device.
    Source: TorchRec's activation stashing (pull request 3819); no peer answers it for tables.
    """

    most_gib: settings.Amount = settings.budget(1.0, settings.halves(1 / 16))
    nodes_ahead: settings.Count = 2

    def apply(self, deployment: Deployment) -> Deployment:
        if not deployment.train or deployment.machine.node.device.target == "cpu":
            raise WorkloadError(f"{self.of}: inference and CPUs keep no activations on a device")
        stash = (self.most_gib * 2.0**30, self.nodes_ahead) if self.most_gib else None
        return deployment.with_(pipeline=replace(deployment.pipeline, stash=stash))
