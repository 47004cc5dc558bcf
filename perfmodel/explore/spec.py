"""What to sweep and what is wanted of it, as a TOML file says it; every key is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.frames import read_frame
from perfmodel.base.schema import Limits, read_toml, section
from perfmodel.errors import UsageError
from perfmodel.explore.axes import GRID, LOG, TABLE, Axis, Range, Space
from perfmodel.hardware import KINDS, Cluster
from perfmodel.hardware.reads import FigureRead, figures_used
from perfmodel.prediction.running_cost import Activity, OperatingCosts, Prices


@dataclass(frozen=True)
class Objective:
    """A column of the results."""

    text: str
    more_is_better: bool = False
    needs_samples: bool = True


STEP, RATE, COST, ENERGY = "step_us", "samples_per_s", "cost_usd_per_million", "energy_j_per_sample"
OBJECTIVES = {
    STEP: Objective("step (us)", needs_samples=False),
    RATE: Objective("samples per second", more_is_better=True),
    COST: Objective("US dollars per million samples"),
    ENERGY: Objective("energy per sample (J)"),
    "power_w": Objective("power (W)", needs_samples=False),
}
ALIASES = {"energy": ENERGY, "cost": COST}


def objectives_of(names: Sequence[str]) -> tuple[str, ...]:
    """The objectives of those names, each once. Raises `UsageError` for an unknown one."""
    chosen = [ALIASES.get(name, name) for name in names]
    for name in chosen:
        if name not in OBJECTIVES:
            known = ", ".join([*OBJECTIVES, *ALIASES])
            raise UsageError(f"objective {name!r}: expected one of {known}")
    return tuple(dict.fromkeys(chosen))


def figures(
    names: Sequence[str],
    step_us: Floats,
    samples: float | Floats | None,
    running: OperatingCosts,
    activity: Activity,
) -> dict[str, Floats]:
    """`names` of one machine at steps of `samples` each; a cost without a known price is NaN."""
    columns = {STEP: step_us}
    columns["power_w"] = np.broadcast_to(running.power_w(activity), step_us.shape)
    if samples is not None:
        rate = samples / step_us * 1e6
        costs = running.economics(rate, activity)
        usd = costs.usd_per_million_samples
        unknown = np.full(len(rate), np.nan)
        columns |= {RATE: rate, COST: unknown if usd is None else np.asarray(usd, np.float64)}
        columns[ENERGY] = np.asarray(costs.energy_j_per_sample, np.float64)
    return {name: np.asarray(columns[name], np.float64) for name in names}


RUNNING = (
    *("cluster", "node", "device.target"),
    *(f"{kind}.{name}" for kind in KINDS for name in ("tdp_w", "price_usd", "capacity_bytes")),
)
"""What running a machine costs by: prices, watts, how many of each part."""


def running_figures(columns: Sequence[str], machine: Cluster) -> tuple[FigureRead, ...]:
    """Those that other columns than the step use of a machine."""
    return () if tuple(columns) == (STEP,) else figures_used(machine, RUNNING)


TRACE, WORKLOAD = INPUTS = ("trace", "workload")
BATCH = "batch"
POINT, ERROR = "point", "error"
"""Columns of results beside axes and figures."""
MAX_BYTES = 50_000_000
MOST = 2**53
CHUNKS = {TRACE: 8192, WORKLOAD: 16}
"""Points of one part of the results: what a killed sweep may lose."""


@dataclass(frozen=True)
class Spec:
    """A sweep: its input, its points, what is wanted of each."""

    where: str
    kind: str
    """`trace` or `workload`."""
    input: str
    space: Space
    hardware: str | None = None
    design: str | None = None
    """Of a workload: designs joined by `+`, where no axis says so."""
    objectives: tuple[str, ...] = ("step_us",)
    batch: int | None = None
    """Samples per step of a trace: no recorded shape shows it for all ranks."""
    training: bool = True
    at: Mapping[str, Any] = field(default_factory=dict)
    """The point of a sensitivity, where it is not the hardware as it is."""
    prices: Prices = field(default_factory=Prices)
    chunk: int = 1

    @property
    def parts(self) -> int:
        """Parts of the results."""
        return -(-len(self.space) // self.chunk)

    def bounds(self, part: int) -> tuple[int, int]:
        """(first point, the one behind the last) of a part."""
        begin = part * self.chunk
        return begin, min(begin + self.chunk, len(self.space))


_Count = Annotated[int, Limits(1, MOST)]


@dataclass(frozen=True)
class _File:
    """A sweep's file, key by key."""

    trace: str | None = None
    workload: str | None = None
    hardware: str | None = None
    design: str | None = None
    objective: list[str] = field(default_factory=lambda: [STEP])
    batch: _Count | None = None
    training: bool = True
    sample: Literal["grid", "table"] | None = None
    table: str | None = None
    chunk: _Count | None = None
    at: dict[str, Any] = field(default_factory=dict)
    prices: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)


def load_spec(path: str | Path, objectives: str | None = None) -> Spec:
    """The sweep of a TOML file; paths in it are relative to its folder.

    `objectives`, separated by commas, replace its own. Raises `UsageError` that names file and key.
    """
    path = Path(path)
    file = section(_File, read_toml(path, MAX_BYTES, UsageError), str(path), UsageError)
    try:
        return _spec(file, path, objectives.split(",") if objectives else file.objective)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _spec(file: _File, path: Path, objectives: list[str]) -> Spec:
    inputs = [(kind, given) for kind in INPUTS if (given := getattr(file, kind)) is not None]
    if len(inputs) != 1:
        raise UsageError("expected one of trace, workload (a name or a file)")
    (kind, given), hardware = inputs[0], file.hardware
    if kind != WORKLOAD or given.endswith(".toml") or "/" in given:
        given = str(path.parent / given)
    if hardware is not None and hardware.endswith(".toml"):
        hardware = str(path.parent / hardware)
    if not objectives:
        raise UsageError(f"objective: expected a list of {', '.join(OBJECTIVES)}")
    space = _space(file, path.parent)
    if not len(space):
        raise UsageError("the sweep has no points: an axis without values, or a table without rows")
    return Spec(
        where=str(path),
        kind=kind,
        input=given,
        space=space,
        hardware=hardware,
        design=file.design,
        objectives=objectives_of([name.strip() for name in objectives]),
        batch=file.batch,
        training=file.training,
        at=_flat(file.at),
        prices=section(Prices, file.prices, "prices", UsageError),
        chunk=file.chunk or CHUNKS[kind],
    )


def _space(file: _File, folder: Path) -> Space:
    sample = file.sample or (GRID if file.table is None else TABLE)
    if (sample == TABLE) != (file.table is not None):
        raise UsageError('table: a file of points goes with sample = "table", and only with it')
    if file.table is None:
        return Space({name: _axis(name, value) for name, value in _flat(file.axes).items()})
    if file.axes:
        raise UsageError("axes: the columns of a table are the axes")
    frame = read_frame(folder / file.table, error=UsageError)
    empty = [str(name) for name in frame if frame[name].isna().any()]
    if empty:
        raise UsageError(
            f"table: {folder / file.table}: column {empty[0]} has rows without a value"
        )
    return Space({str(name): tuple(frame[name].tolist()) for name in frame}, TABLE)


def _axis(name: str, value: Any) -> Axis:
    where = f"axes.{name}"
    if isinstance(value, list):
        return tuple(_value(where, each) for each in value)
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a list of values, or low, high and steps")
    if {*value} & {"low", "high", "scale"} == {*value}:
        raise UsageError(f"{where}: steps: expected a whole number")
    known: Range = section(Range, value, where, UsageError)
    if not known.low < known.high:
        raise UsageError(f"{where}: expected numbers low and high, low the smaller one")
    if known.scale == LOG and known.low <= 0:
        raise UsageError(f"{where}: a log scale needs low above 0")
    is_whole = isinstance(value["low"], int) and isinstance(value["high"], int)
    return replace(known, whole=is_whole)


def _value(where: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(where, each) for each in value)
    if not isinstance(value, (int, float, str)):
        raise UsageError(f"{where}: expected numbers, texts or lists of them, got {value}")
    return value


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """A section whose keys may be written with dots or in quotes."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and not value.keys() & {"low", "high", "steps", "scale"}:
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value
    return flat
