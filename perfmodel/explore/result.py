"""What a sweep found: rows, the best of them, the front; how much each axis moves an objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.units import US_PER_MS
from perfmodel.errors import UsageError, said_dict
from perfmodel.explore.axes import HARDWARE, TABLE, Machines, Points, Space
from perfmodel.explore.evaluate import evaluation_of
from perfmodel.explore.spec import BATCH, ERROR, OBJECTIVES, POINT, STEP, Spec
from perfmodel.hardware.reads import SOURCED, FigureRead, figure_values

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


Matrix = NDArray[np.float64]


def pareto(values: Matrix) -> Ints:
    """Rows of `values` `[points, objectives]`, less being better, that none other is at least as
    good as in all objectives and better in one; ordered by the first objective.

    Rows with a NaN are left out. Of equal rows, the first stays.
    """
    known = np.flatnonzero(~np.isnan(values).any(axis=1))
    left, first = np.unique(values[known], axis=0, return_index=True)
    kept: list[int] = []
    while len(first):
        # Rows come in rising order: none of those left can beat the first.
        kept.append(int(first[0]))
        stays = (left < left[0]).any(axis=1)
        left, first = left[stays], first[stays]
    return np.asarray(known[np.array(kept, np.int64)], np.int64)


SCHEMA = "perfmodel.sweep/1"


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep with their figures."""

    spec: Spec
    frame: pd.DataFrame = field(repr=False)
    """One row per point: its number, its axes, its figures, and an error where it has none."""
    folder: str
    reads: tuple[FigureRead, ...] = ()
    """The figures of hardware that its best point follows from."""

    @property
    def objectives(self) -> tuple[str, ...]:
        """The columns of figures that are wanted."""
        return self.spec.objectives

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.spec.space.axes)

    @property
    def failed(self) -> int:
        """Points that have no figures."""
        return int((self.frame[ERROR] != "").sum())

    def front(self) -> Ints:
        """Rows of the Pareto front of all objectives; of one, its best."""
        return self._front(self.objectives)

    def _front(self, names: tuple[str, ...]) -> Ints:
        signs = [-1.0 if OBJECTIVES[name].more_is_better else 1.0 for name in names]
        return pareto(self.frame[list(names)].to_numpy(np.float64) * signs)

    def best(self) -> dict[str, int]:
        """Per objective, the row that is best in it; none where no point has a figure."""
        best = {}
        for name in self.objectives:
            values = _floats_of(self.frame, name)
            if not np.isnan(values).all():
                least = not OBJECTIVES[name].more_is_better
                best[name] = int(np.nanargmin(values) if least else np.nanargmax(values))
        return best

    @property
    def assumed(self) -> tuple[FigureRead, ...]:
        """The figures that its best point follows from and that are assumed or recalled."""
        return tuple(each for each in self.reads if each.grounds != SOURCED)

    @property
    def warnings(self) -> list[str]:
        """What a user should know of the rows."""
        warnings: list[str] = []
        if self.failed:
            first = self.frame.loc[self.frame[ERROR] != "", ERROR].iloc[0]
            warnings.append(f"{self.failed} of {len(self.frame)} points have no figures; {first}")
        for name in self.objectives:
            values = _floats_of(self.frame, name)
            unknown = int(np.isnan(values).sum()) - self.failed
            if unknown > 0:
                warnings.append(f"{name}: not known of {unknown} points (a part without a price?)")
        return warnings

    def row(self, at: int) -> dict[str, Any]:
        """Number, axes and figures of one row as plain values."""
        names = (POINT, *self.axes, *self.objectives)
        row = self.frame.iloc[at]
        return {name: _plain(row[name]) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/sweep.json` describes it."""
        return {
            "schema": SCHEMA,
            "source": {"kind": self.spec.kind, "input": self.spec.input, "spec": self.spec.where},
            "results": self.folder,
            "axes": list(self.axes),
            "objectives": list(self.objectives),
            "points": len(self.frame),
            "failed": self.failed,
            "best": {name: self.row(at) for name, at in self.best().items()},
            "pareto": [self.row(at) for at in self.front().tolist()],
            "assumed": [each.to_dict() for each in self.assumed],
            **said_dict(self.warnings),
        }

    def to_frame(self) -> pd.DataFrame:
        """Every row."""
        return self.frame

    def plot(self, objectives: tuple[str, str] | None = None) -> Figure:
        """Two objectives against each other, the front drawn through; of one, it over the points.

        Raises `UsageError` for objectives that the sweep has not.
        """
        from perfmodel.plot import pareto_figure

        names = objectives or self.objectives[:2]
        for name in names:
            if name not in self.objectives:
                raise UsageError(f"no objective {name} in this sweep of {self.spec.kind}")
        front = self._front(names) if len(names) > 1 else np.zeros(0, np.int64)
        names = names if len(names) > 1 else (POINT, names[0])
        (across, x_text), (up, y_text) = (_readable(self.frame, name) for name in names)
        return pareto_figure(across, up, front, labels=(x_text, y_text), names=self._names())

    def _names(self) -> list[str]:
        """Each point by its axes that are texts (its hardware, say) and its batch, else by its
        number."""
        texts = [name for name in self.axes if self.frame[name].dtype.kind not in "iufb"]
        columns = [self.frame[name].astype(str).tolist() for name in texts]
        if BATCH in self.axes:
            columns.append([f"batch {batch:,.12g}" for batch in self.frame[BATCH].tolist()])
        columns = columns or [self.frame[POINT].astype(str).tolist()]
        return [", ".join(row) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        return f"Sweep({self.spec.where}: {len(self.frame):,} points, {', '.join(self.objectives)})"

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        rows = [list(self.row(at).values()) for at in self.front().tolist()[:20]]
        names = [POINT, *self.axes, *self.objectives]
        return table_html(rows, names, f"Front of {len(self.frame):,} points of {self.spec.where}")


def _floats_of(frame: pd.DataFrame, column: str) -> Floats:
    """A column of figures."""
    values: Floats = frame[column].to_numpy(np.float64)
    return values


def _readable(frame: pd.DataFrame, name: str) -> tuple[np.ndarray, str]:
    """A column and its label; long steps in ms."""
    values = _floats_of(frame, name)
    text = OBJECTIVES[name].text if name in OBJECTIVES else name
    if name == STEP and not np.isnan(values).all() and np.nanmax(values) >= US_PER_MS:
        return values / US_PER_MS, "step (ms)"
    return values, text


def _plain(value: Any) -> Any:
    """A number or a text; None for NaN."""
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and plain != plain else plain


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
