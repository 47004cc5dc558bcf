"""A fitted family behind the contract of kernel models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats, Ints, clipped
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu import matmul
from perfmodel.cost.gpu.analysis import Analysis
from perfmodel.cost.gpu.heuristic import (
    AS_TIMED,
    DATASHEET,
    SHORTEST_ENDS,
    Heuristic,
    at_least,
    floor_ends,
    shown_us,
)
from perfmodel.cost.gpu.rates import hot_us
from perfmodel.cost.learned.devices import (
    describe,
    distance,
    kinship,
    unlikeness,
)
from perfmodel.cost.learned.features import BUILDS, Columns, log
from perfmodel.cost.learned.floors import KnownFloor, known_floors
from perfmodel.cost.learned.lattice import (
    as_fp32,
    has_curve,
    has_lattice,
    least_in_fp32_us,
    limits_us,
    log_us_of,
    may_be_widened,
)
from perfmodel.cost.learned.part import (
    Answer,
    Groups,
    Part,
    Places,
)
from perfmodel.cost.learned.same_kernels import BATCHED, one_of_each, with_same_kernels
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original
from perfmodel.ops.rows import KERNEL, Kind, Rows

FORMULA = (
    "kernel = max(heuristic x what trees learned of its error on measurements, bound_us, "
    f"device.kernel_floor_us), products in 16 bits at most fp32_us; {AS_TIMED}"
)
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


Ends = Callable[[], Floats]
"""Of a 90 % interval: (low, high) `[2, n]`, for whoever needs it."""


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
        floors = self.floors_of(rows, device)
        grounds = set()
        for part, index in self._parts_of(rows):
            kernel, ends, answer = self._kernels(part, rows.take(index), device)
            duration[index], low[index], high[index] = shown_us(kernel, ends(), floors[:, :, index])
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
        taken = self.estimate(rows, device).duration_us
        known = self.heuristic.explain(rows, device)
        flop = np.array([each.flop for each in known])
        hot = taken * np.exp(_hotter(flop, taken, rows, device))
        near, inside = self._grounds_of(rows, device)
        in_fp32_us = np.zeros(len(rows))
        index = may_be_widened(rows, device)
        in_fp32_us[index] = self._known_us(self._in_fp32(rows.take(index), device), device)
        reasons = []
        for row, each in enumerate(known):
            terms = {"heuristic_us": each.duration_us}
            terms |= {"hot_us": hot[row]} if hot[row] > taken[row] else {}
            if not np.isnan(near[row]):
                terms["learned_factor"] = taken[row] / each.duration_us
                terms |= {"kinship_frac": near[row], "inside_domain": inside[row]}
                terms |= {"fp32_us": in_fp32_us[row]} if in_fp32_us[row] else {}
            reasons.append(
                replace(
                    each,
                    duration_us=float(taken[row]),
                    utilisation_frac=min(1.0, each.terms["bound_us"] / float(taken[row])),
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
        for part, index in self._parts_of(rows):
            own = rows.take(index)
            groups = list(own.groups())
            columns, answer, _ = _answered(part, own, [], original(device))
            near[index] = answer.weight * _kinship_of_change(device)
            for op, at in groups:
                inside[index[at]] = part.is_inside(op, columns.work[at])
        return near, inside

    def floors_of(self, rows: Rows, device: Device) -> Floats:
        """Floors and offsets, each the usual one, the least and the most, `[2, 3, n]`."""
        floors = floor_ends(rows)
        for key, own in rows.grouped(lambda kind: f"{kind.timing}/{kind.op}/{kind.dtype}"):
            known = self.floors.get(key, ())
            if known:
                found = known_floors(known, device)
                floors[:, :, own] = floors[:, :, own] if found is None else found[:, :, None]
        return floors

    def _parts_of(self, rows: Rows) -> Iterator[tuple[Part, Ints]]:
        """(a part, the rows that it answers for), by the devices that tell of them."""

        def answered_by(kind: Kind) -> tuple[int, Places] | None:
            for place, part in enumerate(self.parts):
                if part.answers_for(kind.op, kind.dtype):
                    return place, part.known_to(kind.op, kind.dtype)
            return None

        for answered, index in rows.grouped(answered_by):
            if answered is not None:
                yield self.parts[answered[0]], index

    def _on_curve(self, part: Part, rows: Rows, index: Ints, device: Device) -> Floats:
        op, log_us = rows.op[index[0]], np.zeros(len(index))
        dims = rows.dims_of(op, index)
        elements = dims["rows"] * dims["cols"]
        dtypes = np.array([rows.dtype[row] for row in index.tolist()], object)
        for dtype in dict.fromkeys(dtypes.tolist()):
            own = dtypes == dtype
            log_us[own] = log_us_of(part, op, dtype, device, elements[own])
        return log_us

    def _kernels(self, part: Part, rows: Rows, device: Device) -> tuple[Floats, Ends, Answer]:
        """(kernel, its ends) in microseconds without a launch floor, and what it rests on.

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
        kernel, ends, answer = self._of_known(part, rows, known, away)

        def after(us: Floats, shortest: Floats | float) -> Floats:
            return at_least(us * ratio, changed, device, shortest)

        return after(kernel, 1.0), lambda: after(ends(), SHORTEST_ENDS), answer

    def _of_known(
        self, part: Part, rows: Rows, device: Device, changed: float
    ) -> tuple[Floats, Ends, Answer]:
        """The same, for intervals of a device that was `changed` by so much."""
        groups = list(rows.groups())
        by_trees = [each for each in groups if not has_curve(part, each[0])]
        columns, answer, support = _answered(part, rows, by_trees, device)
        answer = replace(
            answer,
            weight=answer.weight * kinship(changed),
            unlike=max(answer.unlike, unlikeness(changed)),
        )
        factors = answer.factors
        for op, index in groups:
            if has_curve(part, op):
                log_us = self._on_curve(part, rows, index, device)
                factors[index] = log_us - np.log(columns.base_us[index])
        kernel_us = _kernel_us(columns, factors, device)
        held = kernel_us
        if has_lattice(part):
            held = self._held(part, rows, device, kernel_us, columns.analysis)

        def ends() -> Floats:
            logs, framework = np.zeros((2, len(rows))), rows.in_framework()
            for op, index in groups:
                logs[:, index] = part.ends(
                    op, columns.work[index], answer, framework[index], support[index]
                )
            logs[0] -= answer.weight * columns.power_log
            logs[1] += _WARMER * answer.weight * columns.power_log
            logs[1] += _hotter(columns.analysis.flop, held, rows, device)
            us = _kernel_us(columns, factors + logs, device, SHORTEST_ENDS)
            return np.maximum(us * (held / kernel_us), _least_us(columns, device, SHORTEST_ENDS))

        return held, ends, answer

    def _held(
        self, part: Part, rows: Rows, device: Device, kernel_us: Floats, analysis: Analysis
    ) -> Floats:
        """`kernel_us` of products, near those of other sizes, no longer than in fp32, and of a
        batch no shorter than of one of its products.

        Others are asked about where their limits leave open which is longer, which is rare.
        """
        held = clipped(kernel_us, *limits_us(part, rows, device, unconstrained_us))
        index = may_be_widened(rows, device)
        if len(index):
            index = index[least_in_fp32_us(analysis.take(index), device) < held[index]]
            wide = self._in_fp32(rows.take(index), device)
            asked = np.flatnonzero(self._limits_us(wide, device)[0] < held[index])
            index = index[asked]
            held[index] = np.minimum(held[index], self._known_us(wide.take(asked), device))
        index, one = one_of_each(rows, self._alone(rows, device))
        if len(index):
            asked = np.flatnonzero(self._limits_us(one, device)[1] > held[index])
            index = index[asked]
            held[index] = np.maximum(held[index], self._known_us(one.take(asked), device))
        return held

    def _in_fp32(self, rows: Rows, device: Device) -> Rows:
        wide = as_fp32(rows)
        return with_same_kernels(wide, self._alone(wide, device))

    def _limits_us(self, rows: Rows, device: Device) -> tuple[Floats, Floats]:
        """(least, most) of what `_known_us` says; infinite and 0 where none were measured."""
        least, most = np.full(len(rows), np.inf), np.zeros(len(rows))
        for part, index in self._parts_of(rows):
            own = rows.take(index)
            least[index], most[index] = limits_us(part, own, device, unconstrained_us)
        return least, most

    def _known_us(self, rows: Rows, device: Device) -> Floats:
        """Microseconds of `rows` without a launch floor; 0 where none like them were measured."""
        times_us = np.zeros(len(rows))
        for part, index in self._parts_of(rows):
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


def _hotter(flop: Floats, known_us: Floats, rows: Rows, device: Device) -> Floats:
    """Logarithm by which `rows` inside a program are longer where the board has long been at its
    limit: tables are of calls that lasted for less than a second."""
    is_inside = rows.of_kinds(lambda kind: kind.timing == KERNEL, np.float64)
    return is_inside * log(np.maximum(hot_us(flop, rows.dtype, device) / known_us, 1.0))


def _kinship_of_change(device: Device) -> float:
    return kinship(distance(describe(device), describe(original(device))))


def unconstrained_us(part: Part, rows: Rows, device: Device) -> Floats:
    """Microseconds of `rows` without a launch floor, before anything holds them together."""
    columns, answer, _ = _answered(part, rows, list(rows.groups()), device)
    return _kernel_us(columns, answer.factors, device)


def _answered(
    part: Part, rows: Rows, groups: Groups, device: Device
) -> tuple[Columns, Answer, Floats]:
    """The columns of `rows`, the part's answer as far as measurements told of such rows, physics
    alone beyond, and how far that is.

    The same devices tell of them all.
    """
    columns = BUILDS[part.build](rows, device, part.tiles)
    known = part.known_to(rows.op[0], rows.dtype[0])
    support, sources = np.zeros(len(rows)), part.standing(known, device).sources
    is_alone = part.build in PHYSICS_ALONE and not sources
    for (op, dtype), index in rows.grouped(lambda kind: (kind.op, kind.dtype)):
        if not is_alone:
            support[index] = part.support(op, dtype, columns, index, sources)
    asked = [(op, index[support[index] > 0.0]) for op, index in groups]
    asked = [(op, index) for op, index in asked if len(index)]
    answer = part.log_factors(columns, asked, device, known, part.by_separate(rows, device))
    answer.factors[:] *= support
    unsupported = np.flatnonzero(support < 1.0)
    if (is_alone or part.name in WITH_PHYSICS) and len(unsupported):
        physics = matmul.tiled(rows.take(unsupported), columns.analysis.take(unsupported), device)
        busy_us = physics.kernel_us - physics.features["quantise_us"]
        off = np.log(busy_us / columns.base_us[unsupported])
        answer.factors[unsupported] += (1.0 - support[unsupported]) * off
    return columns, answer, support


def _kernel_us(
    columns: Columns, factors: Floats, device: Device, shortest: Floats | float = 1.0
) -> Floats:
    learned_us = columns.base_us * np.exp(factors) + columns.extra_us
    return np.maximum(learned_us, _least_us(columns, device, shortest))


def _least_us(columns: Columns, device: Device, shortest: Floats | float) -> Floats:
    return np.maximum(columns.bound_us, shortest * device.kernel_floor_us)


def _grounds(answer: Answer) -> str:
    if answer.weight >= 1.0:
        return "measurements of this device or one like it"
    if answer.weight > 0.0:
        return "measurements of similar devices"
    return "measurements of other devices" if answer.by_trees else DATASHEET
