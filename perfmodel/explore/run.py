"""Running a sweep, here or on several processes: a frame of all points."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd

from perfmodel.base.arrays import Ints
from perfmodel.base.progress import Begin, silent
from perfmodel.cost.chosen import using_kernels
from perfmodel.errors import PerfmodelError
from perfmodel.explore.axes import Points, name_of
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.result import ERROR, POINT, Sweep
from perfmodel.explore.spec import Spec

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
    from numba import set_num_threads

    set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _kernels.enter_context(using_kernels(spec.kernels))
    _own.append((evaluation_of(spec), spec.points))


def _remote_frame(places: Ints) -> pd.DataFrame:
    return _frame(*_own[0], places)
