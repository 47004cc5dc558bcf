"""A fitted family behind the contract of kernel models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import Floor, floors_of, measured_us
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.learned.builds import BUILDS
from perfmodel.kernels.learned.columns import Columns
from perfmodel.kernels.learned.curves import has_curve, log_us_of
from perfmodel.kernels.learned.devices import Description, describe, distance
from perfmodel.kernels.learned.lattice import has_lattice, limits_us
from perfmodel.kernels.learned.part import Groups, Part, Places
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import Floats

_EXACT = 1e-3
_WARMER = 0.5
"""A board against its power limit may be cool and run up to its peak, for which measurements of
one session are no guide; or warmer than theirs, by half as much (assumed)."""


@dataclass(frozen=True)
class KnownFloor:
    """Floor and offset of one op, dtype and timing, measured on the host of one device."""

    device: Description
    floor: Floor


@dataclass(frozen=True)
class Learned:
    """Durations of one family: the part trained on a row's dtype, else the heuristic."""

    name: str
    heuristic: Heuristic
    parts: tuple[Part, ...]
    floors: Mapping[str, tuple[KnownFloor, ...]]
    """`timing/op/dtype` to what was measured."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; raises `ModelError` on impossible rows."""
        duration, low, high = np.zeros((3, len(rows)))
        left = np.ones(len(rows), bool)
        floor_us, offset_us = self.floors_of(rows, device)
        grounds = set()
        for part in self.parts:
            for index in self._rows_of(part, rows):
                kernel, ends, weight = self._kernels(part, rows.take(index), device)
                shown = [
                    measured_us(each, floor_us[index], offset_us[index]) for each in (kernel, *ends)
                ]
                duration[index], low[index], high[index] = shown
                grounds.add(_grounds(weight))
                left[index] = False
        if left.any():
            index = np.flatnonzero(left)
            usual = self.heuristic.estimate(rows.take(index), device)
            for column, found in ((duration, usual.duration_us), (low, usual.low_us)):
                column[index] = found
            high[index] = usual.high_us
            grounds.add(usual.source)
        name = self.heuristic.name if left.all() else self.name
        return Estimate(duration, low, high, name, ", ".join(sorted(grounds)))

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row: the heuristic's reasons around the learned duration."""
        from dataclasses import replace

        found = self.estimate(rows, device)
        return [
            replace(
                each,
                duration_us=float(duration),
                utilisation_frac=float(min(1.0, each.terms["bound_us"] / duration)),
                terms=each.terms | {"heuristic_us": each.duration_us},
            )
            for each, duration in zip(
                self.heuristic.explain(rows, device), found.duration_us, strict=True
            )
        ]

    def floors_of(self, rows: Rows, device: Device) -> tuple[Floats, Floats]:
        """(floor_us, offset_us) per row: of this device's host where known, else the median."""
        floor_us, offset_us = floors_of(rows)
        description = describe(device)
        keys = np.array(
            ["/".join(key) for key in zip(rows.timing, rows.op, rows.dtype, strict=True)]
        )
        for key in dict.fromkeys(keys.tolist()):
            known = self.floors.get(key)
            if known is None:
                continue
            here = [each.floor for each in known if distance(each.device, description) < _EXACT]
            among = here or [each.floor for each in known]
            index = np.flatnonzero(keys == key)
            floor_us[index] = float(np.median([each.floor_us for each in among]))
            offset_us[index] = float(np.median([each.offset_us for each in among]))
        return floor_us, offset_us

    def _rows_of(self, part: Part, rows: Rows) -> list[Ints]:
        """The rows that `part` answers for, by the devices that tell of them."""
        keys = list(zip(rows.op, rows.dtype, strict=True))
        known = {
            (op, dtype): part.known_to(op, dtype)
            for op, dtype in dict.fromkeys(keys)
            if dtype in part.dtypes and (op in part.ops or not part.ops)
        }
        found: dict[Places, list[int]] = {}
        for row, key in enumerate(keys):
            if key in known:
                found.setdefault(known[key], []).append(row)
        return [np.array(own, np.int64) for own in found.values()]

    def _on_curve(self, part: Part, rows: Rows, index: Ints, device: Device) -> Floats:
        op, found = rows.op[index[0]], np.zeros(len(index))
        dims = rows.dims_of(op, index)
        elements = dims["rows"] * dims["cols"]
        dtypes = np.array([rows.dtype[row] for row in index.tolist()], object)
        for dtype in dict.fromkeys(dtypes.tolist()):
            own = dtypes == dtype
            found[own] = log_us_of(part, op, dtype, device, elements[own])
        return found

    def _kernels(
        self, part: Part, rows: Rows, device: Device
    ) -> tuple[Floats, tuple[Floats, Floats], float]:
        """(kernel, (low, high), kinship) in microseconds without a launch floor."""
        groups = list(rows.groups())
        columns, factors, weight = _told(part, rows, groups, device)
        low, high = np.zeros((2, len(rows)))
        for op, index in groups:
            low[index], high[index] = part.ends(op, columns.work[index], weight)
            low[index] -= weight * columns.lift[index]
            high[index] += _WARMER * weight * columns.lift[index]
            if has_curve(part, op):
                log_us = self._on_curve(part, rows, index, device)
                factors[index] = log_us - np.log(columns.base_us[index])
        found = _kernel_us(columns, factors, device)
        held = found.copy()
        for op, index in groups:
            if has_lattice(part, op):
                limits = limits_us(part, rows, index, device, as_trees_tell)
                held[index] = np.clip(found[index], *limits)
        moved = held / found

        def end(logarithm: Floats) -> Floats:
            return _kernel_us(columns, factors + logarithm, device) * moved

        return held, (end(low), end(high)), weight


def as_trees_tell(part: Part, rows: Rows, device: Device) -> Floats:
    """Microseconds of `rows` without a launch floor, before anything holds them together."""
    columns, factors, _ = _told(part, rows, list(rows.groups()), device)
    return _kernel_us(columns, factors, device)


def _told(part: Part, rows: Rows, groups: Groups, device: Device) -> tuple[Columns, Floats, float]:
    """(columns, log factors as far as measurements told them, kinship) of `rows`.

    The same devices tell of them all.
    """
    columns = BUILDS[part.build](rows, device, part.tiles)
    known = part.known_to(rows.op[0], rows.dtype[0])
    factors, weight = part.log_factors(columns, groups, device, known)
    for op, index in groups:
        factors[index] *= part.told(op, columns.base_us[index])
    return columns, factors, weight


def _kernel_us(columns: Columns, factors: Floats, device: Device) -> Floats:
    least = np.maximum(columns.bound_us, device.kernel_floor_us)
    return np.maximum(columns.base_us * np.exp(factors) + columns.extra_us, least)


def _grounds(weight: float) -> str:
    if weight >= 1.0:
        return "measurements of this device or one like it"
    if weight > 0.0:
        return "measurements of similar devices"
    return "measurements of other devices"
