"""A fitted family behind the contract of kernel models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats, Ints, median
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu import matmul
from perfmodel.cost.gpu.heuristic import (
    AS_TIMED,
    DATASHEET,
    SHORTEST_ENDS,
    Floor,
    Heuristic,
    at_least,
    floors_of,
    measured_us,
)
from perfmodel.cost.learned.devices import (
    Description,
    describe,
    distance,
    kinship,
    unlikeness,
)
from perfmodel.cost.learned.features import BUILDS, Columns
from perfmodel.cost.learned.lattice import (
    as_fp32,
    has_curve,
    has_lattice,
    limits_us,
    log_us_of,
    may_be_widened,
)
from perfmodel.cost.learned.part import (
    BATCHED,
    Answer,
    Groups,
    Part,
    Places,
    one_of_each,
    with_same_kernels,
)
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original
from perfmodel.ops.rows import Kind, Rows

FORMULA = (
    "kernel = max(heuristic x what trees learned of its error on measurements, bound_us, "
    f"device.kernel_floor_us), products in 16 bits at most fp32_us; {AS_TIMED}"
)
_EXACT = 1e-3
_FEW_HOSTS, _OF_FEW_HOSTS = 3, 2.0
"""Factor around a floor that fewer hosts were measured for than show a spread (assumed)."""
_NORMAL_5_PCT = 1.645
_WARMER = 0.5
"""A board against its power limit may be cool and run up to its peak, for which measurements of
one session are no guide; or warmer than theirs, by half as much (assumed)."""


WITH_PHYSICS = ("matmul_fp32", "matmul_half")
"""Parts whose base leaves out what physics knows of products smaller than any that were measured:
tiles, rounds of blocks, splits. In fp32 it is nearer inside programs (products of six DLRM traces
on one H200: 1 to 129 % off without it, 1 to 39 with it), not of single ones (median of 135 small
ones 31 without it, 40 with it); both were seen."""
PHYSICS_ALONE = ("matmul",)
"""Builds whose rows are physics, with all that the base leaves out, on devices of a maker of whom
none was measured."""


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
        rows = with_same_kernels(rows, self._alone(rows, device))
        duration, low, high = np.zeros((3, len(rows)))
        left = np.ones(len(rows), bool)
        usual, *ends_of_floors = self.floors_of(rows, device)
        grounds = set()
        for part in self.parts:
            for index in self._rows_of(part, rows):
                kernel, ends, answer = self._kernels(part, rows.take(index), device)
                floor = usual[:, index]
                duration[index] = measured_us(kernel, *floor)
                of_kernel = [measured_us(us, *floor) for us in ends]
                of_host = [measured_us(kernel, *each[:, index]) for each in ends_of_floors]
                both = [
                    duration[index] * off_by_both(one / duration[index], other / duration[index])
                    for one, other in zip(of_kernel, of_host, strict=True)
                ]
                low[index] = np.minimum(both[0], duration[index])
                high[index] = np.maximum(both[1], duration[index])
                grounds.add(_grounds(answer))
                left[index] = False
        if left.any():
            index = np.flatnonzero(left)
            estimated = self.heuristic.estimate(rows.take(index), device)
            duration[index], low[index] = estimated.duration_us, estimated.low_us
            high[index] = estimated.high_us
            grounds.add(estimated.source)
        name = self.heuristic.name if left.all() else self.name
        return Estimate(duration, low, high, name, ", ".join(sorted(grounds)))

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row: the heuristic's reasons around the learned duration.

        Terms: what measurements made of the heuristic, how near the device is to those that they
        are of, and whether the row's work lies among theirs (1) or not (0).
        """
        taken = self.estimate(rows, device).duration_us.tolist()
        near, inside = self._grounds_of(rows, device)
        in_fp32_us = self._in_fp32_us(rows, device, np.full(len(rows), np.inf))
        reasons = []
        for row, each in enumerate(self.heuristic.explain(rows, device)):
            terms = {"heuristic_us": each.duration_us}
            if not np.isnan(near[row]):
                terms["learned_factor"] = taken[row] / each.duration_us
                terms |= {"kinship_frac": near[row], "inside_domain": inside[row]}
                terms |= {"fp32_us": in_fp32_us[row]} if np.isfinite(in_fp32_us[row]) else {}
            reasons.append(
                replace(
                    each,
                    duration_us=taken[row],
                    utilisation_frac=min(1.0, each.terms["bound_us"] / taken[row]),
                    terms=each.terms | {name: float(value) for name, value in terms.items()},
                    formula=self.heuristic.formula if np.isnan(near[row]) else FORMULA,
                )
            )
        return reasons

    def _grounds_of(self, rows: Rows, device: Device) -> tuple[Floats, Floats]:
        """(nearness of the device to measured ones, whether the work is among theirs) per row; NaN
        where no part answers."""
        rows = with_same_kernels(rows, self._alone(rows, device))
        near, inside = np.full((2, len(rows)), np.nan)
        for part in self.parts:
            for index in self._rows_of(part, rows):
                own = rows.take(index)
                groups = list(own.groups())
                columns, answer, _ = _told(part, own, [], original(device))
                near[index] = answer.weight * _kinship_of_change(device)
                for op, at in groups:
                    inside[index[at]] = part.is_inside(op, columns.work[at])
        return near, inside

    def floors_of(self, rows: Rows, device: Device) -> tuple[Floats, Floats, Floats]:
        """(usual, least, most) floors and offsets `[2, n]`: those of this device's host where it
        was measured; else the median floor, and of it the median share, of the hosts of devices
        like it, of all where there is none; and where 90 % of hosts would lie, if the two are
        independent."""
        usual = np.stack(floors_of(rows))
        floors = np.stack([usual, usual, usual])
        description = describe(original(device))
        for key, own in rows.grouped(lambda kind: f"{kind.timing}/{kind.op}/{kind.dtype}"):
            told = [(each, distance(each.device, description)) for each in self.floors.get(key, ())]
            told = [(each, by) for each, by in told if each.floor.is_measured or by < _EXACT]
            if not told:
                continue
            known, away = [each for each, _ in told], np.array([by for _, by in told])
            hosts = [each.floor for each in known]
            of_hosts = np.array(
                [(floor.floor_us, floor.offset_us / floor.floor_us) for floor in hosts]
            )
            is_like = away <= away.min() if kinship(away.min()) > 0.0 else away < np.inf
            middle = np.cumprod([median(each) for each in of_hosts[is_like].T])
            is_own = away.min() < _EXACT and known[int(away.argmin())].floor.is_measured
            floor_factor, share_factor = np.ones(2) if is_own else factor_of_hosts(of_hosts)
            factor = np.array([floor_factor, off_by_both(floor_factor, share_factor)])
            ends = np.stack([middle, middle / factor, middle * factor])
            floors[:, :, own] = ends[:, :, None]
        return floors[0], floors[1], floors[2]

    def _rows_of(self, part: Part, rows: Rows) -> list[Ints]:
        """The rows that `part` answers for, by the devices that tell of them."""

        def known_to(kind: Kind) -> Places | None:
            answers = part.answers_for(kind.op, kind.dtype)
            return part.known_to(kind.op, kind.dtype) if answers else None

        return [index for known, index in rows.grouped(known_to) if known is not None]

    def _on_curve(self, part: Part, rows: Rows, index: Ints, device: Device) -> Floats:
        op, log_us = rows.op[index[0]], np.zeros(len(index))
        dims = rows.dims_of(op, index)
        elements = dims["rows"] * dims["cols"]
        dtypes = np.array([rows.dtype[row] for row in index.tolist()], object)
        for dtype in dict.fromkeys(dtypes.tolist()):
            own = dtypes == dtype
            log_us[own] = log_us_of(part, op, dtype, device, elements[own])
        return log_us

    def _kernels(
        self, part: Part, rows: Rows, device: Device
    ) -> tuple[Floats, tuple[Floats, Floats], Answer]:
        """(kernel, (low, high)) in microseconds without a launch floor, and what it rests on.

        Of a device whose figures were changed: the original's, times what physics makes of that.
        """
        known = original(device)
        if known is device:
            return self._of_known(part, rows, device, 0.0)
        changed, before = self.heuristic.analyse(rows, device), self.heuristic.analyse(rows, known)
        ratio = at_least(changed.kernel_us, changed, device) / at_least(
            before.kernel_us, before, known
        )
        away = distance(describe(device), describe(known))
        kernel, (low, high), answer = self._of_known(part, rows, known, away)
        ends = (1.0, *SHORTEST_ENDS)
        kernel, low, high = (
            at_least(us * ratio, changed, device, shortest)
            for us, shortest in zip((kernel, low, high), ends, strict=True)
        )
        return kernel, (low, high), answer

    def _of_known(
        self, part: Part, rows: Rows, device: Device, changed: float
    ) -> tuple[Floats, tuple[Floats, Floats], Answer]:
        """The same, for intervals of a device that was `changed` by so much."""
        groups = list(rows.groups())
        by_trees = [each for each in groups if not has_curve(part, each[0])]
        columns, answer, told = _told(part, rows, by_trees, device)
        answer = replace(
            answer,
            weight=answer.weight * kinship(changed),
            unlike=max(answer.unlike, unlikeness(changed)),
        )
        factors = answer.factors
        low, high = np.zeros((2, len(rows)))
        framework = rows.in_framework()
        for op, index in groups:
            low[index], high[index] = part.ends(
                op, columns.work[index], answer, framework[index], told[index]
            )
            low[index] -= answer.weight * columns.lift[index]
            high[index] += _WARMER * answer.weight * columns.lift[index]
            if has_curve(part, op):
                log_us = self._on_curve(part, rows, index, device)
                factors[index] = log_us - np.log(columns.base_us[index])
        kernel_us = _kernel_us(columns, factors, device)
        held = self._held(part, rows, device, kernel_us) if has_lattice(part) else kernel_us
        moved = held / kernel_us

        def end(logarithm: Floats, shortest: float) -> Floats:
            us = _kernel_us(columns, factors + logarithm, device, shortest)
            return np.maximum(us * moved, _least_us(columns, device, shortest))

        return held, (end(low, SHORTEST_ENDS[0]), end(high, SHORTEST_ENDS[1])), answer

    def _held(self, part: Part, rows: Rows, device: Device, kernel_us: Floats) -> Floats:
        """`kernel_us` of products, near those of other sizes, no longer than in fp32, and of a
        batch no shorter than of one of its products."""
        held = kernel_us.copy()
        for _, index in rows.groups():
            limits = limits_us(part, rows, index, device, unconstrained_us)
            held[index] = np.clip(kernel_us[index], *limits)
        held = np.minimum(held, self._in_fp32_us(rows, device, held))
        batches, one = one_of_each(rows, self._alone(rows, device))
        if len(batches):
            held[batches] = np.maximum(held[batches], self._known_us(one, device))
        return held

    def _in_fp32_us(self, rows: Rows, device: Device, kernel_us: Floats) -> Floats:
        """What products that take `kernel_us` in 16 bits take in fp32, without a launch floor;
        infinite where that is longer anyway, or has no bearing, or was measured nowhere."""
        times_us = np.full(len(rows), np.inf)
        asked = may_be_widened(rows, device, kernel_us)
        if len(asked):
            wide = as_fp32(rows.take(asked))
            wide = with_same_kernels(wide, self._alone(wide, device))
            known_us = self._known_us(wide, device)
            times_us[asked] = np.where(known_us > 0.0, known_us, np.inf)
        return times_us

    def _known_us(self, rows: Rows, device: Device) -> Floats:
        """Microseconds of `rows` without a launch floor; 0 where none like them were measured."""
        times_us = np.zeros(len(rows))
        for part in self.parts:
            for index in self._rows_of(part, rows):
                times_us[index] = self._kernels(part, rows.take(index), device)[0]
        return times_us

    def _alone(self, rows: Rows, device: Device) -> set[str]:
        """The dtypes in which batches of one are layers: those that were measured as layers on a
        device as similar as any whose batches were."""
        dtypes = {kind.dtype for kind in rows.kinds[0] if kind.op == BATCHED}
        known = original(device)
        return {
            dtype
            for dtype in dtypes
            for part in self.parts
            if part.answers_for(BATCHED, dtype)
            and part.away("linear", dtype, known) <= part.away(BATCHED, dtype, known) < np.inf
        }


def _kinship_of_change(device: Device) -> float:
    return kinship(distance(describe(device), describe(original(device))))


def unconstrained_us(part: Part, rows: Rows, device: Device) -> Floats:
    """Microseconds of `rows` without a launch floor, before anything holds them together."""
    columns, answer, _ = _told(part, rows, list(rows.groups()), device)
    return _kernel_us(columns, answer.factors, device)


def _told(part: Part, rows: Rows, groups: Groups, device: Device) -> tuple[Columns, Answer, Floats]:
    """The columns of `rows`, the part's answer as far as measurements told of such rows, physics
    alone beyond, and how far that is.

    The same devices tell of them all.
    """
    columns = BUILDS[part.build](rows, device, part.tiles)
    known = part.known_to(rows.op[0], rows.dtype[0])
    told, telling = np.zeros(len(rows)), part.telling(known, device)
    is_alone = part.build in PHYSICS_ALONE and not telling
    for (op, dtype), index in rows.grouped(lambda kind: (kind.op, kind.dtype)):
        if not is_alone:
            told[index] = part.told(op, dtype, columns, index, telling)
    asked = [(op, index[told[index] > 0.0]) for op, index in groups]
    asked = [(op, index) for op, index in asked if len(index)]
    answer = part.log_factors(columns, asked, device, known, part.in_apart(rows, device))
    answer.factors[:] *= told
    untold = np.flatnonzero(told < 1.0)
    if (is_alone or part.name in WITH_PHYSICS) and len(untold):
        physics = matmul.tiled(rows.take(untold), columns.analysis.take(untold), device)
        busy_us = physics.kernel_us - physics.features["quantise_us"]
        off = np.log(busy_us / columns.base_us[untold])
        answer.factors[untold] += (1.0 - told[untold]) * off
    return columns, answer, told


def off_by_both(one: Floats, other: Floats) -> Floats:
    """The factor that two independent ones, on the same side of 1, come to: their logarithms add
    in squares. Never nearer to 1 than either."""
    logs = np.log(one), np.log(other)
    return np.asarray(np.exp(np.copysign(np.hypot(*logs), np.add(*logs))))


def factor_of_hosts(figures: Floats) -> Floats:
    """`[2]`: the factor around the median of hosts' two `figures` `[hosts, 2]` within which 90 % of
    further hosts lie, if their logarithms are normal."""
    hosts = len(figures)
    if hosts < _FEW_HOSTS:
        return np.full(2, _OF_FEW_HOSTS)
    spread = np.log(np.maximum(figures, 1e-3)).std(axis=0, ddof=1)
    return np.asarray(np.exp(_student_5_pct(hosts - 1) * np.sqrt(1.0 + 1.0 / hosts) * spread))


def _student_5_pct(freedom: int) -> float:
    """What Student's t exceeds in 5 % (Abramowitz and Stegun 26.7.5; 5 % low for 2 degrees)."""
    z = _NORMAL_5_PCT
    near = z + (z**3 + z) / (4 * freedom)
    return near + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _kernel_us(columns: Columns, factors: Floats, device: Device, shortest: float = 1.0) -> Floats:
    learned_us = columns.base_us * np.exp(factors) + columns.extra_us
    return np.maximum(learned_us, _least_us(columns, device, shortest))


def _least_us(columns: Columns, device: Device, shortest: float) -> Floats:
    return np.maximum(columns.bound_us, shortest * device.kernel_floor_us)


def _grounds(answer: Answer) -> str:
    if answer.weight >= 1.0:
        return "measurements of this device or one like it"
    if answer.weight > 0.0:
        return "measurements of similar devices"
    return "measurements of other devices" if answer.by_trees else DATASHEET
