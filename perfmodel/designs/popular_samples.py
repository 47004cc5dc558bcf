"""FAE and Hotline: samples that need only hot rows run from copies of these on every GPU."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

import numpy as np

from perfmodel.base.schema import Limits
from perfmodel.designs import settings
from perfmodel.designs.baselines import Hybrid, OnHost
from perfmodel.designs.deployment import Deployment, Phase
from perfmodel.embedding import HotSet, MicroBatch, Pipeline, Placement, hot_set
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Accelerator, Cluster
from perfmodel.ops.spec import row_bytes
from perfmodel.workload.tables import Table

MIB = float(1 << 20)
MIN_MIB = 1.0  # of hot rows, less than this is not tried in the place of more
MIN_FRAC = 1e-6  # fewer popular samples, or others, than this share are none
Inputs: TypeAlias = Annotated[float, Limits(1.0, settings.MOST)]


@dataclass(frozen=True)
class HotRowChoice:
    """Hot rows per table within a budget, `placement` with them on every device, and the share of
    samples that need no other."""

    found: HotSet
    placement: Placement
    popular_frac: float
    kept_bytes: float
    """What the kept rows take: where they were learned, more than the most popular ones."""


def choose_hot_rows(
    deployment: Deployment,
    budget_bytes: float,
    *,
    sampled: float = np.inf,
    popular_frac: float | None = None,
) -> HotRowChoice:
    """Hot rows of all tables in `budget_bytes` of every device, the other rows in host memory.

    They are known, or learned on `sampled` samples: then as many of the most popular as have as
    many hits stand for them. `popular_frac` is a measured share of popular samples; without it,
    lookups of a sample are taken as independent; it overrules a skew of the tables by which fewer
    are. On several nodes each host has an equal part of all rows, and every device all hot ones.

    Raises `WorkloadError` for a budget that holds no row of some table, and samples that are parted
    already.
    """
    if any(part.popular for part in deployment.pipeline.micro_batches):
        raise WorkloadError("hot rows: the samples are already split by hot rows")
    dtypes = tuple(placed.dtype for placed in deployment.placement.tables)
    kept, choice = _hot_rows(deployment.workload.tables, dtypes, budget_bytes, sampled)
    share = choice.popular_frac if popular_frac is None else popular_frac
    usual = {"sharding": "data_parallel", "ranks": tuple(range(deployment.ranks))}
    usual |= {"tier": "host", "pooled_on": "device", "caches": ()}
    rows = [round(count) for count in choice.rows.tolist()]
    placement = deployment.placement.edited(lambda n, _: {**usual, "hot_rows": rows[n]})
    return HotRowChoice(choice, placement, share, kept.used_bytes)


@lru_cache(maxsize=64)
def _hot_rows(
    tables: tuple[Table, ...], dtypes: tuple[str, ...], budget_bytes: float, sampled: float
) -> tuple[HotSet, HotSet]:
    """What is kept, and the same in whole rows, at least one per table, the most popular ones."""
    accesses = [
        table.access(table.pooling, float(row_bytes(dtype, table.dim)))
        for table, dtype in zip(tables, dtypes, strict=True)
    ]
    least = sum(access.row_bytes for access in accesses)
    if not budget_bytes >= least:
        raise WorkloadError(
            f"hot rows: a budget of {budget_bytes:g} bytes: expected at least a row of each of "
            f"{len(tables)} tables, {least:g}"
        )
    kept = hot_set(accesses, budget_bytes, sampled=sampled)
    pairs = list(zip([each.popularity for each in accesses], kept.hot_frac.tolist(), strict=True))
    rows = [max(float(np.floor(each.hot_rows(share))), 1.0) for each, share in pairs]
    share = [float(each.covered_frac(n)) for (each, _), n in zip(pairs, rows, strict=True)]
    return kept, replace(kept, rows=np.array(rows), hot_frac=np.array(share))


class _WithHotRows(settings.Checked):
    """What `fae` and `hotline` have in common."""

    hot_mib: settings.Amount
    popular_frac: settings.Share | settings.Auto

    @property
    @abstractmethod
    def sampled(self) -> float:
        """Samples that rows are learned on."""

    def choose(self, deployment: Deployment) -> tuple[HotRowChoice, str, str]:
        """The hot rows, what a user should know; and why hardly a sample is popular, if so."""
        budget_bytes, given = self.hot_mib * MIB, self.popular_frac
        share = None if isinstance(given, str) else given
        choice = choose_hot_rows(deployment, budget_bytes, sampled=self.sampled, popular_frac=share)
        mib, share, why = choice.kept_bytes / MIB, choice.popular_frac, ""
        note = (
            f"hot rows: {mib:,.{0 if mib >= 10 else 2}f} MiB get "
            f"{100 * choice.found.overall_hot_frac:.1f} % of the lookups; "
            f"{100 * share:.1f} % of the samples need no other"
        )
        least = float(choice.found.hot_frac.min())
        if share > least:
            note += (
                f"; {self.of}.popular_frac, as measured, overrules the tables' skew, by which "
                f"{100 * least:.1f} % of one table's lookups are hot: of those by others, none"
            )
        if share < 1e-3:
            lookups = sum(table.pooling for table in deployment.workload.tables)
            few = f"{share:.2g} of the samples are" if share > 1e-9 else "no sample is"
            why = (
                f"{few} popular: all {lookups:g} rows of one must be hot; independent lookups are "
                f"taken, a measured share is {self.of}.popular_frac"
            )
        return choice, note, why

    def without(self, hybrid: Deployment) -> Deployment:
        """The step without hot rows, which says so."""
        note = f"not applied, the step is that of hybrid: no hot rows ({self.of}.hot_mib 0)"
        return hybrid.with_(without_gain=(*hybrid.without_gain, note))

    def within(self, deployment: Deployment) -> Iterator[Self]:
        """With less; a measured share of popular samples is of the hot rows that are set."""
        all_or_none = () if self.popular_frac == settings.AUTO else (0.0, self.hot_mib)
        for each in super().within(deployment):
            if not all_or_none or each.hot_mib in all_or_none:
                yield each


@dataclass(frozen=True)
class Fae(_WithHotRows, of="fae"):
    """Mini-batches of popular samples run from hot rows on every GPU, others as CPU-GPU training.

    `hot_mib` of every GPU (0: `hybrid`) hold the most popular rows of all tables, learned once on
    `sampled_frac` of `inputs` before training. `popular_frac` is a measured share of the samples
    that need no other; `auto`: lookups are taken as independent, so that of samples with many
    lookups hardly any is popular and steps are those of `hybrid` (a note says so). After
    `switch_every_steps` steps, on average, mini-batches of the other kind follow: in training the
    hot rows go to the GPUs, or back. `pooled_on` is as in `hybrid`; several nodes share the tables.

    Source: Adnan et al., Accelerating Recommendation System Training by Leveraging Popular Choices
    (VLDB 2022, arXiv 2103.00686) and STAR-Laboratory/Accelerating-RecSys-Training (256 MiB, 5 %).
    Inputs are Criteo Kaggle's; the steps between switches are assumed.
    """

    hot_mib: settings.Amount = settings.budget(256.0, settings.halves(MIN_MIB))
    sampled_frac: settings.SomeShare = 0.05
    inputs: Inputs = 39.3e6
    popular_frac: settings.Share | settings.Auto = settings.AUTO
    switch_every_steps: settings.SomeAmount = 64.0
    pooled_on: OnHost = "host"

    @property
    def sampled(self) -> float:
        return self.sampled_frac * self.inputs

    def apply(self, deployment: Deployment) -> Deployment:
        cold = Hybrid(pooled_on=self.pooled_on).apply(deployment)
        if not self.hot_mib:
            return self.without(cold)
        choice, note, why = self.choose(deployment)
        share = choice.popular_frac
        hot_pipeline = replace(deployment.pipeline, micro_batches=(MicroBatch(1.0, popular=True),))
        moved: dict[str, float] = {}
        if deployment.train and 0.0 < share < 1.0:
            moved = dict.fromkeys(("to_device_bytes", "to_host_bytes"), choice.kept_bytes)
            # at least one step in a row, and one of the others between runs
            moved["run_steps"] = max(
                2.0 * self.switch_every_steps * share, 1.0, share / (1.0 - share)
            )
        phases = (
            Phase("popular", max(share, 1e-12), choice.placement, hot_pipeline, **moved),
            Phase("other", max(1.0 - share, 1e-12), cold.placement, cold.pipeline),
        )
        return deployment.with_(
            note,
            "assumed: other mini-batches look rows up as all samples do",
            *([f"fae: {why}"] if why else []),
            without_gain=(*deployment.without_gain, *([why] if why else [])),
            placement=choice.placement,
            pipeline=hot_pipeline,
            phases=tuple(phase for phase in phases if phase.steps_frac > 1e-9),
        )


USUAL_PART = "hotline"


@dataclass(frozen=True)
class Hotline(_WithHotRows, of="hotline"):
    """Popular samples run from hot rows on every GPU while an accelerator gathers others' rows.

    `hot_mib` of every GPU (0: `hybrid`) hold the most popular rows of all tables, known from the
    first `learning_frac` of `inputs`, during which the host looks all rows up (0: known
    beforehand). `popular_frac` is a measured share of the samples that need no other; `auto`:
    lookups are taken as independent. `accelerator`: a part of the catalogue or a file; empty: the
    machine's own, else `hotline`; `none`: the host's cores gather.

    `launches`: how samples reach the GPUs. `whole_batches`: the accelerator keeps samples until a
    whole batch of one kind is there; rows of others come, and go back, while popular ones run.
    `as_they_come`: batches are not split, rows that one lacks come at its start. `compare` takes
    the second, or no hot rows, where that is faster.

    Source: Adnan et al., Heterogeneous Acceleration Pipeline for Recommendation System Training
    (ISCA 2024, arXiv 2204.05436), abstract; the mechanism and 512 MB recalled; what it learns on
    is assumed to be as in FAE.
    """

    hot_mib: settings.Amount = settings.budget(512.0, settings.halves(MIN_MIB))
    popular_frac: settings.Share | settings.Auto = settings.AUTO
    launches: Literal["whole_batches", "as_they_come"] = settings.step(
        "whole_batches", plain="as_they_come", less=settings.instead("as_they_come")
    )
    accelerator: str = settings.step("", plain=settings.NO_PART)
    learning_frac: settings.PartShare = 0.05
    inputs: Inputs = 39.3e6

    parts: ClassVar = {"accelerator": Accelerator}

    @property
    def sampled(self) -> float:
        return self.learning_frac * self.inputs or np.inf

    def apply(self, deployment: Deployment) -> Deployment:
        host = Hybrid(pooled_on="host").apply(deployment)
        if not self.hot_mib:
            return self.without(host)
        choice, note, why = self.choose(deployment)
        machine = self._machine(deployment.machine)
        learns = self.learning_frac if deployment.train else 0.0
        phases = [
            Phase(name, (1.0 - learns) * share, choice.placement, pipeline)
            for name, share, pipeline in self._parts(choice.popular_frac, deployment)
        ]
        pipeline = phases[0].pipeline
        if learns:
            phases.append(Phase("learning", learns, host.placement, host.pipeline))
        part = machine.node.accelerator
        by = f"gathered by {part.name if part else 'the cores of the host'}"
        learning = f"hotline: {100 * learns:.1f} % of the steps learn, and are those of hybrid"
        return deployment.with_(
            note,
            f"hotline: rows that are not hot are {by}; launches: {self.launches}",
            *([f"hotline: {why}"] if why else []),
            *([learning] if learns else []),
            machine=machine,
            placement=choice.placement,
            pipeline=pipeline,
            phases=tuple(phases) if len(phases) > 1 else (),
        )

    def _machine(self, machine: Cluster) -> Cluster:
        """`machine` with the accelerator that is asked for in each node."""
        part = machine.node.accelerator
        if self.accelerator == settings.NO_PART:
            part = None
        elif self.accelerator or part is None:
            part = self.part(Accelerator, "accelerator", self.accelerator or USUAL_PART)
        return replace(machine, node=replace(machine.node, accelerator=part))

    def _parts(
        self, popular_frac: float, deployment: Deployment
    ) -> list[tuple[str, float, Pipeline]]:
        """Kinds of steps: name, share of the steps, and what a step of it does."""
        plain = replace(deployment.pipeline, input_ahead=True, rows_beside=True, writes_behind=True)
        popular_frac *= self.launches == "whole_batches"
        if not MIN_FRAC < popular_frac < 1.0 - MIN_FRAC:
            whole = MicroBatch(1.0, popular=popular_frac > MIN_FRAC)
            return [("hot", 1.0, replace(plain, micro_batches=(whole,)))]
        popular, other = (
            replace(plain, micro_batches=(MicroBatch(1.0, each),), popular_frac=popular_frac)
            for each in (True, False)
        )
        return [("popular", popular_frac, popular), ("other", 1.0 - popular_frac, other)]
