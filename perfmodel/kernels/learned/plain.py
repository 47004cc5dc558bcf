"""Trees without physics beside those with it: what the two get wrong is not the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfmodel.kernels.learned.columns import Columns
from perfmodel.kernels.learned.devices import Description
from perfmodel.kernels.learned.forest import Ensemble
from perfmodel.ops.spec import Floats

_KINDS = ("is_", "has_", "log_", "item_")
"""Beginnings of figures that say what a row is, and nothing of how it would run."""
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Plain:
    """Trees on dims, kinds and the device's figures: log of the time over the bound."""

    trees: Ensemble
    names: tuple[str, ...]
    share: float
    """Of their answer in the blend, 0 to 1."""

    def blended(self, factors: Floats, columns: Columns, device: Description) -> Floats:
        """Log factors over the base, of which `factors` are those of the trees with physics."""
        answer = self.trees.predict(columns.matrix(self.names, device))
        own = answer - above_bound(columns.base_us, columns.bound_us)
        return np.asarray((1.0 - self.share) * factors + self.share * own)


def kinds(figures: Iterable[str]) -> tuple[str, ...]:
    """The figures that trees without physics may see."""
    return tuple(name for name in figures if name.startswith(_KINDS))


def above_bound(base_us: Floats, bound_us: Floats) -> Floats:
    """Logarithm of the base over the bound."""
    return np.asarray(np.log(base_us / np.maximum(bound_us, _LEAST_US)))
