"""How much each axis moves an objective: elasticities at a point."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.explore.around import base_of, figures_at, numeric_axes
from perfmodel.explore.objectives import OBJECTIVES
from perfmodel.explore.spec import Spec

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STEP_FRAC = 0.1
HALVED = ("batch", "nodes", "workload.batch")
"""Numbers that ranks must be able to share: they go to half and to double."""


@dataclass(frozen=True)
class Moved:
    """One axis moved down and up from the base, all others kept, and one objective there."""

    axis: str
    objective: str
    base: float
    low: float
    high: float
    at_base: float
    at_low: float
    at_high: float

    @property
    def elasticity(self) -> float:
        """Percent that the objective changes per percent of the axis, over both sides."""
        if not (self.at_low > 0 and self.at_high > 0):
            return float("nan")
        return float(np.log(self.at_high / self.at_low) / np.log(self.high / self.low))

    @property
    def low_pct(self) -> float:
        return (self.at_low / self.at_base - 1) * 100

    @property
    def high_pct(self) -> float:
        return (self.at_high / self.at_base - 1) * 100


@dataclass(frozen=True)
class Sensitivity:
    """Every numeric axis of a sweep moved by itself, largest effect first."""

    base: dict[str, Any]
    moved: list[Moved] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The base, and a row per axis and objective."""
        return {"base": self.base, "elasticities": [_row(each) for each in self.moved]}

    def to_frame(self) -> pd.DataFrame:
        """One row per axis and objective."""
        import pandas as pd

        return pd.DataFrame([_row(each) for each in self.moved])

    def plot(self, objective: str | None = None) -> Figure:
        """Tornado of one objective (default: the first)."""
        from perfmodel.plot.sweeps import tornado_figure

        name = objective or self.moved[0].objective
        own = [each for each in self.moved if each.objective == name]
        if not own:
            raise UsageError(f"no sensitivity of {name}")
        return tornado_figure(
            [f"{each.axis}: {each.low:,.4g} to {each.high:,.4g}" for each in own],
            np.array([each.low_pct for each in own]),
            np.array([each.high_pct for each in own]),
            title=f"What moves {OBJECTIVES[name].text}",
            label="change (%) where the axis goes down and up",
        )


def sensitivity(spec: Spec, step_frac: float = STEP_FRAC) -> Sensitivity:
    """Elasticities of all objectives at the base point of a sweep (`around.base_of`).

    Each numeric axis moves to `1 / (1 + step_frac)` and `1 + step_frac` times its base; whole
    numbers by at least one, those of `HALVED` to half and double. Raises `UsageError` where no
    axis has numbers.
    """
    base = base_of(spec)
    axes = numeric_axes(spec, base)
    rows, ends = [base], []
    for axis in axes:
        value = base[axis]
        if value <= 0:
            raise UsageError(
                f"{spec.where}: axis {axis} is {value:g}: elasticities need it above 0"
            )
        low, high = _ends(axis, value, step_frac)
        ends.append((low, high))
        rows += [base | {axis: low}, base | {axis: high}]
    found = figures_at(spec, rows)
    moved = [
        Moved(
            axis,
            name,
            float(base[axis]),
            *map(float, ends[at]),
            *(float(values[row]) for row in (0, 1 + 2 * at, 2 + 2 * at)),
        )
        for name, values in found.items()
        for at, axis in enumerate(axes)
    ]
    place = {name: at for at, name in enumerate(found)}
    order = sorted(moved, key=lambda each: (place[each.objective], -abs(_effect(each))))
    return Sensitivity(base, order)


def _ends(axis: str, value: float, step_frac: float) -> tuple[float, float]:
    if axis in HALVED:
        return max(int(value) // 2, 1), int(value) * 2
    low, high = value / (1 + step_frac), value * (1 + step_frac)
    if isinstance(value, int):
        return max(min(round(low), value - 1), 1), max(round(high), value + 1)
    return low, high


def _effect(moved: Moved) -> float:
    return float(np.nan_to_num(moved.elasticity))


def _row(moved: Moved) -> dict[str, Any]:
    row = {
        "axis": moved.axis,
        "objective": moved.objective,
        "base": moved.base,
        "low": moved.low,
        "high": moved.high,
        "at_base": moved.at_base,
        "at_low": moved.at_low,
        "at_high": moved.at_high,
        "elasticity": moved.elasticity,
    }
    return {key: None if value != value else value for key, value in row.items()}
