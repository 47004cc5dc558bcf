"""Trees without physics beside those with it: what the two get wrong is not the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perfmodel.kernels.learned.columns import Columns
from perfmodel.kernels.learned.devices import Description
from perfmodel.kernels.learned.forest import Ensemble
from perfmodel.kernels.learned.stream_columns import BY_ROW
from perfmodel.ops.spec import Floats

_KINDS = ("is_", "has_", "log_", "item_")
"""Beginnings of figures that say what a row is, and nothing of how it would run."""
_LEAST_US = 1e-3


def has_say(build: str, op: str) -> bool:
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
        own = answer - above_bound(columns.base_us, columns.bound_us)
        share = self.share * holds
        return np.asarray((1.0 - share) * factors + share * own)


def kinds(figures: Iterable[str]) -> tuple[str, ...]:
    """The figures that trees without physics may see."""
    return tuple(name for name in figures if name.startswith(_KINDS))


def above_bound(base_us: Floats, bound_us: Floats) -> Floats:
    """Logarithm of the base over the bound."""
    return np.asarray(np.log(base_us / np.maximum(bound_us, _LEAST_US)))
