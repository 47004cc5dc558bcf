"""What learned models are given per row: a physical scale, its bound, and figures without unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Columns:
    """Per row: `base_us` to be multiplied, `bound_us` not to be passed, `extra_us` to be added.

    `work` is the size that the domain of training is told by (FLOP or bytes).
    """

    base_us: Floats
    bound_us: Floats
    extra_us: Floats
    work: Floats
    figures: Mapping[str, Floats]
    lift: Floats
    """Logarithm by which physics that differs between devices (power limits) lengthens the base:
    known devices show it in their measurements, of others it is taken for granted."""
    sizes: Mapping[str, Floats] = field(default_factory=lambda: MappingProxyType({}))
    """Logarithms of the dims themselves, for trees without physics."""
    library: Floats | float = 0.0
    """Logarithm by which a maker's library lengthens what trees of other makers' boards say."""

    def matrix(self, names: tuple[str, ...], constants: Mapping[str, float]) -> np.ndarray:
        """`[rows, names]` float32: figures, sizes, else constants of the device, or 0."""
        found = np.zeros((len(self.base_us), len(names)), np.float32)
        for column, name in enumerate(names):
            value = self.figures.get(name, self.sizes.get(name))
            found[:, column] = constants.get(name, 0.0) if value is None else value
        return found


Tiles = Mapping[str, list[list[float]]]
"""`op/target/capability` to the tiles its library was seen to use: rows, columns, share of peak."""

Build = Callable[[Rows, Device, Tiles], Columns]


def log(values: Floats) -> Floats:
    """Natural logarithm, of at least 1e-9."""
    return np.log(np.maximum(values, 1e-9))


def alignment(values: Floats, most: int = 64) -> Floats:
    """log2 of the largest power of two, up to `most`, that divides each value."""
    whole = np.maximum(values, 1.0).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, most).astype(np.float64)))
