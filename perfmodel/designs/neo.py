"""Neo on ZionEX: tables sharded in four dimensions, all rows in a hierarchy of memories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.default import searched
from perfmodel.designs.layouts.memory import beside_bytes
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
    `own_groups`: a process group each for keys, pooled rows and dense gradients; TorchRec has one
    for all, and one for keys as an option (github.com/meta-pytorch/torchrec, pull request 812).
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
    own_groups: bool = settings.step(False, plain=False)

    def apply(self, deployment: Deployment) -> Deployment:
        """The deployment with Neo's formats, layout and pipeline."""
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
            laid = searched(deployed, ("host",), (self.cache_frac, *smaller))
            if laid is None:
                size, beside = in_gb(sum(deployed.table_bytes)), in_gb(beside_bytes(deployed))
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
            own_groups=self.own_groups,
        )
        return deployed.with_(pipeline=pipeline)
