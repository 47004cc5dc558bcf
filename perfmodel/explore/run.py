"""Running a sweep: the parts that are missing, here or on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.evaluate import Evaluate, evaluation_of
from perfmodel.explore.points import Points
from perfmodel.explore.result import Sweep
from perfmodel.explore.spec import Spec
from perfmodel.explore.store import ERROR, POINT, Store, identity, packed
from perfmodel.hardware.reads import Read

Done = Callable[[int], None]
"""Told how many more points are done."""


def sweep(
    spec: Spec,
    folder: str | Path,
    *,
    workers: int = 0,
    scheduler: str | None = None,
    done: Done = lambda points: None,
) -> Sweep:
    """All points of `spec`, those that `folder` holds already not again.

    `workers` processes of this machine, or those of the Dask cluster at `scheduler`, share the
    parts; without either they are done here. Raises `PerfmodelError`; what is done stays.
    """
    evaluate = evaluation_of(spec)
    store = Store.open(folder, spec)
    parts = store.missing()
    begun = [part for part in range(spec.parts) if part not in set(parts)]
    done(sum(end - begin for begin, end in map(spec.bounds, begun)))
    made: Iterable[tuple[int, bytes]]
    if parts and (workers or scheduler):
        from perfmodel.explore.workers import spread

        made = spread(spec, parts, workers, scheduler)
    else:
        made = ((part, content_of(spec, part, evaluate)) for part in parts)
    for part, content in made:
        store.write(part, content)
        begin, end = spec.bounds(part)
        done(end - begin)
    found = Sweep(spec, store.frame(), str(folder))
    return replace(found, reads=_reads(found, evaluate))


def _reads(found: Sweep, evaluate: Evaluate) -> tuple[Read, ...]:
    """Of the point that is best in the first objective; none where no point has figures."""
    best = next(iter(found.best().values()), None)
    if best is None:
        return ()
    number = int(found.frame[POINT].iloc[best])
    return evaluate.reads(found.spec.space.points(number, number + 1))


def content_of(spec: Spec, part: int, evaluate: Evaluate) -> bytes:
    """The Parquet content of one part."""
    begin, end = spec.bounds(part)
    points = spec.space.points(begin, end)
    return packed(spec, points, begin, columns_of(evaluate, points))


def content_elsewhere(spec: Spec, told: str, part: int) -> bytes:
    """`content_of` in another process, perhaps on another host: the same files must lie there."""
    return content_of(spec, part, _evaluation(spec, told).evaluate)


def columns_of(evaluate: Evaluate, points: Points) -> dict[str, Any]:
    """Figures of points, and why a point has none: its figures are NaN."""
    found: dict[str, Any] = {name: np.full(len(points), np.nan) for name in evaluate.columns}
    errors = np.full(len(points), "", object)
    for places, values in _evaluated(evaluate, points, np.arange(len(points))):
        if isinstance(values, str):
            errors[places] = values
            continue
        for name, each in values.items():
            found[name][places] = each
    return found | {ERROR: errors}


def _evaluated(
    evaluate: Evaluate, points: Points, places: np.ndarray
) -> Iterator[tuple[np.ndarray, dict[str, Any] | str]]:
    """Figures of points; of those that cannot be, halved until they stand alone, why."""
    try:
        yield places, evaluate(points.take(places))
    except PerfmodelError as error:
        if len(places) == 1:
            yield places, str(error)
            return
        half = len(places) // 2
        for some in (places[:half], places[half:]):
            yield from _evaluated(evaluate, points, some)


class _Held:
    """The evaluation of a sweep, made once per process."""

    def __init__(self, spec: Spec, told: str) -> None:
        if identity(spec) != told:
            raise UsageError(
                f"{spec.where}: the input, or the version of perfmodel, is not the same on every "
                "worker"
            )
        self.evaluate = evaluation_of(spec)


_held: dict[str, _Held] = {}


def _evaluation(spec: Spec, told: str) -> _Held:
    if told not in _held:
        _held.clear()
        _held[told] = _Held(spec, told)
    return _held[told]
