"""What is kept of many samples: count, mean, spread and quantiles that outliers do not move."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from perfmodel.trace.columns import Floats, Ints

QUANTILES = {"p10_us": 0.10, "p25_us": 0.25, "median_us": 0.50, "p75_us": 0.75, "p90_us": 0.90}
TRIM_FRAC = 0.10
"""The trimmed mean leaves out this fraction of the samples at each end, rounded down; of three
samples or more at least one, so that a single stall among few does not stand for an operator."""


@dataclass(frozen=True)
class Statistic:
    """One group of samples in microseconds; `std_us` is the population's.

    `approximate`: the quantiles and the trimmed mean are averages, weighted by count, of those of
    merged profiles whose samples were not at hand. Count, mean and std are exact always.
    """

    count: int
    mean_us: float
    std_us: float
    p10_us: float
    p25_us: float
    median_us: float
    p75_us: float
    p90_us: float
    trimmed_mean_us: float
    approximate: bool = False


NUMBERS = tuple(field.name for field in fields(Statistic) if field.name.endswith("_us"))


def of_sorted(value_us: Floats) -> Statistic:
    """The statistic of samples in ascending order, at least one."""
    cut = max(int(TRIM_FRAC * len(value_us)), len(value_us) >= 3)
    quantiles = np.quantile(value_us, list(QUANTILES.values()))
    return Statistic(
        count=len(value_us),
        mean_us=float(value_us.mean()),
        std_us=float(value_us.std()),
        trimmed_mean_us=float(value_us[cut : len(value_us) - cut].mean()),
        **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
    )


def grouped(group: Ints, value_us: Floats) -> Iterator[tuple[int, Floats]]:
    """Each group's code and its samples in ascending order."""
    order = np.lexsort((value_us, group))
    value_us = value_us[order]
    codes, starts = np.unique(group[order], return_index=True)
    edges = [*starts.tolist(), len(order)]
    for at, code in enumerate(codes.tolist()):
        yield code, value_us[edges[at] : edges[at + 1]]


def merged(one: Statistic, two: Statistic, values: Floats | None) -> Statistic:
    """Both groups as one; `values`: all their samples in ascending order, where known.

    Source: Chan, Golub and LeVeque 1983 for mean and variance.
    """
    count = one.count + two.count
    shift = two.mean_us - one.mean_us
    mean = one.mean_us + shift * two.count / count
    squares = one.count * one.std_us**2 + two.count * two.std_us**2
    squares += shift**2 * one.count * two.count / count
    if values is not None:
        rest, approximate = of_sorted(values), False
    else:
        weight = two.count / count
        rest, approximate = _between(one, two, weight), True
    return Statistic(
        count=count,
        mean_us=mean,
        std_us=math.sqrt(squares / count),
        trimmed_mean_us=rest.trimmed_mean_us,
        approximate=approximate,
        **{name: getattr(rest, name) for name in QUANTILES},
    )


def _between(one: Statistic, two: Statistic, weight: float) -> Statistic:
    return Statistic(
        count=one.count,
        **{n: (1 - weight) * getattr(one, n) + weight * getattr(two, n) for n in NUMBERS},
    )
