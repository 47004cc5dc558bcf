"""What a design edits: a workload, its placement and pipeline on a machine; whether memory holds
them, what a step has there beside tables, and the largest batch that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

from perfmodel.base.registry import Registry
from perfmodel.embedding import Pipeline, Placement
from perfmodel.errors import Note
from perfmodel.hardware import Cluster, Device
from perfmodel.lowering.lower import CPU
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, memory_use, tier_use, with_activations
from perfmodel.workload.step import cached_op_graph, deciding_classes, rank_classes
from perfmodel.workload.tables import row_bytes


@dataclass(frozen=True)
class Phase:
    """Steps of one kind, the share `steps_frac` of all, in runs that are long against a step.

    Before a run `to_device_bytes` come to every device, after it `to_host_bytes` go back from one.
    A run has `run_steps` steps.
    """

    name: str
    steps_frac: float
    placement: Placement
    pipeline: Pipeline
    to_device_bytes: float = 0.0
    to_host_bytes: float = 0.0
    run_steps: float = float("inf")


@dataclass(frozen=True)
class Deployment:
    """A workload with a global `batch` on `machine`: where its tables are, how its step runs.

    `phases`: where steps are of several kinds, one for each; else all have `placement` and
    `pipeline`. `notes`: what a user should know, assumptions first. `own_layout`: the layout by the
    workload's settings where device memory cannot hold it; designs that put tables elsewhere may
    take it. `without_gain`: notes on what was left out since it is no faster, or cannot be.
    `in_own_software`: the workload's own software runs it, and says where tables are.
    """

    workload: Workload
    machine: Cluster
    batch: int
    placement: Placement
    pipeline: Pipeline = field(default_factory=Pipeline)
    train: bool = True
    notes: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    own_layout: Placement | None = field(default=None, compare=False)
    without_gain: tuple[str, ...] = field(default=(), compare=False)
    in_own_software: bool = False

    @property
    def ranks(self) -> int:
        """One per device."""
        return self.machine.gpus

    @property
    def samples(self) -> int:
        """Of the batch, what the ranks with most have."""
        return -(-self.batch // self.ranks)

    @property
    def table_bytes(self) -> list[float]:
        """Of each table as it is stored."""
        pairs = zip(self.workload.tables, self.placement.tables, strict=True)
        return [table.rows * row_bytes(table, placed.dtype) for table, placed in pairs]

    @property
    def fits(self) -> bool:
        """Whether memory holds its tables and what a step has beside them."""
        return self.filled_frac <= 1.0

    @property
    def filled_frac(self) -> float:
        """What it needs of the memory that it fills most, 1 being all; of one that tables alone
        overfill, these alone."""
        uses = tier_use(self.workload, self.placement, self.machine, train=self.train)
        if (alone := max(each.filled_frac for each in uses)) > 1.0:
            return alone
        every = with_activations(uses, self.beside_bytes - CONTEXT_BYTES)
        return max(each.filled_frac for each in every)

    @property
    def beside_bytes(self) -> float:
        """Of device memory, what the ranks that decide have beside tables: parameters, the batch,
        activations, and what the driver takes."""
        return _beside_bytes(replace(self, notes=(), phases=()))

    def with_(self, *notes: str, **changes: Any) -> Deployment:
        said = (each if isinstance(each, Note) else Note(each) for each in notes)
        return replace(self, notes=(*self.notes, *said), **changes)

    def unchanged(self, design: str, why: str) -> Deployment:
        """This, which says that `design` was not applied."""
        note = f"not applied, {why}"
        return self.with_(f"{design}: {note}", without_gain=(*self.without_gain, note))

    def layouts(self) -> tuple[Deployment, ...]:
        """This, and where `own_layout` has the tables: what fits decides, not device memory."""
        plain = replace(self, own_layout=None)
        if self.own_layout is None:
            return (plain,)
        sharding = self.workload.implementation.sharding
        note = Note(
            f"tables laid out as implementation.sharding {sharding!r} says, which device memory "
            "could not hold"
        )
        return plain, replace(plain, placement=self.own_layout, notes=(note,))


class Design(Protocol):
    """A frozen dataclass whose fields are the design's settings, each with a default."""

    def apply(self, deployment: Deployment) -> Deployment:
        """`deployment` under this design; `WorkloadError` where that makes no sense, and why."""


DESIGNS: Registry[type[Design]] = Registry("design", "perfmodel.designs", "perfmodel.designs")
"""By name; a docstring's first line is what a user reads of it."""


@runtime_checkable
class Budgeted(Protocol):
    """A design with settings that say what it may use, such as memory or fewer bits."""

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """The design without what it adds, where that is known to be an answer: slower ones are
        then soon left; and with less, the most first.

        Twice a budget gives all that the budget gives, and that itself.
        """


def changes(before: Design, after: Design) -> str:
    """The settings in which `after` differs from `before`, in words."""
    texts = []
    for each in fields(before):  # type: ignore[arg-type]
        old, new = (getattr(design, each.name) for design in (before, after))
        if new != old:
            texts.append(f"{each.name} {words(new)} in the place of {words(old)}")
    return ", ".join(texts)


def words(value: object) -> str:
    if value is None or isinstance(value, float):
        return "unset" if value is None else f"{value:g}"
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def filled_frac_of(memory: Mapping[str, Any], device: Device) -> float:
    """The same of what a prediction says of memory."""
    if tiers := memory.get("tiers"):
        known = (each for each in tiers if each["capacity_bytes"])
        return max(float(each["total_bytes"] / each["capacity_bytes"]) for each in known)
    return float(memory["total_bytes"] / device.hbm_bytes)


MOST, GROWTH = 1 << 30, 64
"""Samples of a batch that are tried, at most, and how many times as many as fit."""
PLACES, LINES = 8, 5
"""Binary places of a batch that is found, and tries along lines before the range is halved."""


def largest(filled: Callable[[int], float | None], start: int) -> int:
    """The largest batch of which `filled` says no more than 1 (None: it does not fit), tried from
    `start` on, in binary rounded down to `PLACES`; 0 where one sample does not fit. Memory grows
    nearly along a line."""
    fit, too_many, tries = 0, MOST, 0
    known, batch = list[tuple[int, float]](), start
    while True:
        frac, tries = filled(batch), tries + 1
        known += [] if frac is None else [(batch, frac)]
        if frac is not None and frac <= 1.0:
            fit = batch
        else:
            too_many = batch
        step = 1 << max(fit.bit_length() - PLACES, 0)
        if too_many - fit <= step:
            return fit
        guess = (fit + too_many) / 2 if too_many < MOST else float(GROWTH * max(fit, 1))
        if len(known) > 1 and tries <= LINES:
            (one, before), (other, after) = known[-2:]
            if (slope := (after - before) / (other - one)) > 0:
                guess = min(other + (1.0 - after) / slope, guess * GROWTH)
        size = max(int(guess), fit + step)
        batch = min(size & -(1 << max(size.bit_length() - PLACES, 0)), too_many - 1)


@lru_cache(maxsize=128)
def _beside_bytes(deployment: Deployment) -> float:
    it, machine, beside = deployment, deployment.machine, 0.0
    ranks, linked, target = it.ranks, machine.linked_gpus, machine.node.device.target
    for each in deciding_classes(rank_classes(it.workload, ranks, linked, it.placement, it.batch)):
        step: dict[str, Any] = {"ranks": ranks, "rank": each.ranks[0], "target": target}
        step |= {"train": it.train, "linked": linked, "placement": it.placement}
        graph = cached_op_graph(it.workload, it.batch, **step, pipeline=it.pipeline, sharers=0.0)
        use = memory_use(graph, in_host_memory=target == CPU)
        assert use is not None  # recorded ops know their storages
        beside = max(beside, use.resident_bytes + use.temporary_bytes)
    return beside + CONTEXT_BYTES
