"""A sweep, run here or on several processes, and what it found: rows, the best of them, the front;
how much each axis moves an objective."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfmodel.base.answers import Begin, silent
from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.registry import library
from perfmodel.base.units import US_PER_MS
from perfmodel.cost.durations import using_kernels
from perfmodel.errors import PerfmodelError, UsageError, said_dict
from perfmodel.explore.axes import HARDWARE, NODES, Machines, Points, name_of
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.spec import BATCH, OBJECTIVES, STEP, Spec
from perfmodel.hardware.schema import SOURCED, FigureRead, figure_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pareto(values: NDArray[np.float64]) -> Ints:
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
POINT, ERROR = "point", "error"
"""Columns of results beside axes and figures."""


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep with their figures."""

    spec: Spec
    frame: pd.DataFrame = field(repr=False)
    """One row per point: its number, its axes, its figures, and an error where it has none."""
    reads: tuple[FigureRead, ...] = ()
    """The figures of hardware that its best point follows from."""

    @property
    def objectives(self) -> tuple[str, ...]:
        return self.spec.objectives

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(self.spec.points.values)

    @property
    def failed(self) -> int:
        return int((self.frame[ERROR] != "").sum())

    def front(self, names: tuple[str, ...] | None = None) -> Ints:
        """Rows of the Pareto front of all objectives, or of those named; of one, its best."""
        names = names or self.objectives
        signs = [-1.0 if OBJECTIVES[name].more_is_better else 1.0 for name in names]
        return pareto(self.frame[list(names)].to_numpy(np.float64) * signs)

    def best(self) -> dict[str, int]:
        """Per objective, the row that is best in it; none where no point has a figure."""
        found = {name: self.front((name,)) for name in self.objectives}
        return {name: int(rows[0]) for name, rows in found.items() if len(rows)}

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
            unknown = int(self.frame[name].isna().sum()) - self.failed
            if unknown > 0:
                warnings.append(f"{name}: not known of {unknown} points (a part without a price?)")
        return warnings

    def row(self, at: int) -> dict[str, Any]:
        """Number, axes and figures of one row as plain values, None for NaN."""
        row = self.frame.iloc[at][[POINT, *self.axes, *self.objectives]]
        plain = {name: each.item() if hasattr(each, "item") else each for name, each in row.items()}
        return {name: None if each != each else each for name, each in plain.items()}

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/sweep.json` describes it."""
        return {
            "schema": SCHEMA,
            "source": {"input": self.spec.input, "spec": self.spec.where},
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
        return self.frame

    def plot(self, objectives: tuple[str, str] | None = None) -> Figure:
        """Two objectives against each other, the front drawn through; of one, it over the points.

        Raises `UsageError` for objectives that the sweep has not.
        """
        from perfmodel.plot import pareto_figure

        names = objectives or self.objectives[:2]
        for name in names:
            if name not in self.objectives:
                raise UsageError(f"no objective {name} in this sweep")
        front = self.front(names) if len(names) > 1 else np.zeros(0, np.int64)
        names = names if len(names) > 1 else (POINT, names[0])
        (across, x_text), (up, y_text) = map(self._readable, names)
        names_of, same = self._names(front)
        return pareto_figure(across, up, front, labels=(x_text, y_text), names=names_of, same=same)

    def _readable(self, name: str) -> tuple[Floats, str]:
        """A column and its label; long steps in ms."""
        values = self.frame[name].to_numpy(np.float64)
        if name == STEP and (values >= US_PER_MS).any():
            return values / US_PER_MS, "step (ms)"
        return values, OBJECTIVES[name].text if name in OBJECTIVES else name

    def _names(self, front: Ints) -> tuple[list[str], str]:
        """Each point by its texts (its hardware, say), its batch and its nodes, as far as they
        differ along the front, else by its number; and what is the same all along."""
        texts = [name for name in self.axes if self.frame[name].dtype.kind not in "iufb"]
        columns = [self.frame[name].astype(str).tolist() for name in texts]
        for name in (BATCH, NODES):
            if name in self.axes:
                columns.append([f"{name} {count:,.12g}" for count in self.frame[name].tolist()])
        own = [each for each in columns if len({each[at] for at in front.tolist()}) > 1]
        same = [each[front[0]] for each in columns if each not in own] if own else []
        shown = own or columns or [self.frame[POINT].astype(str).tolist()]
        return [", ".join(row) for row in zip(*shown, strict=True)], ", ".join(same)

    def __repr__(self) -> str:
        return f"Sweep({self.spec.where}: {len(self.frame):,} points, {', '.join(self.objectives)})"

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        rows = [list(self.row(at).values()) for at in self.front().tolist()[:20]]
        names = [POINT, *self.axes, *self.objectives]
        return table_html(rows, names, f"Front of {len(self.frame):,} points of {self.spec.where}")


def base_point(spec: Spec) -> dict[str, Any]:
    """The value of every axis at the point that others are compared with: of a figure the
    hardware's own, else the first value."""
    point = {axis: values[0] for axis, values in spec.points.values.items()}
    if spec.hardware is not None or HARDWARE in point:
        named = {axis: point[axis] for axis in (HARDWARE,) if axis in point}
        machines = Machines({axis: [value] for axis, value in named.items()}, base=spec.hardware)
        own = figure_values(machines.at(named))
        point |= {axis: own[axis] for axis in point if is_number(own.get(axis))}
    return point


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sensitivity(spec: Spec) -> pd.DataFrame:
    """Elasticities of all objectives at the base point of a sweep (`base_point`), largest first:
    percent that each changes per percent of an axis, which alone is moved.

    A row has `axis objective base at_base elasticity`. An axis moves by 10 % both ways; whole
    numbers by at least one, counts that ranks share to half and double. Raises `UsageError` where
    no axis has numbers, and `PerfmodelError` where a point cannot be.
    """
    base = base_point(spec)
    axes = [axis for axis, value in base.items() if is_number(value)]
    if not axes:
        raise UsageError(f"{spec.where}: no axis has numbers")
    for axis in axes:
        if base[axis] <= 0:
            raise UsageError(
                f"{spec.where}: axis {axis} is {base[axis]:g}: elasticities need it above 0"
            )
    ends = {axis: _ends(axis, base[axis]) for axis in axes}
    every = [base, *(base | {axis: end} for axis in axes for end in ends[axis])]
    points = Points.of({axis: [row[axis] for row in every] for axis in base})
    rows = []
    with using_kernels(spec.kernels):
        found = evaluation_of(replace(spec, points=points))(points)
    for name, (at_base, *values) in found.items():
        low, high = np.log(np.array(values).reshape(-1, 2)).T
        moved = (high - low) / np.log([ends[axis][1] / ends[axis][0] for axis in axes])
        own = {"objective": name, "base": [float(base[axis]) for axis in axes]}
        rows.append(pd.DataFrame({"axis": axes, **own, "at_base": at_base, "elasticity": moved}))
    return pd.concat([each.sort_values("elasticity", key=lambda v: -v.abs()) for each in rows])


def _ends(axis: str, value: float) -> tuple[float, float]:
    if axis in (BATCH, NODES):
        return max(int(value) // 2, 1), int(value) * 2
    low, high = value / 1.1, value * 1.1
    if isinstance(value, int):
        return max(min(round(low), value - 1), 1), max(round(high), value + 1)
    return low, high


AT_ONCE = 8192
"""Points of a trace between two signs of life; of a workload as many fewer as they take longer."""
AT_ONCE_OF_WORKLOAD = 16


def sweep(spec: Spec, *, workers: int = 0, begin: Begin = silent) -> Sweep:
    """All points of `spec`; `workers` processes of this machine share them, or this one has all.

    Raises `PerfmodelError` where no point has figures.
    """
    count = len(spec.points)
    at_once = AT_ONCE_OF_WORKLOAD if spec.trace is None else AT_ONCE
    parts = np.array_split(np.arange(count), -(-count // at_once))
    frames, done = list[pd.DataFrame](), 0
    with ExitStack() as stack:
        stack.enter_context(using_kernels(spec.kernels))
        evaluate = evaluation_of(spec)
        begin(f"{count:,} points", 0, count)
        made: Iterator[pd.DataFrame] = map(partial(_frame, evaluate, spec.points), parts)
        if workers:
            pool = stack.enter_context(
                ProcessPoolExecutor(workers, get_context("spawn"), _prepare, (spec, workers))
            )
            made = pool.map(_remote_frame, parts)
        try:
            for frame in made:
                frames.append(frame)
                done += len(frame)
                begin(f"{count:,} points", done, count)
        except BrokenProcessPool:
            raise PerfmodelError(f"{spec.where}: a worker ended: try fewer --workers") from None
        result = Sweep(spec, pd.concat(frames, ignore_index=True))
        if result.failed == count:
            raise PerfmodelError(f"{spec.where}: {result.frame[ERROR].iloc[0]}")
        best = next(iter(result.best().values()), None)
        if best is None:
            return result
        return replace(result, reads=evaluate.reads(spec.points.take(np.array([best]))))


def _frame(evaluate: Evaluate, every: Points, places: Ints) -> pd.DataFrame:
    """Number, axes and figures of some points, and why a point has none (then NaN)."""
    points = every.take(places)
    columns: dict[str, Any] = {POINT: places}
    for axis, values in points.values.items():
        column, kinds = points.column(axis), {type(value) for value in values}
        if kinds <= {int, float} or kinds == {bool}:
            columns[axis] = np.array(column, kinds.pop() if len(kinds) == 1 else float)
        else:
            columns[axis] = [name_of(each) for each in column]
    columns |= {name: np.full(len(points), np.nan) for name in evaluate.columns}
    columns[ERROR] = np.full(len(points), "", object)
    for own, found in _evaluated(evaluate, points, np.arange(len(points))):
        for name, each in found.items():
            columns[name][own] = each
    return pd.DataFrame(columns)


def _evaluated(
    evaluate: Evaluate, points: Points, places: Ints
) -> Iterator[tuple[Ints, dict[str, Any]]]:
    """Figures of points; of those that cannot be, halved until they stand alone, why."""
    try:
        yield places, evaluate(points.take(places))
    except PerfmodelError as error:
        if len(places) == 1:
            yield places, {ERROR: str(error)}
            return
        half = len(places) // 2
        for some in (places[:half], places[half:]):
            yield from _evaluated(evaluate, points, some)


_own: list[tuple[Evaluate, Points]] = []
"""What a worker has made ready."""
_kernels = ExitStack()
"""Holds, as long as a worker lives, which models time kernels."""


def _prepare(spec: Spec, workers: int) -> None:
    """Reads the input in a worker, which has its share of the cores."""
    if spec.trace is not None:
        library("numba").set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _kernels.enter_context(using_kernels(spec.kernels))
    _own.append((evaluation_of(spec), spec.points))


def _remote_frame(places: Ints) -> pd.DataFrame:
    return _frame(*_own[0], places)
