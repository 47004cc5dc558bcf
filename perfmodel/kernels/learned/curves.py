"""Time of elementwise ops over their size: continuous, and never less for more elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.hardware import Device
from perfmodel.hardware.reads import remembered
from perfmodel.kernels.learned.builds import BUILDS
from perfmodel.kernels.learned.part import Part
from perfmodel.kernels.learned.stream_columns import BY_ROW
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS, Floats

BUILD = "stream"
_KNOTS = 2.0 ** np.arange(0.0, 40.5, 0.5)
"""Elements between which the logarithm of the time is interpolated."""
_PLAIN_DIMS = ("rows", "cols")


def has_curve(part: Part, op: str) -> bool:
    """Whether the time of `op` is a matter of its number of elements alone."""
    return part.build == BUILD and op not in BY_ROW and _is_shapeless(op)


@lru_cache(maxsize=128)
def _is_shapeless(op: str) -> bool:
    """Whether a row and a column of as many elements move the same bytes."""
    spec, one, many = OPS[op], np.ones(1), np.full(1, 64.0)
    if set(spec.dims) != set(_PLAIN_DIMS):
        return False
    shapes = ({"rows": one, "cols": many}, {"rows": many, "cols": one})
    usual = {name: np.full(1, value) for name, value in spec.defaults.items()}
    row, column = (float(spec.read_bytes(usual | shape, one)[0]) for shape in shapes)
    return row == column


@dataclass(frozen=True)
class Key:
    """What a curve is of; parts are told apart by their trees, devices by their text."""

    part: Part
    op: str
    dtype: str
    device: Device
    timing: str = KERNEL

    def on(self, device: Device) -> Key:
        """The same of another device."""
        return replace(self, device=device)

    def __hash__(self) -> int:
        return hash((id(self.part.own), self.op, self.dtype, self.timing, self.device.name))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Key)
            and self.part.own is other.part.own
            and (self.op, self.dtype, self.timing) == (other.op, other.dtype, other.timing)
            and self.device == other.device
        )


def log_us_of(part: Part, op: str, dtype: str, device: Device, elements: Floats) -> Floats:
    """Logarithm of the kernel's microseconds for each number of `elements` `[n]`."""
    return np.asarray(
        np.interp(np.log(elements), np.log(_KNOTS), _curve(Key(part, op, dtype, device)))
    )


def _curve_of(key: Key) -> Floats:
    count = len(_KNOTS)
    dims = {"rows": _KNOTS, "cols": np.ones(count)}
    rows = Rows((key.op,) * count, (key.dtype,) * count, ("fwd",) * count, (KERNEL,) * count, dims)
    columns = BUILDS[key.part.build](rows, key.device, key.part.tiles)
    groups = list(rows.groups())
    factors, _ = key.part.log_factors(
        columns, groups, key.device, key.part.known_to(key.op, key.dtype)
    )
    factors *= key.part.told(key.op, columns.base_us)
    log_us = np.log(np.maximum(columns.base_us * np.exp(factors), columns.bound_us))
    return np.asarray(np.maximum.accumulate(log_us))


_curve = remembered(_curve_of, maxsize=512)
