"""Durations of pieces, from the model that answers for each row's family.

`learned`, the default, is physics times what trees know of its error, where they were fitted;
`heuristic` is physics alone; others are of plug-ins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np

from perfmodel.base.answers import answered_by
from perfmodel.base.arrays import Floats
from perfmodel.base.registry import offered
from perfmodel.cost.collectives.learned import collective_durations, explain_collectives
from perfmodel.cost.contract import (
    COLLECTIVE,
    KERNELS,
    TIERS,
    CostModel,
    Estimate,
    Explanation,
    KernelModel,
    OfDevice,
    checked,
)
from perfmodel.cost.gpu.analysis import among_others
from perfmodel.cost.gpu.program import in_program
from perfmodel.cost.learned.features import PHYSICS
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.store import BUNDLED, MANIFEST, load_models
from perfmodel.errors import ModelError, UsageError
from perfmodel.hardware import Cluster, Device, Node, cluster, load
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, VECTOR
from perfmodel.ops.vocabulary.streaming import TRANSFER

if TYPE_CHECKING:
    import pandas as pd


HEURISTIC, LEARNED = "heuristic", "learned"
GPU, CPU = "gpu", "cpu"
KIND = {"cuda": GPU, "rocm": GPU, "cpu": CPU}
Chosen: TypeAlias = tuple[tuple[str, str], ...]
Kernels: TypeAlias = str | Mapping[str, str] | Chosen
"""Family to the name of its model: `matmul=heuristic,embedding=learned`, a mapping, or pairs."""
_CHOSEN: ContextVar[Chosen] = ContextVar("kernel models by name", default=())
_OWN: ContextVar[Mapping[str, Learned] | None] = ContextVar("kernel models of a user", default=None)


@contextmanager
def using_models(folder: str | Path | None, *, trusted: bool = False) -> Iterator[None]:
    """Within it, the families of `folder` answer before the bundled ones; None changes nothing.

    Raises `ModelError` as `load_models` does.
    """
    own = _OWN.get() if folder is None else load_models(folder, trusted=trusted)
    token = _OWN.set(own)
    try:
        with answered_by(None if folder is None else Path(folder) / MANIFEST):
            yield
    finally:
        _OWN.reset(token)


def default_models() -> Mapping[str, Learned]:
    """The fitted models by family: those of `using_models`, else those of the package, if it was
    installed with them."""
    return {**_bundled(), **(_OWN.get() or {})}


@lru_cache(maxsize=1)
def _bundled() -> Mapping[str, Learned]:
    return load_models(BUNDLED) if (BUNDLED / MANIFEST).is_file() else {}


def kernels_in_use() -> Chosen:
    """Families whose model was chosen, each with its name."""
    return _CHOSEN.get()


@contextmanager
def using_kernels(given: Kernels | None) -> Iterator[None]:
    """Within it, models answer for families by those names; nothing given changes nothing.

    Raises `UsageError` for a family or a name that is not known.
    """
    before = _CHOSEN.get()
    chosen = tuple({**dict(before), **_checked(given)}.items()) if given else before
    if chosen == before:
        yield
        return
    token = _CHOSEN.set(chosen)
    try:
        with answered_by(None, ",".join(map("=".join, chosen))):
            yield
    finally:
        _CHOSEN.reset(token)


def _checked(given: Kernels) -> dict[str, str]:
    if isinstance(given, str):
        words = [word.partition("=") for word in given.split(",")]
        if unclear := [family for family, equals, _ in words if not equals]:
            raise UsageError(f"--kernels {unclear[0]!r}: expected FAMILY=NAME, as matmul=heuristic")
        given = tuple((family.strip(), name.strip()) for family, _, name in words)
    known: dict[str, set[str]] = {}
    for text in KERNELS:
        _, family, name = text.split("/")
        if family != COLLECTIVE:  # which several models share: links, networks, hosts
            known.setdefault(family, {LEARNED}).add(name)
    for family, name in dict(given).items():
        if family not in known:
            raise UsageError(f"--kernels: unknown family {offered(family, sorted(known))}")
        if name not in known[family]:
            there = ", ".join(sorted(known[family]))
            raise UsageError(f"--kernels {family}={name}: {family} has {there}")
    return dict(given)


def not_learned() -> list[str]:
    """A note for each family that was to be `learned` and has no trees."""
    chosen = [family for family, name in kernels_in_use() if name == LEARNED]
    return [
        f"--kernels {family}=learned: nothing was fitted to its measurements, physics answers"
        for family in chosen
        if family not in default_models()
    ]


def uncalibrated(device: Device) -> list[str]:
    """That `device`, a CPU, was not calibrated; for predictions."""
    if device.target != "cpu" or device.calibration:
        return []
    return [f"{device.name} was not calibrated: scaled from another CPU"]


Models = Mapping[str, KernelModel]
"""Family to the model that answers for it; families that are not in it have their default."""


@dataclass(frozen=True)
class Durations:
    """Per row: duration, 90 % interval (microseconds), which model said so and on what grounds."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    model: tuple[str, ...]
    source: tuple[str, ...]

    @classmethod
    def joined(cls, parts: Sequence[Durations]) -> Durations:
        columns = ("duration_us", "low_us", "high_us")
        us, low, high = (
            np.concatenate([getattr(part, each) for part in parts]) for each in columns
        )
        model = tuple(model for part in parts for model in part.model)
        return cls(us, low, high, model, tuple(source for part in parts for source in part.source))

    def to_frame(self, index: pd.Index | None = None) -> pd.DataFrame:
        """The columns as a pandas frame, of these arrays, under `index`."""
        import pandas as pd

        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        return pd.DataFrame(columns, index, copy=False)


def durations_of(
    rows: Rows, hardware: Device | Node | Cluster, models: Models | None = None
) -> Durations:
    """Durations of `rows`, family by family; collectives among the ranks of `hardware`.

    Of a device alone, collectives take the node that it usually sits in. Raises `ModelError`.
    """
    machine = cluster(hardware)
    duration, low, high = (np.empty(len(rows)) for _ in range(3))
    model, source = np.empty(len(rows), object), np.empty(len(rows), object)
    for family, index in rows.grouped(lambda kind: OPS[kind.op].family):
        estimated = cost_model(family, machine, models).estimate(rows.take(index), machine)
        duration[index] = estimated.duration_us
        low[index], high[index] = estimated.low_us, estimated.high_us
        model[index], source[index] = estimated.model, estimated.source
    return Durations(duration, low, high, tuple(model), tuple(source))


def explanations_of(
    rows: Rows, hardware: Device | Node | Cluster, models: Models | None = None
) -> list[Explanation]:
    """Why `rows`, all of one family, take what they take. Raises `ModelError`."""
    machine = cluster(hardware)
    return cost_model(OPS[rows.op[0]].family, machine, models).explain(rows, machine)


def cost_model(family: str, machine: Cluster, models: Models | None = None) -> CostModel:
    """The model for `family` on `machine`; `ModelError` where there is none."""
    device = machine.node.device
    is_gpu = KIND[device.target] == GPU
    if family not in PHYSICS and family in TIERS:  # which asks no tier for the usual families
        return TIERS[family]
    if family == COLLECTIVE and is_gpu:
        return OverLinks()
    model = model_of(family, device, models)
    if family == COLLECTIVE:
        return OfHosts(model)
    if family == TRANSFER:
        return OnDevice(model, over_uplink=True)
    return InProgram(model, streams=model_of(VECTOR, device, models)) if is_gpu else OnDevice(model)


def model_of(family: str, device: Device, models: Models | None = None) -> KernelModel:
    """The model that answers for `family` on `device`; `ModelError` where there is none."""
    if models and family in models:
        return checked(models[family], family)
    kind, named = KIND[device.target], dict(kernels_in_use()).get(family, LEARNED)
    if named == LEARNED:
        fitted = default_models() if kind == GPU else {}
        if family in fitted:
            return fitted[family]
        named = HEURISTIC
    name = f"{kind}/{family}/{named}"
    if name not in KERNELS:
        there = [
            text.rpartition("/")[2] for text in KERNELS if text.startswith(f"{kind}/{family}/")
        ]
        told = f"the family {family!r} on a {device.target} device"
        raise ModelError(f"no kernel model for {told}: {offered(named, there)}")
    return checked(KERNELS[name], name)


class OverLinks:
    """Collectives of GPUs, by their links and networks."""

    estimate = staticmethod(collective_durations)
    explain = staticmethod(explain_collectives)


@dataclass(frozen=True)
class OnDevice:
    """A kernel model, of each device of a machine."""

    model: KernelModel
    over_uplink: bool = False
    """Whether rows are copies between devices and their host, whose way several devices share."""
    above: ClassVar[float] = 1.1
    """How many times longer than before a raised kernel is bound by what raises it (a tenth,
    assumed: below that the reader is better told what the kernel does)."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        return self.model.estimate(self._sharing(rows, machine.node), machine.node.device)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        return self.model.explain(self._sharing(rows, machine.node), machine.node.device)

    def _sharing(self, rows: Rows, node: Node) -> Rows:
        if not self.over_uplink:
            return rows
        ranks = np.nan_to_num(rows.dims.get("ranks", np.ones(len(rows))), nan=1.0)
        shared = np.minimum(ranks, min(node.gpus_per_uplink or 1, node.gpus))
        return replace(rows, dims={**rows.dims, "ranks": shared})

    def _raised(
        self, rows: Rows, machine: Cluster, bound_by: Sequence[str], rest: str, words: str
    ) -> list[Explanation]:
        """The kernel model's explanations, raised to `estimate`: what a kernel took before is its
        term `rest`, and `bound_by` what bounds it where it takes over `above` times that."""
        durations_us = self.estimate(rows, machine).duration_us.tolist()
        why = self.model.explain(rows, machine.node.device)
        return [
            each
            if us <= each.duration_us * (1 + ROUNDING_FRAC)
            else replace(
                each,
                duration_us=us,
                bound_by=bound if bound and us > self.above * each.duration_us else each.bound_by,
                utilisation_frac=each.utilisation_frac * each.duration_us / us,
                terms={**each.terms, rest: each.duration_us},
                formula=f"{words}: {each.formula}",
            )
            for each, us, bound in zip(why, durations_us, bound_by, strict=True)
        ]


ROUNDING_FRAC = 1e-9
_STREAM = Rows.of([{"op": "add", "rows": 2.0**14, "cols": 2.0**13}])
"""Long enough to show a device's bandwidth."""
_LEAST, _MOST = 0.9, 2.0
COLD = "memory (cold cache)"
"""What bounds a kernel that would be faster if it were called over and over (`repeated_us`)."""


@dataclass(frozen=True)
class InProgram(OnDevice):
    """A kernel model of a GPU, corrected for the cold caches of a program where it tells of kernels
    called over and over. `streams` is the model that knows the device's bandwidth."""

    streams: KernelModel = field(kw_only=True)

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        content = id(self.model), id(self.streams), rows.content
        return _estimate(OfDevice(content, machine.node.device, (self, rows)))

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        bound_by = [COLD if cold else "" for cold in among_others(rows)]
        words = "what moving every operand once takes, and what the op does besides, longer than"
        return self._raised(rows, machine, bound_by, "repeated_us", words)


@lru_cache(maxsize=256)
def _estimate(asked: OfDevice) -> Estimate:
    (by, rows), device = asked.by, asked.device
    rows = replace(rows)  # what is worked out of them goes when the answer is known
    pace = _stream_slowdown(OfDevice((id(by.streams),), device, by.streams))
    return in_program(rows, device, by.model.estimate(rows, device), pace)


@lru_cache(maxsize=256)
def _stream_slowdown(asked: OfDevice) -> float:
    """Time of long streams on a device over that of physics, as far as measurements tell of it."""
    found = asked.by.estimate(_STREAM, asked.device)
    physics = PHYSICS[VECTOR].estimate(_STREAM, asked.device)
    slowdown = (found.duration_us / physics.duration_us) ** found.measured_frac
    return float(np.clip(slowdown[0], _LEAST, _MOST))


NETWORK = "network"
"""What bounds a collective of CPUs that also crosses from host to host."""


class OfHosts(OnDevice):
    """Collectives of CPUs: ranks meet in a host's memory (`model`), hosts over the network."""

    above: ClassVar[float] = 2.0  # where the network takes longer than the host's memory

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        within = super().estimate(rows, machine)
        nodes = rows.dims.get("nodes", np.ones(len(rows)))
        index = np.flatnonzero(np.nan_to_num(nodes, nan=1.0) > 1)
        if machine.nodes == 1 or not len(index):
            return within
        beyond = collective_durations(rows.take(index), machine)
        us = np.array([within.duration_us, within.low_us, within.high_us])
        us[:, index] += beyond.duration_us, beyond.low_us, beyond.high_us
        return replace(within, duration_us=us[0], low_us=us[1], high_us=us[2])

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        words = "the way between hosts, on top of"
        return self._raised(rows, machine, [NETWORK] * len(rows), "within_host_us", words)


def durations(
    ops: pd.DataFrame,
    hardware: str | Path | Device | Node | Cluster,
    *,
    models: Models | str | Path | None = None,
) -> pd.DataFrame:
    """Durations of a frame in the measurement-table schema on a device, node or cluster.

    `hardware` is a name of the catalogue, a TOML file or a part; `models` are kernel models by
    family, or a directory that `perfmodel fit kernels` wrote. Returns `duration_us
    low_us high_us model source` under the index of `ops`: microseconds, a 90 % interval, the model
    and what it rests on. Raises `ModelError` for an unknown op or dtype and for dims that are
    missing, zero, negative or not finite, `HardwareError` for unknown hardware.
    """
    part = load(hardware) if isinstance(hardware, (str, Path)) else hardware
    if not isinstance(part, (Device, Node, Cluster)):
        raise UsageError(f"{part.name}: kernels run on a device, a node or a cluster")
    chosen = load_models(models) if isinstance(models, (str, Path)) else models
    rows = Rows.from_frame(ops)
    return durations_of(rows, part, chosen).to_frame(ops.index)
