"""What one axis must be for an objective to reach a value: bisection."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.errors import UsageError
from perfmodel.explore.sensitivities import base_point, bounds_of, figures_at, is_number
from perfmodel.explore.spec import ALIASES, OBJECTIVES, Spec

_GRID_VALUES = 33
"""Values over the whole axis that are looked at first: where the objective crosses the value."""
_CLOSE = 1e-6
_MOST_STEPS = 60


@dataclass(frozen=True)
class Reach:
    """The value of `axis` at which `objective` is `wanted`, all other axes as in `base`.

    `value` is None where no value between `low` and `high` gets there; `closest` is then the
    nearest, and `objective_there` what it gives.
    """

    axis: str
    objective: str
    wanted: float
    base: dict[str, Any]
    at_base: float
    low: float
    high: float
    value: float | None
    closest: float
    objective_there: float
    crossings: int

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values."""
        return asdict(self)


def reach(spec: Spec, target: str, axis: str) -> Reach:
    """What `axis` must be for `OBJECTIVE=VALUE`, between the ends of the axis.

    Of several such values the one nearest to the base is taken. Of whole numbers, the one next to
    the base at which the objective has passed the value. Raises `UsageError` for a target or an
    axis that cannot be.
    """
    name, wanted = _target(target, spec)
    low, high, whole = bounds_of(spec, axis)
    if not low < high:
        raise UsageError(f"{spec.where}: axis {axis} has one value: give it low and high")
    base = base_point(spec)

    def at(values: Floats) -> Floats:
        rows = [base | {axis: int(v) if whole else v} for v in values.tolist()]
        return figures_at(spec, rows)[name]

    grid = (
        np.linspace(low, high, _GRID_VALUES) if low <= 0 else np.geomspace(low, high, _GRID_VALUES)
    )
    grid[0], grid[-1] = low, high
    grid = np.unique(np.round(grid)) if whole else grid
    figures = at(grid)
    own = base[axis] if is_number(base[axis]) else low
    at_base = float(at(np.array([float(own)]))[0]) if low <= own <= high else float("nan")
    side = np.sign(figures - wanted)
    crossed = np.flatnonzero((side[:-1] != side[1:]) & ~np.isnan(side[:-1] + side[1:]))
    best = int(np.nanargmin(np.abs(figures - wanted)))
    value, there = None, float(figures[best])
    closest = float(grid[best])
    if len(crossed):
        middle = (grid[crossed] + grid[crossed + 1]) / 2
        bracket = int(crossed[np.argmin(np.abs(middle - own))])
        value, there = _bisected(grid, figures, bracket, wanted, float(own), at, whole)
        closest = value
    plain = base | {axis: own}
    known = at_base if at_base == at_base else there
    return Reach(axis, name, wanted, plain, known, low, high, value, closest, there, len(crossed))


def _bisected(
    grid: Floats, bracket: Floats, at: int, wanted: float, own: float, ask: Any, whole: bool
) -> tuple[float, float]:
    """(value, objective there) between two neighbours of the grid."""
    ends = [(float(grid[at + side]), float(bracket[at + side])) for side in (0, 1)]
    for _ in range(_MOST_STEPS):
        (left, at_left), (right, _) = ends
        if right - left <= (1.0 if whole else _CLOSE * abs(right)):
            break
        middle = float(np.floor((left + right) / 2)) if whole else (left + right) / 2
        there = float(ask(np.array([middle]))[0])
        on_left = (there - wanted) * (at_left - wanted) > 0
        ends = [(middle, there), ends[1]] if on_left else [ends[0], (middle, there)]
    near = min(ends, key=lambda end: abs(end[1] - wanted))
    if not whole:
        return near
    far_from_own = max(ends, key=lambda end: abs(end[0] - own))
    return near if near[1] == wanted else far_from_own


def _target(text: str, spec: Spec) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    name = ALIASES.get(name.strip(), name.strip())
    try:
        wanted = float(number)
    except ValueError:
        wanted = float("nan")
    if not equals or wanted != wanted or name not in OBJECTIVES:
        raise UsageError(f"--reach {text!r}: expected OBJECTIVE=VALUE, as in step_us=8000")
    if name not in spec.objectives:
        raise UsageError(f"--reach {text!r}: {name} is none of the sweep's objectives")
    return name, wanted
