"""What to sweep and what is wanted of it, as a TOML file says it; every key is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from perfmodel.base.files import DEMO
from perfmodel.base.frames import read_frame
from perfmodel.base.schema import Limits, convert, read_toml, section
from perfmodel.cost.durations import using_kernels
from perfmodel.errors import UsageError
from perfmodel.explore.axes import Points, name_of
from perfmodel.hardware import Part
from perfmodel.prediction.running_cost import Prices
from perfmodel.trace import Trace
from perfmodel.workload import Workload


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


BATCH = "batch"
MAX_BYTES = 50_000_000
_Count = Annotated[int, Limits(1, 2**53)]


@dataclass(frozen=True)
class Keys:
    """A sweep's file, key by key."""

    trace: Any = None
    workload: Any = None
    """A name or a file, or what it stands for; one of the two is the input."""
    hardware: Any = None
    design: str | None = None
    """Of a workload: designs joined by `+`, where no axis says so."""
    objective: list[str] = field(default_factory=lambda: [STEP])
    batch: _Count | None = None
    """Samples per step of a trace: no recorded shape shows it for all ranks."""
    training: bool = True
    kernels: dict[str, str] = field(default_factory=dict)
    """Family of kernels to the name of the model that times it."""
    table: str | None = None
    prices: Prices = field(default_factory=Prices)
    axes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec(Keys):
    """A sweep: its input, its points, what is wanted of each."""

    where: str = ""
    """Its file, or `sweep`."""
    points: Points = field(default_factory=lambda: Points.of({}))
    objectives: tuple[str, ...] = (STEP,)

    @property
    def input(self) -> str:
        """What it is of, by its name or path."""
        return name_of(self.workload if self.trace is None else self.trace)


OBJECTS: dict[str, Any] = {"trace": Trace, "workload": (Workload, Trace), "hardware": Part}
"""What may stand for itself; on an axis, a workload or a part."""


def load_spec(source: str | Path | Mapping[str, Any], objectives: str | None = None) -> Spec:
    """The sweep of a TOML file, or of a mapping with the same keys; paths in it are relative to the
    file's folder, or to the working folder.

    `objectives`, separated by commas, replace its own. Raises `UsageError` that names file and key.
    """
    if isinstance(source, Mapping):
        where, folder, table = "sweep", Path(), dict(source)
    else:
        where, folder = str(source), Path(str(source)).parent
        table = read_toml(Path(where), MAX_BYTES, UsageError)
    keys = section(Keys, table, where, UsageError)
    try:
        if (keys.trace is None) == (keys.workload is None):
            raise UsageError("expected one of trace, workload (a name or a file)")
        inputs = {key: _input(key, getattr(keys, key), folder) for key in OBJECTS}
        names = objectives.split(",") if objectives else keys.objective
        wanted = dict.fromkeys(ALIASES.get(name.strip(), name.strip()) for name in names)
        known = ", ".join([*OBJECTIVES, *ALIASES])
        if not wanted:
            raise UsageError(f"objective: expected a list of {known}")
        for name in wanted:
            if name not in OBJECTIVES:
                raise UsageError(f"objective {name!r}: expected one of {known}")
        points = _points(keys, folder)
        with using_kernels(keys.kernels):
            """Names are known."""
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return Spec(**vars(keys) | inputs, where=where, points=points, objectives=tuple(wanted))


def _input(key: str, given: Any, folder: Path) -> Any:
    """A name as it is, a path as it is relative to `folder`, or what stands for itself."""
    if given is None or isinstance(given, OBJECTS[key]):
        return given
    named: str = convert(str, str(given) if isinstance(given, Path) else given, key, UsageError)
    is_trace = key == "trace" and not named.startswith(DEMO)
    is_path = is_trace or named.endswith(".toml") or "/" in named
    return str(folder / named) if is_path else named


def _points(keys: Keys, folder: Path) -> Points:
    if keys.table is None:
        points = Points.grid({name: _levels(name, each) for name, each in _flat(keys.axes).items()})
    else:
        if keys.axes:
            raise UsageError("axes: the columns of a table are the axes")
        path = folder / keys.table
        frame = read_frame(path, error=UsageError)
        if empty := [str(name) for name in frame if frame[name].isna().any()]:
            raise UsageError(f"table: {path}: column {empty[0]} has rows without a value")
        points = Points.of({str(name): frame[name].tolist() for name in frame})
    if not len(points):
        raise UsageError("the sweep has no points: an axis without values, or a table without rows")
    return points


@dataclass(frozen=True)
class Range:
    """`steps` numbers from `low` to `high`, both among them."""

    low: float
    high: float
    steps: Annotated[int, Limits(1, 10**7)]
    scale: Literal["linear", "log"] = "linear"


def _levels(name: str, value: Any) -> Sequence[Any]:
    """The values of an axis; whole numbers where both ends are written as such, no one twice."""
    where = f"axes.{name}"
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, (list, tuple, range)):
        kinds = {"workload": Workload, "hardware": Part}.get(name, ())
        return [each if isinstance(each, kinds) else _value(where, each) for each in value]
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a list of values, or low, high and steps")
    it: Range = section(Range, value, where, UsageError)
    if not it.low < it.high:
        raise UsageError(f"{where}: expected numbers low and high, low the smaller one")
    if it.scale == "log" and it.low <= 0:
        raise UsageError(f"{where}: a log scale needs low above 0")
    spaced = np.geomspace if it.scale == "log" else np.linspace
    values = spaced(it.low, it.high, it.steps).tolist()
    is_whole = isinstance(value["low"], int) and isinstance(value["high"], int)
    return [round(each) for each in values] if is_whole else values


def _value(where: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_value(where, each) for each in value)
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float, str)):
        raise UsageError(
            f"{where}: expected numbers, texts or lists of them, got {str(value)[:60]}"
        )
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
