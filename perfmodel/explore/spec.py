"""What to sweep and what is wanted of it, as a TOML file says it; every key is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.errors import UsageError
from perfmodel.explore.axes import (
    GRID,
    LATIN,
    LINEAR,
    LOG,
    MAX_STEPS,
    SAMPLES,
    SCALES,
    TABLE,
    Axis,
    Range,
    Space,
)
from perfmodel.frames import read_frame
from perfmodel.hardware import KINDS, Cluster
from perfmodel.hardware.reads import FigureRead, figures_used
from perfmodel.prediction.running_cost import Activity, OperatingCosts, Prices
from perfmodel.schema import Limits, convert, read_toml, require_keys, unknown_key


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


def prices_of(spec: Spec) -> Prices:
    """Prices as the sweep gives them. Raises `UsageError` for a key that is none."""
    try:
        return Prices(**spec.prices)
    except TypeError as error:
        known = ", ".join(each.name for each in fields(Prices))
        word = str(error).rpartition(" ")[2]
        raise UsageError(f"{spec.where}: prices: unknown key {word}; expected {known}") from None


RUNNING = (
    *("cluster", "node", "device.target"),
    *(f"{kind}.{name}" for kind in KINDS for name in ("tdp_w", "price_usd", "capacity_bytes")),
)
"""What running a machine costs by: prices, watts, how many of each part."""


def running_figures(columns: Sequence[str], machine: Cluster) -> tuple[FigureRead, ...]:
    """Those that other columns than the step use of a machine."""
    return () if tuple(columns) == (STEP,) else figures_used(machine, RUNNING)


TRACE, WORKLOAD, TRACES = INPUTS = ("trace", "workload", "traces")
KEYS = (
    *INPUTS,
    *("hardware", "design", "objective", "batch", "training", "sample", "count", "seed", "table"),
    *("chunk", "at", "prices", "axes"),
)
RANGE_KEYS = ("low", "high", "steps", "scale")
MAX_BYTES = 50_000_000
MOST = 2**53
CHUNKS = {TRACE: 8192, WORKLOAD: 16, TRACES: 8}
"""Points of one part of the results: what a killed sweep may lose."""


@dataclass(frozen=True)
class Spec:
    """A sweep: its input, its points, what is wanted of each."""

    where: str
    kind: str
    """`trace`, `workload` or `traces`."""
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
    prices: Mapping[str, float] = field(default_factory=dict)
    chunk: int = 1

    @property
    def parts(self) -> int:
        """Parts of the results."""
        return -(-len(self.space) // self.chunk)

    def bounds(self, part: int) -> tuple[int, int]:
        """(first point, the one behind the last) of a part."""
        begin = part * self.chunk
        return begin, min(begin + self.chunk, len(self.space))


def load_spec(path: str | Path, objectives: str | None = None) -> Spec:
    """The sweep of a TOML file; paths in it are relative to its folder.

    `objectives`, separated by commas, replace its own. Raises `UsageError` that names file and key.
    """
    path = Path(path)
    document = read_toml(path, MAX_BYTES, UsageError)
    try:
        return _spec(document, path, objectives)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _spec(document: Mapping[str, Any], path: Path, objectives: str | None) -> Spec:
    for name in document:
        if name not in KEYS:
            raise UsageError(unknown_key(name, KEYS))
    kinds = [kind for kind in INPUTS if kind in document]
    if len(kinds) != 1:
        raise UsageError("expected one of trace, workload (a name or a file) and traces (a glob)")
    kind = kinds[0]
    given = _text(document, kind)
    if kind != WORKLOAD or given.endswith(".toml") or "/" in given:
        given = str(path.parent / given)
    hardware = _text(document, "hardware") if "hardware" in document else None
    if hardware is not None and hardware.endswith(".toml"):
        hardware = str(path.parent / hardware)
    names = objectives.split(",") if objectives else document.get("objective", ["step_us"])
    if not isinstance(names, list) or not names:
        raise UsageError(f"objective: expected a list of {', '.join(OBJECTIVES)}")
    chunk = _whole(document, "chunk", CHUNKS[kind])
    space = _traces(given) if kind == TRACES else _space(document, path)
    if not len(space):
        raise UsageError("the sweep has no points: an axis without values, or a table without rows")
    return Spec(
        where=str(path),
        kind=kind,
        input=given,
        space=space,
        hardware=hardware,
        design=_text(document, "design") if "design" in document else None,
        objectives=objectives_of([str(name).strip() for name in names]),
        batch=_whole(document, "batch", 1) if "batch" in document else None,
        training=convert(bool, document.get("training", True), "training", UsageError),
        at=_table(document, "at"),
        prices=_table(document, "prices"),
        chunk=chunk,
    )


def _space(document: Mapping[str, Any], path: Path) -> Space:
    sample = document.get("sample", TABLE if "table" in document else GRID)
    if sample not in SAMPLES:
        raise UsageError(f"sample: expected one of {', '.join(SAMPLES)}, got {sample!r}")
    if (sample == TABLE) != ("table" in document):
        raise UsageError('table: a file of points goes with sample = "table", and only with it')
    if sample == TABLE:
        if "axes" in document:
            raise UsageError("axes: the columns of a table are the axes")
        return Space(_columns(path.parent / _text(document, "table")), TABLE)
    axes = {name: _axis(name, value, sample) for name, value in _table(document, "axes").items()}
    if sample == GRID and ("count" in document or "seed" in document):
        raise UsageError("count and seed are for a latin_hypercube; a grid has all its points")
    if sample == LATIN:
        if not axes or any(isinstance(axis, tuple) and not axis for axis in axes.values()):
            raise UsageError("the sweep has no points: an axis without values")
        return Space(axes, LATIN, _whole(document, "count", None), _whole(document, "seed", 0, 0))
    return Space(axes, GRID)


def _axis(name: str, value: Any, sample: str) -> Axis:
    if isinstance(value, list):
        return tuple(_value(name, each) for each in value)
    if not isinstance(value, dict):
        raise UsageError(f"axes.{name}: expected a list of values, or low and high")
    require_keys(value, RANGE_KEYS, f"axes.{name}", UsageError)
    low, high = value.get("low", 0), value.get("high", 0)
    if not _is_number(low) or not _is_number(high) or not low < high:
        raise UsageError(f"axes.{name}: expected numbers low and high, low the smaller one")
    scale = value.get("scale", LINEAR)
    if scale not in SCALES:
        raise UsageError(f"axes.{name}: scale: expected one of {', '.join(SCALES)}")
    if scale == LOG and low <= 0:
        raise UsageError(f"axes.{name}: a log scale needs low above 0")
    steps = _whole(value, "steps", None) if sample == GRID else None
    if steps is not None and steps > MAX_STEPS:
        raise UsageError(f"axes.{name}: {steps:,} steps: expected at most {MAX_STEPS:,}")
    is_whole = isinstance(low, int) and isinstance(high, int)
    return Range(low, high, steps, scale, is_whole)


def _value(axis: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(axis, each) for each in value)
    if not isinstance(value, (int, float, str)):
        raise UsageError(f"axes.{axis}: expected numbers, texts or lists of them, got {value}")
    return value


def _columns(path: Path) -> dict[str, Axis]:
    frame = read_frame(path, error=UsageError)
    empty = [str(name) for name in frame if frame[name].isna().any()]
    if empty:
        raise UsageError(f"table: {path}: column {empty[0]} has rows without a value")
    return {str(name): tuple(frame[name].tolist()) for name in frame}


def _traces(pattern: str) -> Space:
    base = Path(pattern)
    paths = sorted(str(each) for each in base.parent.glob(base.name))
    if not paths:
        raise UsageError(f"traces: nothing fits {pattern}")
    return Space({"trace": tuple(paths)}, TABLE)


def _text(table: Mapping[str, Any], key: str) -> str:
    return str(convert(str, table[key], key, UsageError))


def _table(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A section, whose keys may be written with dots or in quotes."""
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise UsageError(f"{key}: expected a section [{key}]")
    return _flat(value) if key != "prices" else dict(value)


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and not value.keys() & set(RANGE_KEYS):
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[f"{before}{key}"] = value
    return flat


def _whole(table: Mapping[str, Any], key: str, usual: int | None, least: int = 1) -> int:
    return int(convert(int, table.get(key, usual), key, UsageError, Limits(least, MOST)))


def _is_number(value: Any) -> bool:
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) < float("inf")
