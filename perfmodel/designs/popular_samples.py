"""FAE and Hotline: samples that need only hot rows run from copies of these on every GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import numpy as np

from perfmodel.cost.tiers import TIERS
from perfmodel.designs import settings
from perfmodel.designs.baselines import Hybrid, OnHost
from perfmodel.designs.deployment import Deployment, Design, Phase, named_part
from perfmodel.designs.hot_row_choice import (
    MIB,
    MIN_MIB,
    choose_hot_rows,
    multi_hot_note,
    smaller,
)
from perfmodel.embedding import MicroBatch, Pipeline
from perfmodel.hardware import Accelerator, Cluster
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.schema import Limits
from perfmodel.units import US_PER_S

MIN_FRAC = 1e-6
"""Fewer popular samples, or others, than this share are none."""
COUNTER_BYTES = 8.0
Inputs: TypeAlias = Annotated[float, Limits(1.0, settings.MOST)]


@dataclass(frozen=True)
class Fae(settings.Checked, of="fae"):
    """Mini-batches of popular samples run from hot rows on every GPU, others as CPU-GPU training.

    `hot_mib` of every GPU hold the most popular rows of all tables, learned once on `sampled_frac`
    of `inputs` before training. `popular_frac` is a measured share of the samples that need no
    other; without it, lookups are taken as independent, so that of samples with many lookups
    hardly any is popular and steps are those of `hybrid` (a note says so). After
    `switch_every_steps` steps, on average, mini-batches of the other kind follow: in training the
    hot rows go to the GPUs, or back. Who looks
    rows up in those, `pooled_on`, is as in `hybrid`. On several nodes the hosts share the tables.

    Source: Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices
    (VLDB 2022, arXiv 2103.00686) and STAR-Laboratory/Accelerating-RecSys-Training (256 MiB, 5 %).
    Inputs are Criteo Kaggle's; the steps between switches are assumed.
    """

    hot_mib: settings.SomeAmount = 256.0
    sampled_frac: settings.SomeShare = 0.05
    inputs: Inputs = 39.3e6
    popular_frac: settings.Share | None = None
    switch_every_steps: settings.SomeAmount = 64.0
    pooled_on: OnHost = "host"

    def apply(self, deployment: Deployment) -> Deployment:
        choice = choose_hot_rows(
            deployment,
            self.hot_mib * MIB,
            sampled=self.sampled_frac * self.inputs,
            popular_frac=self.popular_frac,
        )
        cold = Hybrid(pooled_on=self.pooled_on).apply(deployment)
        share, moved = choice.popular_frac, choice.kept_bytes
        hot_pipeline = replace(deployment.pipeline, micro_batches=(MicroBatch(1.0, popular=True),))
        both = deployment.train and 0.0 < share < 1.0
        unpopular = multi_hot_note("fae", deployment, share)
        phases = (
            Phase(
                "popular",
                max(share, 1e-12),
                choice.placement,
                hot_pipeline,
                to_device_bytes=moved if both else 0.0,
                to_host_bytes=moved if both else 0.0,
                run_steps=self._run_steps(share) if both else float("inf"),
            ),
            Phase("other", max(1.0 - share, 1e-12), cold.placement, cold.pipeline),
        )
        return deployment.with_(
            choice.note,
            f"counting rows on {self.sampled_frac:.1%} of the inputs takes the host, once, "
            f"{self.learning_s(deployment):,.1f} s",
            "assumed: other mini-batches look rows up as all samples do",
            *(f"fae: {why}" for why in unpopular),
            without_gain=(*deployment.without_gain, *unpopular),
            placement=choice.placement,
            pipeline=hot_pipeline,
            phases=tuple(phase for phase in phases if phase.steps_frac > 1e-9),
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With no hot rows, and with fewer: no mini-batch is taken for a popular one, where these
        take longer to launch, or their rows to come and go, than the host's lookups."""
        sampled = self.sampled_frac * self.inputs
        fewer = [
            replace(self, hot_mib=size, popular_frac=share)
            for size, share in smaller(deployment, self.hot_mib, self.popular_frac, sampled)
        ]
        return [replace(self, hot_mib=min(self.hot_mib, MIN_MIB), popular_frac=0.0), *fewer]

    def learning_s(self, deployment: Deployment) -> float:
        """What counting takes: a counter of 8 bytes per row, read and written at random places by
        all cores; nodes share the inputs."""
        lookups = self.sampled_frac * self.inputs / deployment.machine.nodes
        lookups *= sum(table.pooling for table in deployment.workload.tables)
        own = {"lookups": max(lookups / deployment.machine.node.gpus, 1.0)}
        own["row_bytes"] = COUNTER_BYTES
        rows = Rows.of([{"op": op, **own} for op in ("host_gather", "host_scatter")])
        estimated = TIERS[OPS["host_gather"].family].estimate(rows, deployment.machine)
        return float(estimated.duration_us.sum()) / US_PER_S

    def _run_steps(self, popular_frac: float) -> float:
        """Steps with popular samples in a row: at least one, and one of the others between runs."""
        asked = 2.0 * self.switch_every_steps * popular_frac
        return max(asked, 1.0, popular_frac / (1.0 - popular_frac))


SAMPLES = 8
"""A device's popular samples, where there are as many, come in multiples of so many, the rest with
the others: else products in 16 bits miss the matrix units (NVIDIA, Linear/Fully-Connected Layers
User's Guide). assumed of the accelerator."""
Launches = Literal["whole_batches", "as_they_come", "micro_batches", "by_host"]
NO_PART, USUAL_PART = "none", "hotline"


@dataclass(frozen=True)
class Hotline(settings.Checked, of="hotline"):
    """Popular samples run from hot rows on every GPU while an accelerator gathers others' rows.

    `hot_mib` of every GPU hold the most popular rows of all tables, known from the first
    `learning_frac` of `inputs`, during which the host looks all rows up (0: known beforehand).
    `popular_frac` is a measured share of the samples that need no other; without it, lookups are
    taken as independent. `accelerator`: a part of the catalogue or a file; empty: the machine's
    own, else `hotline`; `none`: the host's cores gather.

    `launches`: how popular and other samples reach the GPUs. `whole_batches`: the accelerator keeps
    samples until a whole batch of one kind is there, so that a batch is launched once, as in every
    other design; the rows of a batch of others come, and the ones before go back, while batches of
    popular samples run. `as_they_come`: batches are not parted, rows that one lacks come at its
    start; `compare` takes it where popular samples are too few to hide them. `micro_batches`: each
    batch is parted, and both parts launched. `by_host`: the host looks all rows up as in `hybrid`;
    `compare` takes it where the accelerator is slower than that.

    Source: Adnan et al., Heterogeneous Acceleration Pipeline for Recommendation System Training
    (ISCA 2024, arXiv 2204.05436), abstract; the mechanism and 512 MB recalled; what it learns on
    is assumed to be as in FAE.
    """

    hot_mib: settings.SomeAmount = 512.0
    popular_frac: settings.Share | None = None
    launches: Launches = "whole_batches"
    accelerator: str = ""
    learning_frac: settings.PartShare = 0.05
    inputs: Inputs = 39.3e6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accelerator not in ("", NO_PART):
            named_part(self.accelerator, Accelerator, "hotline.accelerator")

    def apply(self, deployment: Deployment) -> Deployment:
        host = Hybrid(pooled_on="host").apply(deployment)
        if self.launches == "by_host":
            return host
        learns = self.learning_frac if deployment.train else 0.0
        choice = choose_hot_rows(
            deployment,
            self.hot_mib * MIB,
            sampled=self.learning_frac * self.inputs or np.inf,
            popular_frac=self.popular_frac,
        )
        machine = self.with_accelerator(deployment.machine)
        parts = self._parts(choice.popular_frac, deployment)
        hot = [
            Phase(name, (1.0 - learns) * share, choice.placement, pipeline)
            for name, share, pipeline in parts
        ]
        before = [Phase("learning", learns, host.placement, host.pipeline)] if learns else []
        phases = (*hot, *before)
        part = machine.node.accelerator
        by = f"gathered by {part.name if part else 'the cores of the host'}"
        return deployment.with_(
            choice.note,
            f"hotline: rows that are not hot are {by}; launches: {self.launches}",
            *(
                f"hotline: {why}"
                for why in multi_hot_note("hotline", deployment, choice.popular_frac)
            ),
            *(
                [f"hotline: {learns:.1%} of the steps learn, and are those of hybrid"]
                * bool(learns)
            ),
            machine=machine,
            placement=choice.placement,
            pipeline=hot[0].pipeline,
            phases=phases if len(phases) > 1 else (),
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """Without the accelerator, with fewer hot rows, and with batches as they come."""
        sampled = self.learning_frac * self.inputs or np.inf
        fewer = [
            replace(self, hot_mib=size, popular_frac=share)
            for size, share in smaller(deployment, self.hot_mib, self.popular_frac, sampled)
        ]
        if self.launches != "whole_batches":
            return fewer
        come = [replace(each, launches="as_they_come") for each in (self, *fewer)]
        return [replace(self, launches="by_host"), *fewer, *come]

    def with_accelerator(self, machine: Cluster) -> Cluster:
        """`machine` with the accelerator that is asked for in each node."""
        part = machine.node.accelerator
        if self.accelerator == NO_PART:
            part = None
        elif self.accelerator or part is None:
            name = self.accelerator or USUAL_PART
            part = named_part(name, Accelerator, "hotline.accelerator")
        return machine.with_each_node(lambda it: replace(it, accelerator=part))

    def _parts(
        self, popular_frac: float, deployment: Deployment
    ) -> list[tuple[str, float, Pipeline]]:
        """Kinds of steps: name, share of the steps, and what a step of it does."""
        plain = replace(deployment.pipeline, input_ahead=True, rows_beside=True, writes_behind=True)
        both = MIN_FRAC < popular_frac < 1.0 - MIN_FRAC
        if self.launches == "as_they_come":
            both, popular_frac = False, 0.0
        if self.launches == "whole_batches" and both:
            kinds = (("popular", popular_frac, True), ("other", 1.0 - popular_frac, False))
            return [
                (
                    name,
                    share,
                    replace(
                        plain, micro_batches=(MicroBatch(1.0, popular),), popular_frac=popular_frac
                    ),
                )
                for name, share, popular in kinds
            ]
        share = _in_multiples(popular_frac, deployment.batch // deployment.ranks)
        parts = [MicroBatch(share, popular=True), MicroBatch(1.0 - share)]
        parts = [part for part in parts if part.samples_frac > (0.0 if both else MIN_FRAC)]
        one = replace(parts[0], samples_frac=1.0)
        batches = tuple(parts) if len(parts) > 1 else (one,)
        return [("hot", 1.0, replace(plain, micro_batches=batches))]


def _in_multiples(popular_frac: float, samples: int) -> float:
    """Of a device's `samples`, the share that run as popular ones."""
    count = round(popular_frac * samples)
    if not SAMPLES <= count < samples:
        return popular_frac
    return count // SAMPLES * SAMPLES / samples
