"""What an op of the measurement table is: its dims, and the work that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TypedDict, Unpack

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.registry import Registry

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
    holds: tuple[str, ...] = ()
    """Formulas of the dims that are true of each row."""
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

_FUNCTIONS = {
    name: getattr(np, name) for name in ("where", "minimum", "maximum", "log2", "floor")
} | {"__builtins__": {}}


@cache
def formula(text: str) -> Callable[..., Floats]:
    """A function of dims (and of `item`, the bytes per element) from its formula in Python, such as
    `2*b*m*n*k`; of a constant, one value per row."""
    code = compile(text, text, "eval")

    def value(dims: Dims, item: Floats | None = None) -> Floats:
        found = np.asarray(eval(code, _FUNCTIONS, {**dims, "item": item}), np.float64)
        return found if found.ndim else np.full(np.shape(next(iter(dims.values()))), float(found))

    return value


class Formulas(TypedDict, total=False):
    """Work as formulas: FLOP, bytes read and written, and elements worked through (or none)."""

    flop: str
    read: str
    written: str
    size: str


def op(
    names: str,
    family: str,
    dims: str,
    *,
    defaults: Mapping[str, float] = MappingProxyType({}),
    kernels: str = "",
    means: tuple[str, ...] = (),
    one_of: tuple[tuple[str, ...], ...] = (),
    holds: tuple[str, ...] = (),
    directions: str = "fwd",
    other_directions: Mapping[str, Formulas] = MappingProxyType({}),
    **work: Unpack[Formulas],
) -> None:
    """Register ops that do the same work: names and dims as words, work as formulas of the dims.

    `other_directions`: of a direction, the formulas that differ.
    """
    usual: Formulas = {"flop": "0", "read": "0", "written": "0", "size": "", **work}

    def spec(work: Formulas, others: Mapping[str, OpSpec]) -> OpSpec:
        return OpSpec(
            family=family,
            kernels=kernels,
            dims=tuple(dims.split()),
            means=means,
            defaults={name: float(value) for name, value in defaults.items()},
            flop=formula(work["flop"]),
            read_bytes=formula(work["read"]),
            written_bytes=formula(work["written"]),
            size=formula(work["size"]) if work["size"] else None,
            one_of=one_of,
            holds=holds,
            directions=tuple(directions.split()),
            other_directions=others,
        )

    others = {each: spec({**usual, **work}, {}) for each, work in other_directions.items()}
    OPS.register(*names.split())(spec(usual, others))


def streaming(
    size: str, reads: str = "1", writes: str = "1", flop: str = "1", read_too: str = "0"
) -> Formulas:
    """The work of an op over `size` elements of the row's dtype: `reads`, `writes` and `flop` are
    per element, `read_too` are bytes on top (indices, offsets)."""
    return {
        "size": size,
        "flop": f"({flop})*({size})",
        "read": f"item*({reads})*({size}) + {read_too}",
        "written": f"item*({writes})*({size})",
    }


ROWS_COLS = "rows*cols"
rows_cols = formula(ROWS_COLS)
