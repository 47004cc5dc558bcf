"""Neo on ZionEX: tables sharded in four dimensions, all rows in a hierarchy of memories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.designs.budget import halved
from perfmodel.designs.deployment import DESIGNS, Deployment, Design
from perfmodel.designs.neo_layout import balanced
from perfmodel.errors import WorkloadError
from perfmodel.placement import RowDtype

SHARDINGS = ("balanced", "as_deployed")
LEAST_FRAC = 0.005
WIRES = ("fp32", "fp16", "bf16")


@DESIGNS.register("neo")
@dataclass(frozen=True)
class Neo:
    """Neo: 4D sharding, fused row-wise optimizer, device memory as a cache, quantised exchange.

    `sharding` `balanced` lays tables out by bytes and work per rank (table-, row-, column-wise,
    data-parallel, row-wise within a node); `as_deployed` keeps the layout, such as a plan's.
    `rows` are stored, and pooled rows sent (`wire`, both ways), in 16 bits. Tables beyond device
    memory lie in the hosts', behind a 32-way cache with at most `cache_frac` of their rows.
    `own_groups`: a process group each for keys, pooled rows and dense gradients; TorchRec has one
    for all, and one for keys as an option (github.com/meta-pytorch/torchrec, pull request 812).
    Source: Mudigere et al., Neo (ISCA 2022); formats and cache as recalled; the share is FBGEMM's
    default.
    """

    sharding: Literal["balanced", "as_deployed"] = "balanced"
    rows: RowDtype = "fp16"
    wire: Literal["fp32", "fp16", "bf16"] = "fp16"
    cache_frac: float = 0.2
    input_ahead: bool = True
    rows_ahead: bool = True
    own_groups: bool = False

    def __post_init__(self) -> None:
        if self.sharding not in SHARDINGS:
            raise WorkloadError(f"neo: sharding {self.sharding!r}: {' or '.join(SHARDINGS)}")
        if self.wire not in WIRES:
            raise WorkloadError(f"neo: wire {self.wire!r}: one of {', '.join(WIRES)}")
        if not 0 < self.cache_frac <= 1:
            raise WorkloadError(f"neo: a cache of {self.cache_frac:g} of the rows: 0 to 1")

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
        found = deployment.with_(workload=workload, placement=stored)
        if self.sharding == "balanced":
            found = found.with_(placement=balanced(found, self.cache_frac))
        has_slow = any(placed.tier != "hbm" for placed in found.placement.tables)
        pipeline = replace(
            found.pipeline,
            input_ahead=self.input_ahead,
            rows_ahead=self.rows_ahead and has_slow,
            own_groups=self.own_groups,
        )
        return found.with_(pipeline=pipeline)

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With a smaller cache, and so with more whole tables in device memory."""
        return [replace(self, cache_frac=frac) for frac in halved(self.cache_frac, LEAST_FRAC)]
