"""What keeps the trees' answers safe between and beyond measured rows: slopes, growth, plain trees.

Trees answer with a constant there, although what a kernel takes beside its work, whatever that
is, becomes an ever smaller share of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.learned.devices import Description, nearest
from perfmodel.cost.learned.features import BY_ROW, Columns
from perfmodel.cost.learned.forest import Ensemble


@dataclass(frozen=True)
class Gains:
    """Per op, what one more of `figure` adds to the log of the time on each device known."""

    figure: str
    slopes: Mapping[str, Mapping[int, float]]
    """By op, then by the device's place among the part's devices."""

    def of(
        self,
        figures: Mapping[str, Floats],
        groups: Sequence[tuple[str, Ints]],
        near: tuple[int, ...],
    ) -> Floats:
        """Log factors `[n]`, of the devices `near`, else the median of those known."""
        values = figures[self.figure]
        found = np.zeros(len(values))
        for op, index in groups:
            known = self.slopes.get(op, {})
            own = [known[place] for place in near if place in known] or list(known.values())
            if own:
                found[index] = float(np.median(own)) * values[index]
        return found


NONE = Gains("", {})


def places_of(device: Description, known: Sequence[Description]) -> tuple[int, ...]:
    """Where `device` stands among `known`; nowhere for one that is not."""
    return tuple(place for place, each in enumerate(known) if each == device)


_STEPS = 5
_TOLERANCE_FRAC = 0.02


@dataclass(frozen=True)
class Growth:
    """Of one op on one device: the most work measured, and the time that more of it takes."""

    device: Description
    most_work: float
    per_base: float
    """Microseconds per microsecond of the base, among the larger half of the rows."""


def rate_of_growth(base_us: Floats, kernel_us: Floats) -> float:
    """Slope of `kernel_us` over `base_us` `[n]`, by relative least absolute errors.

    The intercept is not negative.
    """
    from scipy.optimize import nnls

    matrix = np.stack([1.0 / kernel_us, base_us / kernel_us], axis=1)
    weight = np.ones(len(base_us))
    solution = np.zeros(2)
    for _ in range(_STEPS):
        solution, _ = nnls(matrix * weight[:, None], weight)
        off = np.abs(matrix @ solution - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(off, _TOLERANCE_FRAC))
    return float(solution[1])


@dataclass(frozen=True)
class Extension:
    """How one op goes on beyond its measurements, by device."""

    trust: float
    """How much of the growth holds, 0 to 1: as much as the largest rows showed, when left out."""
    known: tuple[Growth, ...]

    def carried(self, factors: Floats, work: Floats, device: Description) -> Floats:
        """Log factors `[n]` of the op, carried on from where the most similar device's end."""
        own = nearest(device, [each.device for each in self.known])[0]
        growth = next(each for each in self.known if each.device == own)
        return extrapolated_log_factors(factors, work, growth, self.trust)


def extrapolated_log_factors(factors: Floats, work: Floats, growth: Growth, trust: float) -> Floats:
    """Log factors of rows of `work`, carried on by `growth` as far as it is trusted."""
    share = np.minimum(1.0, growth.most_work / np.maximum(work, 1.0))
    grown = np.log(growth.per_base + (np.exp(factors) - growth.per_base) * share)
    return np.asarray(factors + trust * (grown - factors))


_KINDS = ("is_", "has_", "log_", "item_")
"""Beginnings of figures that say what a row is, and nothing of how it would run."""
_LEAST_US = 1e-3


def uses_plain_trees(build: str, op: str) -> bool:
    """Whether trees without physics are asked about `op`.

    Not of elementwise ops: those are a matter of bytes, and beyond what was measured trees on dims
    go on with the share of the last row that they saw.
    """
    return build != "stream" or op in BY_ROW


@dataclass(frozen=True)
class Plain:
    """Trees on dims, kinds and the device's figures: log of the time over the bound."""

    trees: Ensemble
    names: tuple[str, ...]
    share: float
    """Of their answer in the blend, 0 to 1."""

    def blended(
        self, factors: Floats, columns: Columns, device: Description, holds: Floats | float = 1.0
    ) -> Floats:
        """Log factors over the base, of which `factors` are those of the trees with physics.

        `holds`, 0 to 1 per row: how far trees that know no physics can be asked.
        """
        answer = self.trees.predict(columns.matrix(self.names, device))
        own = answer - log_base_over_bound(columns.base_us, columns.bound_us)
        share = self.share * holds
        return np.asarray((1.0 - share) * factors + share * own)


def kinds(figures: Iterable[str]) -> tuple[str, ...]:
    """The figures that trees without physics may see."""
    return tuple(name for name in figures if name.startswith(_KINDS))


def log_base_over_bound(base_us: Floats, bound_us: Floats) -> Floats:
    """Logarithm of the base over the bound."""
    return np.asarray(np.log(base_us / np.maximum(bound_us, _LEAST_US)))
