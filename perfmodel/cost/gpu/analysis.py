"""Kernel models that are a family's physics alone: a lower bound, an expectation, and what measured
times contain beside it.

A time is the longer of a floor, for which the host alone is the reason, and the kernel behind a
fixed offset: `max(floor, offset + kernel)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate, Explanation, explanations
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, KERNEL, Kind, Rows
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


def among_others(rows: Rows) -> Mask:
    """`[n]`: whether a profiler or events timed a kernel behind other work, not over and over."""
    return rows.of_kinds(lambda kind: kind.timing in (KERNEL, BEHIND_WORK), bool)


def groups_of(rows: Rows) -> Sequence[Group]:
    """One group for every pair of op and direction that occurs; raises `ModelError` on impossible
    rows."""
    if "groups" in rows.known:
        known: list[Group] = rows.known["groups"]
        return known
    groups = []
    flushed, warm = (rows.dims.get(each, np.zeros(len(rows))) > 0 for each in ("cold", "warm"))
    in_program = among_others(rows) & ~warm
    for (op, way), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        spec, dims = OPS[op].of(way), rows.dims_of(op, index)
        item = rows.item_bytes[index]
        group = Group(
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
        groups.append(group)
    rows.known["groups"] = groups
    return groups


def analyse_by_group(of: Callable[[Group, Device], Analysis]) -> Analyse:
    """The physics of rows of any op and direction, from the physics `of` one group; what one group
    lacks (a share, a feature) is 0 there."""

    def analyse(rows: Rows, device: Device) -> Analysis:
        parts = [(group.index, of(group, device)) for group in groups_of(rows)]
        if len(parts) == 1:
            return parts[0][1]
        columns: dict[str, Any] = {}
        for index, analysis in parts:
            for name in (each.name for each in fields(Analysis)):
                own = getattr(analysis, name)
                if isinstance(own, Mapping):
                    whole = columns.setdefault(name, {})
                    for key, values in own.items():
                        whole.setdefault(key, np.zeros(len(rows)))[index] = values
                else:
                    columns.setdefault(name, np.zeros(len(rows)))[index] = own
        return Analysis(**columns)

    analyse.__doc__ = of.__doc__
    return analyse


_C = coefficients("gpu.heuristic")
SHORTEST_ENDS = np.array([[_C["shortest_ends"][end]] for end in ("low", "high")])
"""Of the device's shortest kernel, the ends of a 90 % interval `[2, 1]`."""
OF_UNKNOWN_HOST = 2.0
"""Factor around a floor that fewer hosts were measured for than show a spread (assumed)."""
_OF_KERNELS = (KERNEL, "profiler_repeated", "trt_layer_profiler")
"""Timings by the device's own clock, which contain no launch."""
TIMINGS: dict[str, tuple[float, float]] = dict.fromkeys(_OF_KERNELS, (0.0, 0.0)) | _C["timings"]
"""Microseconds: the shortest time that such a measurement shows, and what adds to a long kernel."""


def calls_of(op: str) -> float:
    """Launches of a usual call of `op`, as its floor shows them."""
    return float(_C["calls"].get(op, 1.0))


def floors_of(rows: Rows) -> Floats:
    """(floor_us, offset_us) `[2, n]`; raises `ModelError` for an unknown `timing`."""

    def of(kind: Kind) -> tuple[float, float]:
        if kind.timing not in TIMINGS:
            known = ", ".join(sorted(TIMINGS))
            raise ModelError(f"unknown timing {kind.timing!r}; one of {known}")
        floor_us, offset_us = TIMINGS[kind.timing]
        return floor_us * calls_of(kind.op), offset_us

    return rows.of_kinds(of).reshape(len(rows), 2).T


def measured_us(kernel_us: Floats, floor_us: Floats | float, offset_us: Floats | float) -> Floats:
    """The time that a measurement shows: a maximum with a slightly rounded corner."""
    long = offset_us + kernel_us
    larger = np.maximum(long, floor_us)
    smaller = np.minimum(long, floor_us)
    return larger * (1.0 + (smaller / larger) ** _C.sharpness) ** (1.0 / _C.sharpness)


def at_least(
    kernel_us: Floats, analysis: Analysis, device: Device, shortest: Floats | float = 1.0
) -> Floats:
    """`kernel_us`, at least the physical bound and `shortest` of the device's shortest kernel."""
    least_us = np.maximum(analysis.bound_us, shortest * device.kernel_floor_us)
    return np.maximum(kernel_us, least_us)


DATASHEET = "datasheet figures"
AS_TIMED = "as timed: max(launch_floor_us, offset_us + kernel)"
"""What of a kernel a measurement shows."""


@dataclass(frozen=True)
class Heuristic:
    """Durations from `analyse` with a fixed relative 90 % interval, never below the bound."""

    family: str
    analyse: Analyse

    @property
    def name(self) -> str:
        return f"gpu/{self.family}/heuristic"

    spread: ClassVar[float] = _C.spread
    """The factor to either side that holds 90 % of times."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        analysis = self.analyse(rows, device)
        kernel_us = at_least(analysis.kernel_us, analysis, device)
        around_us = analysis.kernel_us * np.array([[1.0 / self.spread], [self.spread]])
        ends_us = at_least(around_us, analysis, device, SHORTEST_ENDS)
        floor_us, offset_us = floors_of(rows)
        us = measured_us(kernel_us, floor_us, offset_us)
        factor = np.where(floor_us > 0.0, OF_UNKNOWN_HOST, 1.0) ** np.array([[-1.0], [1.0]])
        ends = measured_us(ends_us, floor_us * factor, offset_us * factor)
        low_us, high_us = np.minimum(ends[0], us), np.maximum(ends[1], us)
        by_physics = np.ones(len(rows), bool)
        return Estimate(us, low_us, high_us, self.name, DATASHEET, by_physics=by_physics)

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        physics = (self.analyse.__doc__ or self.name).strip()
        formula = f"{physics} kernel = max(that, bound_us, device.kernel_floor_us); {AS_TIMED}"
        analysis, duration_us = self.analyse(rows, device), self.estimate(rows, device).duration_us
        floor_us, offset_us = floors_of(rows)
        longest = np.argmax(np.stack(list(analysis.shares.values())), axis=0)
        bound_by = np.array(list(analysis.shares))[longest]
        bound_by = np.where(analysis.kernel_us <= device.kernel_floor_us, "latency", bound_by)
        bound_by = np.where(floor_us >= offset_us + analysis.kernel_us, "launch", bound_by)
        used_frac = np.minimum(1.0, analysis.bound_us / duration_us)
        columns = {f"{name}_us": each for name, each in analysis.shares.items()}
        columns |= {"bound_us": analysis.bound_us, **analysis.features}
        columns |= {"launch_floor_us": floor_us, "offset_us": offset_us}
        work = analysis.flop, analysis.read_bytes, analysis.written_bytes
        return explanations(duration_us, bound_by.tolist(), work, used_frac, columns, formula)
