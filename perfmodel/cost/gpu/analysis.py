"""What physics says about rows: a lower bound, an expectation, and the figures behind both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, KERNEL, Rows
from perfmodel.ops.spec import OPS, Dims


@dataclass(frozen=True)
class Analysis:
    """Columns of one family's rows on one device; all arrays have one entry per row.

    `bound_us` no kernel can beat; `kernel_us` is what one usually takes, without a launch floor.
    `shares` are the resources' own times (`compute`, `memory`, `cache`, `latency`): the largest
    is what bounds a row.
    """

    bound_us: Floats
    kernel_us: Floats
    shares: Mapping[str, Floats]
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats
    features: Mapping[str, Floats] = field(default_factory=lambda: MappingProxyType({}))
    """Dimensionless figures that learned models see beside the expectation."""


Analyse = Callable[[Rows, Device], Analysis]
"""One family's physics; raises `ModelError` on impossible rows. Its docstring is the formula that
explanations tell."""


def merge_analyses(size: int, parts: list[tuple[Ints, Analysis]]) -> Analysis:
    """The analyses of parts of `size` rows, each with the rows that it is of, in one.

    What one part lacks (a share, a feature) is 0 there.
    """
    if len(parts) == 1:
        return parts[0][1]

    def column(values: list[Floats | None]) -> Floats:
        whole = np.zeros(size)
        for (rows, _), each in zip(parts, values, strict=True):
            if each is not None:
                whole[rows] = each
        return whole

    def merged(name: str) -> Any:
        own = [getattr(analysis, name) for _, analysis in parts]
        if not isinstance(own[0], Mapping):
            return column(own)
        names = dict.fromkeys(each for columns in own for each in columns)
        return {each: column([columns.get(each) for columns in own]) for each in names}

    return Analysis(**{each.name: merged(each.name) for each in fields(Analysis)})


@dataclass(frozen=True)
class Group:
    """The rows of one op and direction, and what the vocabulary says of them, one entry per row."""

    op: str
    direction: str
    index: Ints
    dims: Dims
    dtypes: list[str]
    in_program: NDArray[np.bool_]
    """Whether the kernel runs once, among others, or after the caches were flushed; else over and
    over, and finds what it left."""
    flushed: NDArray[np.bool_]
    """Whether nothing can be in a cache, not even what the kernel before has written."""
    item_bytes: Floats
    flop: Floats
    read_bytes: Floats
    written_bytes: Floats

    @property
    def moved_bytes(self) -> Floats:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes

    def analysis(
        self,
        bound_us: Floats,
        kernel_us: Floats,
        shares: Mapping[str, Floats],
        features: Mapping[str, Floats] = MappingProxyType({}),
    ) -> Analysis:
        """Of these rows, whose work is the vocabulary's."""
        work = self.flop, self.read_bytes, self.written_bytes
        return Analysis(bound_us, kernel_us, shares, *work, features)


_GROUPS = "groups"


def among_others(rows: Rows) -> Mask:
    """`[n]`: whether a profiler or events timed a kernel behind other work, not over and over."""
    return rows.of_kinds(lambda kind: kind.timing in (KERNEL, BEHIND_WORK), bool)


def groups_of(rows: Rows) -> tuple[Group, ...]:
    """One group for every pair of op and direction that occurs; raises `ModelError` on impossible
    rows."""
    if _GROUPS not in rows.known:
        rows.known[_GROUPS] = tuple(_groups_of(rows))
    groups: tuple[Group, ...] = rows.known[_GROUPS]
    return groups


def _groups_of(rows: Rows) -> Iterator[Group]:
    flushed, warm = (rows.dims.get(each, np.zeros(len(rows))) > 0 for each in ("cold", "warm"))
    in_program = among_others(rows) & ~warm
    for (op, way), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        spec, dims = OPS[op].of(way), rows.dims_of(op, index)
        item = rows.item_bytes[index]
        yield Group(
            op=op,
            direction=way,
            index=index,
            dims=dims,
            dtypes=list(map(rows.dtype.__getitem__, index.tolist())),
            in_program=in_program[index] | flushed[index],
            flushed=flushed[index],
            item_bytes=item,
            flop=spec.flop(dims),
            read_bytes=spec.read_bytes(dims, item),
            written_bytes=spec.written_bytes(dims, item),
        )


def analyse_by_group(of: Callable[[Group, Device], Analysis]) -> Analyse:
    """The physics of rows of any op and direction, from the physics `of` one group."""

    def analyse(rows: Rows, device: Device) -> Analysis:
        parts = [(group.index, of(group, device)) for group in groups_of(rows)]
        return merge_analyses(len(rows), parts)

    analyse.__doc__ = of.__doc__
    return analyse
