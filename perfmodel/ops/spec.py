"""What an op of the measurement table is: its dims, and the work that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from perfmodel.arrays import Floats
from perfmodel.registry import Registry

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
    kernels: str = ""
    """What its kernels are, in the words of `ops.families`; empty: as of most of its family."""
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

    @property
    def kernel_family(self) -> str:
        """What its kernels are, as a profile of them would say; the family of what is no kernel."""
        return self.kernels or _KERNELS_OF_FAMILY.get(self.family, self.family)

    def of(self, direction: str) -> OpSpec:
        """The spec whose work is that of `direction`."""
        return self.other_directions.get(direction, self)


OPS: Registry[OpSpec] = Registry(
    "op", "perfmodel.ops", "perfmodel.ops.vocabulary", "perfmodel kernel"
)
"""Every op by its name in the measurement table."""


def directions() -> set[str]:
    """All directions that an op of the vocabulary runs in."""
    return {direction for name in OPS for direction in OPS[name].directions}


VECTOR = "vector"
"""Memory-bound work on a device: elementwise, reductions, norms, copies, gathers."""
_KERNELS_OF_FAMILY = {
    VECTOR: "elementwise",
    "channel": "norm",
    "jagged": "gather_scatter",
    "jagged_attention": "attention",
    "recurrent": "matmul",
    "collective": "communication",
    "transfer": "memcpy_host",
    "recorded": "other",
}

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
    kernels: str = "",
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
        kernels=kernels,
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
