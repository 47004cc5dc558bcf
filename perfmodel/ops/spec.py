"""What an op of the measurement table is: its dims, and the work that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from perfmodel.registry import Registry

Floats = NDArray[np.float64]
Dims = Mapping[str, Floats]
"""Dim to its values, one per row; float64, because products of dims overflow int64."""

Work = Callable[[Dims], Floats]
Bytes = Callable[[Dims, Floats], Floats]
"""From the dims and the bytes per element of each row's dtype."""


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """One op of the vocabulary: what a row must hold, and its work as functions of whole columns.

    The work is what the op cannot do without: multiply-adds count two; an operand that stays in
    registers or is broadcast counts once.
    """

    family: str
    """Which kernel models answer for it (`matmul vector embedding convolution optimizer …`)."""
    dims: tuple[str, ...]
    """Dims that a row must hold, each at least 1."""
    means: tuple[str, ...] = ()
    """Those of them that are means over many, and so need only be above 0."""
    defaults: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Dims that a row may leave out, and what they then are."""
    flop: Work
    read_bytes: Bytes
    written_bytes: Bytes
    size: Work | None = None
    """Elements that are worked through; None where there is no such number."""
    one_of: tuple[tuple[str, ...], ...] = ()
    """Groups of dims with defaults, of each of which a row must hold one."""
    directions: tuple[str, ...] = ("fwd",)
    other_directions: Mapping[str, OpSpec] = field(default_factory=lambda: MappingProxyType({}))
    """Where the work differs by direction: the same dims, with the work of that direction."""

    def of(self, direction: str) -> OpSpec:
        """The spec whose work is that of `direction`."""
        return self.other_directions.get(direction, self)


OPS: Registry[OpSpec] = Registry("op", "perfmodel.ops", "perfmodel.ops.vocabulary")
"""Every op by its name in the measurement table."""
