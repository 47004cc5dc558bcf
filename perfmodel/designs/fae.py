"""FAE: mini-batches of popular samples on GPUs, all others as CPU-GPU training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.designs.budget import halved
from perfmodel.designs.deployment import DESIGNS, Deployment, Design, Phase
from perfmodel.designs.hybrid import Hybrid, OnHost
from perfmodel.designs.popular import LEAST_MIB, MIB, popular, require_settings
from perfmodel.errors import WorkloadError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.placement import MicroBatch
from perfmodel.tiers import TIERS
from perfmodel.units import US_PER_S

COUNTER_BYTES = 8.0
MOST_INPUTS = 1e15


@DESIGNS.register("fae")
@dataclass(frozen=True)
class Fae:
    """Mini-batches of popular samples run from hot rows on every GPU, others as CPU-GPU training.

    `hot_mib` of every GPU hold the most popular rows of all tables, learned once on `sampled_frac`
    of `inputs` before training. `popular_frac` is a measured share of the samples that need no
    other; without it, lookups are taken as independent. After `switch_every_steps` steps, on
    average, mini-batches of the other kind follow: the hot rows go to the GPUs, or back. Who looks
    rows up in those, `pooled_on`, is as in `hybrid`.

    Source: Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices
    (VLDB 2022, arXiv 2103.00686) and STAR-Laboratory/Accelerating-RecSys-Training (256 MiB, 5 %).
    Inputs are Criteo Kaggle's; the steps between switches are assumed.
    """

    hot_mib: float = 256.0
    sampled_frac: float = 0.05
    inputs: float = 39.3e6
    popular_frac: float | None = None
    switch_every_steps: float = 64.0
    pooled_on: OnHost = "one_process"

    def __post_init__(self) -> None:
        require_settings("fae", self.hot_mib, self.popular_frac)
        if not 0.0 < self.sampled_frac <= 1.0:
            raise WorkloadError(f"fae: learned on {self.sampled_frac:g} of the inputs")
        if not 1.0 <= self.inputs <= MOST_INPUTS:
            raise WorkloadError(f"fae: {self.inputs:g} inputs")
        if not self.switch_every_steps > 0:
            raise WorkloadError(f"fae: switches every {self.switch_every_steps:g} steps")

    def apply(self, deployment: Deployment) -> Deployment:
        found = popular(
            deployment,
            self.hot_mib * MIB,
            sampled=self.sampled_frac * self.inputs,
            popular_frac=self.popular_frac,
        )
        cold = Hybrid(pooled_on=self.pooled_on).apply(deployment)
        share, moved = found.popular_frac, found.kept_bytes
        hot_pipeline = replace(deployment.pipeline, micro_batches=(MicroBatch(1.0, popular=True),))
        both = 0.0 < share < 1.0
        phases = (
            Phase(
                "popular",
                max(share, 1e-12),
                found.placement,
                hot_pipeline,
                to_device_bytes=moved if both else 0.0,
                to_host_bytes=moved if both else 0.0,
                run_steps=self._run_steps(share) if both else float("inf"),
            ),
            Phase("other", max(1.0 - share, 1e-12), cold.placement, deployment.pipeline),
        )
        return deployment.with_(
            found.note,
            f"counting rows on {self.sampled_frac:.1%} of the inputs takes the host, once, "
            f"{self.learning_s(deployment):,.1f} s",
            "assumed: other mini-batches look rows up as all samples do",
            placement=found.placement,
            pipeline=hot_pipeline,
            phases=tuple(phase for phase in phases if phase.steps_frac > 1e-9),
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With fewer hot rows."""
        return [replace(self, hot_mib=size) for size in halved(self.hot_mib, LEAST_MIB)]

    def learning_s(self, deployment: Deployment) -> float:
        """What counting takes: a counter of 8 bytes per row, read and written at random places by
        all cores of the node."""
        lookups = self.sampled_frac * self.inputs
        lookups *= sum(table.pooling for table in deployment.workload.tables)
        own = {"lookups": lookups / deployment.machine.node.gpus, "row_bytes": COUNTER_BYTES}
        rows = Rows.of([{"op": op, **own} for op in ("host_gather", "host_scatter")])
        found = TIERS[OPS["host_gather"].family].estimate(rows, deployment.machine)
        return float(found.duration_us.sum()) / US_PER_S

    def _run_steps(self, popular_frac: float) -> float:
        """Steps with popular samples in a row: at least one, and one of the others between runs."""
        asked = 2.0 * self.switch_every_steps * popular_frac
        return max(asked, 1.0, popular_frac / (1.0 - popular_frac))
