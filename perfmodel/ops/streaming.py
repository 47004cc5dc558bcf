"""Specs of ops that stream: they read and write multiples of one number of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from perfmodel.ops.spec import Dims, Floats, OpSpec

VECTOR = "vector"
"""Memory-bound work on a device: elementwise, reductions, norms, copies, gathers."""

Amount: TypeAlias = "float | Callable[[Dims], Floats]"
NOTHING: Mapping[str, float] = MappingProxyType({})


def rows_cols(dims: Dims) -> Floats:
    """Elements of a row of `rows x cols`."""
    return dims["rows"] * dims["cols"]


def elements(dims: Dims) -> Floats:
    """Elements of a row that only counts them."""
    return dims["elements"]


def times(amount: Amount, dims: Dims) -> Floats | float:
    """A constant as it is, a function of the dims applied."""
    return amount(dims) if callable(amount) else amount


def streaming(
    size: Callable[[Dims], Floats],
    dims: tuple[str, ...],
    *,
    reads: Amount = 1.0,
    writes: Amount = 1.0,
    flop: Amount = 1.0,
    read_index_bytes: Amount = 0.0,
    family: str = VECTOR,
    defaults: Mapping[str, float] = NOTHING,
    directions: tuple[str, ...] = ("fwd",),
    other_directions: Mapping[str, OpSpec] = MappingProxyType({}),
) -> OpSpec:
    """An op over `size(dims)` elements of the row's dtype.

    `reads`, `writes` and `flop` are per element; `read_index_bytes` comes on top, for the whole
    row (indices, offsets). Each is a constant or a function of the dims.
    """
    return OpSpec(
        family=family,
        dims=dims,
        defaults=defaults,
        size=size,
        flop=lambda d: times(flop, d) * size(d),
        read_bytes=lambda d, item: (
            item * times(reads, d) * size(d) + times(read_index_bytes, d) + 0.0 * size(d)
        ),
        written_bytes=lambda d, item: item * times(writes, d) * size(d),
        directions=directions,
        other_directions=other_directions,
    )
