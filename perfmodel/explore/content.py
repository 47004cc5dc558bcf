"""What a part of a sweep holds: its points with their figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfmodel.errors import PerfmodelError
from perfmodel.explore.evaluate import Evaluate
from perfmodel.explore.points import Points
from perfmodel.explore.spec import Spec
from perfmodel.explore.store import ERROR, packed


def content_of(spec: Spec, part: int, evaluate: Evaluate) -> bytes:
    """The Parquet content of one part."""
    begin, end = spec.bounds(part)
    points = spec.space.points(begin, end)
    return packed(spec, points, begin, columns_of(evaluate, points))


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
