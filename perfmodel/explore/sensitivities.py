"""How much each axis moves an objective, by elasticities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.errors import UsageError
from perfmodel.explore.axes import HARDWARE, TABLE, Machines, Points, Space
from perfmodel.explore.evaluate import evaluation_of
from perfmodel.explore.spec import OBJECTIVES, Spec
from perfmodel.hardware.reads import figure_values

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def base_point(spec: Spec) -> dict[str, Any]:
    """The value of every axis at the point that others are compared with.

    What `[at]` says; else of a figure the hardware's own, else the first value. Raises `UsageError`
    for an `[at]` that names no axis.
    """
    for name in spec.at:
        if name not in spec.space.axes:
            raise UsageError(f"{spec.where}: at.{name} is none of the axes")
    point = {axis: values[0] for axis, values in spec.space.values.items()} | dict(spec.at)
    if spec.hardware is not None or HARDWARE in point:
        named = {axis: point[axis] for axis in (HARDWARE,) if axis in point}
        machines = Machines({axis: [value] for axis, value in named.items()}, base=spec.hardware)
        own = figure_values(machines.at(named))
        for axis in spec.space.axes:
            if axis not in spec.at and is_number(own.get(axis)):
                point[axis] = own[axis]
    return point


def figures_at(spec: Spec, rows: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """The objectives of any points of the axes. Raises `PerfmodelError` where one cannot be."""
    columns = {axis: tuple(row[axis] for row in rows) for axis in spec.space.axes}
    evaluate = evaluation_of(replace(spec, space=Space(columns, TABLE)))
    return evaluate(Points.of(columns))


def is_number(value: Any) -> bool:
    """Whether a value can be moved a little."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


STEP_FRAC = 0.1
HALVED = ("batch", "nodes", "workload.batch")
"""Numbers that ranks must be able to share: they go to half and to double."""


@dataclass(frozen=True)
class Sensitivity:
    """Every numeric axis of a sweep moved down and up by itself, largest effect first.

    A row has `axis objective base low high`, the objective `at_base at_low at_high`, and the
    `elasticity`: percent that it changes per percent of the axis, over both sides, or None.
    """

    base: dict[str, Any]
    moved: list[dict[str, Any]] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The base, and a row per axis and objective."""
        return {"base": self.base, "elasticities": self.moved}

    def to_frame(self) -> pd.DataFrame:
        """One row per axis and objective."""
        import pandas as pd

        return pd.DataFrame(self.moved)

    def plot(self, objective: str | None = None) -> Figure:
        """Tornado of one objective (default: the first)."""
        from perfmodel.plot.bars import tornado_figure

        name = objective or self.moved[0]["objective"]
        own = [row for row in self.moved if row["objective"] == name]
        if not own:
            raise UsageError(f"no sensitivity of {name}")
        steps = np.array(
            [[row[key] for key in ("at_base", "at_low", "at_high")] for row in own], np.float64
        )
        low_pct, high_pct = (steps[:, 1:] / steps[:, :1] - 1).T * 100
        return tornado_figure(
            [f"{row['axis']}: {row['low']:,.4g} to {row['high']:,.4g}" for row in own],
            low_pct,
            high_pct,
            title=f"Sensitivity of {OBJECTIVES[name].text}",
            label="change (%)",
        )


def sensitivity(spec: Spec, step_frac: float = STEP_FRAC) -> Sensitivity:
    """Elasticities of all objectives at the base point of a sweep (`base_point`).

    Each numeric axis moves to `1 / (1 + step_frac)` and `1 + step_frac` times its base; whole
    numbers by at least one, those of `HALVED` to half and double. Raises `UsageError` where no
    axis has numbers.
    """
    base = base_point(spec)
    axes = [axis for axis in spec.space.axes if is_number(base[axis])]
    if not axes:
        raise UsageError(f"{spec.where}: no axis has numbers")
    for axis in axes:
        if base[axis] <= 0:
            raise UsageError(
                f"{spec.where}: axis {axis} is {base[axis]:g}: elasticities need it above 0"
            )
    ends = [_ends(axis, base[axis], step_frac) for axis in axes]
    points = [base | {axis: end} for axis, pair in zip(axes, ends, strict=True) for end in pair]
    moved = []
    for name, (at_base, *values) in figures_at(spec, [base, *points]).items():
        rows: list[dict[str, Any]] = []
        pairs = zip(axes, ends, values[::2], values[1::2], strict=True)
        for axis, (low, high), at_low, at_high in pairs:
            is_known = at_low > 0 and at_high > 0
            change = np.log(at_high / at_low) / np.log(high / low) if is_known else np.nan
            row = {"base": base[axis], "low": low, "high": high, "at_base": at_base}
            row |= {"at_low": at_low, "at_high": at_high, "elasticity": change}
            plain = {key: None if value != value else float(value) for key, value in row.items()}
            rows.append({"axis": axis, "objective": name, **plain})
        moved += sorted(rows, key=lambda row: -abs(row["elasticity"] or 0.0))
    return Sensitivity(base, moved)


def _ends(axis: str, value: float, step_frac: float) -> tuple[float, float]:
    if axis in HALVED:
        return max(int(value) // 2, 1), int(value) * 2
    low, high = value / (1 + step_frac), value * (1 + step_frac)
    if isinstance(value, int):
        return max(min(round(low), value - 1), 1), max(round(high), value + 1)
    return low, high
