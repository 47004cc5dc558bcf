"""FAE and Hotline: samples that need only hot rows run from copies of these on every GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.cost.tiers import TIERS
from perfmodel.designs.baselines import Hybrid, OnHost
from perfmodel.designs.deployment import DESIGNS, Deployment, Design, Phase, halved
from perfmodel.embedding import HotSet, MicroBatch, Placement, TableAccess, TablePlacement, hot_set
from perfmodel.errors import WorkloadError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.storage import row_bytes
from perfmodel.units import US_PER_S

MIB = float(1 << 20)
LEAST_MIB = 1.0
"""Of hot rows, less than this is not tried in the place of more."""


@dataclass(frozen=True)
class HotRowChoice:
    """Hot rows per table within a budget, `placement` with them on every device, and the share of
    samples that need no other."""

    found: HotSet
    placement: Placement
    popular_frac: float
    kept_bytes: float
    """What the kept rows take: where they were learned, more than the most popular ones."""

    @property
    def note(self) -> str:
        """What a user should know of it."""
        if self.popular_frac == 1.0:
            return (
                f"hot rows: all {self.kept_bytes / MIB:,.0f} MiB of the tables are within the "
                "budget: no sample needs another row (gpu_only needs no host)"
            )
        return (
            f"hot rows: {self.kept_bytes / MIB:,.0f} MiB get {self.found.overall_hot_frac:.1%} of "
            f"the lookups; {self.popular_frac:.1%} of the samples need no other"
        )


def require_settings(design: str, hot_mib: float, popular_frac: float | None) -> None:
    """Raises `WorkloadError` for what is no size, and what is no share."""
    if not 0.0 < hot_mib < np.inf:
        raise WorkloadError(f"{design}: {hot_mib:g} MiB of hot rows: expected more than 0")
    if popular_frac is not None and not 0.0 <= popular_frac <= 1.0:
        raise WorkloadError(f"{design}: popular_frac {popular_frac:g}: expected 0 to 1")


def choose_hot_rows(
    deployment: Deployment,
    budget_bytes: float,
    *,
    sampled: float = np.inf,
    popular_frac: float | None = None,
) -> HotRowChoice:
    """Hot rows of all tables in `budget_bytes` of every device, the other rows in host memory.

    They are known, or learned on `sampled` samples: then as many of the most popular as have as
    many hits stand for them. `popular_frac` is a measured share of popular
    samples; without it, lookups of a sample are taken as independent.

    Raises `WorkloadError` for a budget that holds no row of some table, a share that cannot be,
    samples that are parted already, and several nodes, whose hosts would each have all rows.
    """
    if deployment.machine.nodes > 1:
        raise WorkloadError(
            f"hot rows: {deployment.machine.nodes} nodes, but the other rows must be in the memory "
            "of one host"
        )
    if any(part.popular for part in deployment.pipeline.micro_batches):
        raise WorkloadError("hot rows: the samples are already split by hot rows")
    tables, dtypes = deployment.workload.tables, [t.dtype for t in deployment.placement.tables]
    accesses = [
        TableAccess(
            popularity=table.popularity(),
            lookups=table.pooling,
            row_bytes=float(row_bytes(dtype, table.dim)),
        )
        for table, dtype in zip(tables, dtypes, strict=True)
    ]
    least = sum(access.row_bytes for access in accesses)
    if not budget_bytes >= least:
        raise WorkloadError(
            f"hot rows: a budget of {budget_bytes:g} bytes: expected at least a row of each of "
            f"{len(tables)} tables, {least:g}"
        )
    kept = hot_set(accesses, budget_bytes, sampled=sampled)
    found = _whole_rows(kept, accesses)
    share = found.popular_frac if popular_frac is None else popular_frac
    found.mixed_hot_frac(share)
    rows = [round(count) for count in found.rows.tolist()]
    ranks = tuple(range(deployment.ranks))

    def edit(number: int, _placed: TablePlacement) -> dict[str, Any]:
        return {
            "sharding": "data_parallel",
            "ranks": ranks,
            "tier": "host",
            "pooled_on": "device",
            "hot_rows": rows[number],
            "caches": (),
        }

    placement = deployment.placement.edited(edit)
    return HotRowChoice(found, placement, share, kept.used_bytes)


def _whole_rows(found: HotSet, tables: Sequence[TableAccess]) -> HotSet:
    """The same with whole rows, at least one per table, the most popular ones."""
    pairs = list(zip(tables, found.hot_frac.tolist(), strict=True))
    rows = [max(float(np.floor(each.popularity.hot_rows(share))), 1.0) for each, share in pairs]
    share = [
        float(each.popularity.covered_frac(n)) for (each, _), n in zip(pairs, rows, strict=True)
    ]
    return replace(found, rows=np.array(rows), hot_frac=np.array(share))


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
        found = choose_hot_rows(
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


SAMPLES = 8
"""A device's popular samples, where there are as many, come in multiples of so many, the rest with
the others: else products in 16 bits miss the matrix units (NVIDIA, Linear/Fully-Connected Layers
User's Guide). assumed of the accelerator."""


@DESIGNS.register("hotline")
@dataclass(frozen=True)
class Hotline:
    """Popular samples run from hot rows on every GPU while an accelerator gathers others' rows.

    The accelerator is at the host's memory. `hot_mib` of every GPU hold the most popular rows
    of all tables. `popular_frac` is a measured share of the samples that need no other; without it,
    lookups are taken as independent. Learning the rows and parting the batch happen in the
    accelerator, during the step before.

    Source: Adnan et al., Heterogeneous Acceleration Pipeline for Recommendation System Training
    (ISCA 2024, arXiv 2204.05436), abstract; the mechanism and 512 MB recalled.
    """

    hot_mib: float = 512.0
    popular_frac: float | None = None

    def __post_init__(self) -> None:
        require_settings("hotline", self.hot_mib, self.popular_frac)

    def apply(self, deployment: Deployment) -> Deployment:
        found = choose_hot_rows(deployment, self.hot_mib * MIB, popular_frac=self.popular_frac)
        share = _in_multiples(found.popular_frac, deployment.batch // deployment.ranks)
        parts = (MicroBatch(share, popular=True), MicroBatch(1.0 - share))
        pipeline = replace(
            deployment.pipeline,
            micro_batches=tuple(part for part in parts if part.samples_frac),
            input_ahead=True,
            rows_beside=True,
            writes_behind=True,
        )
        return deployment.with_(
            found.note,
            "assumed: the accelerator gathers rows as fast as the host's cores do",
            placement=found.placement,
            pipeline=pipeline,
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With fewer hot rows."""
        return [replace(self, hot_mib=size) for size in halved(self.hot_mib, LEAST_MIB)]


def _in_multiples(popular_frac: float, samples: int) -> float:
    """Of a device's `samples`, the share that run as popular ones."""
    found = round(popular_frac * samples)
    if not SAMPLES <= found < samples:
        return popular_frac
    return found // SAMPLES * SAMPLES / samples
