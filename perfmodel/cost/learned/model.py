"""A fitted family behind the contract of kernel models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, clipped
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu.heuristic import (
    AS_TIMED,
    DATASHEET,
    SHORTEST_ENDS,
    Heuristic,
    at_least,
    measured_us,
)
from perfmodel.cost.gpu.matmul import QUANTISED
from perfmodel.cost.gpu.rates import hot_us
from perfmodel.cost.learned.devices import describe, distance, similarity
from perfmodel.cost.learned.lattice import has_lattice, limits_us
from perfmodel.cost.learned.part import Part
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original
from perfmodel.ops.rows import KERNEL, Rows

FORMULA = (
    "kernel = max(heuristic x what trees learned of its error on measurements, bound_us, "
    f"device.kernel_floor_us); {AS_TIMED}"
)
_WARMER = 0.5
"""A board at its power limit may be cool and run up to its peak, for which measurements of one
session are no guide; or warmer than theirs, by half as much (assumed)."""
_SIMILAR = "measurements of similar devices"


class _Answer(NamedTuple):
    """Per row of a part; microseconds as they are timed."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    similar: Floats
    inside: Floats
    hot_us: Floats
    source: str


@dataclass(frozen=True)
class Learned:
    """Durations of one family: the part trained on a row's dtype, else the heuristic."""

    name: str
    heuristic: Heuristic
    parts: tuple[Part, ...]

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; raises `ModelError` on impossible rows."""
        rows = as_layers(rows)
        us, low, high, similar = np.zeros((4, len(rows)))
        left, sources = np.ones(len(rows), bool), set()
        for part, index in self._parts_of(rows):
            found = _answer(part, rows.take(index), device)
            us[index], low[index], high[index] = found[:3]
            similar[index], left[index] = found.similar, False
            sources.add(found.source)
        if left.any():
            index = np.flatnonzero(left)
            estimated = self.heuristic.estimate(rows.take(index), device)
            us[index], low[index] = estimated.duration_us, estimated.low_us
            high[index] = estimated.high_us
            sources.add(estimated.source)
        name = self.heuristic.name if left.all() else self.name
        return Estimate(us, low, high, name, ", ".join(sorted(sources)), similar, left)

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row: the heuristic's reasons around the learned duration.

        Terms: what measurements made of the heuristic, how similar the device is to those that they
        are of, and whether the row's work lies among theirs (1) or not (0).
        """
        us, rows = self.estimate(rows, device).duration_us.tolist(), as_layers(rows)
        why = self.heuristic.explain(rows, device)
        more = [{"heuristic_us": each.duration_us} for each in why]
        formulas = [each.formula for each in why]
        for part, index in self._parts_of(rows):
            found = _answer(part, rows.take(index), device)
            for at, row in enumerate(index.tolist()):
                more[row]["learned_factor"] = us[row] / why[row].duration_us
                more[row]["kinship_frac"] = float(found.similar[at])
                more[row]["inside_domain"] = float(found.inside[at])
                if found.hot_us[at] > us[row]:
                    more[row]["hot_us"] = float(found.hot_us[at])
                formulas[row] = FORMULA
        return [
            replace(
                each,
                duration_us=took,
                utilisation_frac=min(1.0, each.terms["bound_us"] / took),
                terms=each.terms | own,
                formula=formula,
            )
            for each, took, own, formula in zip(why, us, more, formulas, strict=True)
        ]

    def _parts_of(self, rows: Rows) -> Iterator[tuple[Part, Ints]]:
        """(a part, the rows that it answers for)."""

        def places(op: str, dtype: str) -> list[int]:
            return [at for at, part in enumerate(self.parts) if part.answers_for(op, dtype)]

        for at, index in rows.grouped(lambda kind: tuple(places(kind.op, kind.dtype)[:1])):
            if at:
                yield self.parts[at[0]], index


def as_layers(rows: Rows) -> Rows:
    """`rows`, whose products of two matrices are layers without a bias, which run the same kernels;
    in fewer bits than 16 batches of one too."""

    def is_product(op: str, dtype: str) -> bool:
        return op == "mm" or (op == "bmm" and dtype in QUANTISED)

    index = np.flatnonzero(rows.of_kinds(lambda kind: is_product(kind.op, kind.dtype), bool))
    batch = rows.dims.get("b", np.full(len(rows), np.nan))
    ops = np.array(rows.op, object)
    for op in set(ops[index]):
        rows.dims_of(op, np.flatnonzero(ops == op))  # errors name the op that was asked about
    index = index[(ops[index] == "mm") | (batch[index] == 1.0)]
    if not len(index):
        return rows
    bias = rows.dims.get("bias", np.full(len(rows), np.nan)).copy()
    ops[index], bias[index] = "linear", 0.0
    return replace(rows, op=tuple(ops.tolist()), dims={**rows.dims, "bias": bias})


def _answer(part: Part, rows: Rows, device: Device) -> _Answer:
    """What `part` says of `rows`. Of a device whose values were changed: the original's times,
    times what physics makes of the change."""
    known, heuristic = original(device), part.heuristic
    own = describe(known)
    cells = part.cells(rows, own)
    found = part.kernels(rows, known, cells)
    kernel_us, analysis = found.us, found.columns.analysis
    if has_lattice(part):
        kernel_us = clipped(kernel_us, *limits_us(part, rows, known))
    changed = 0.0 if known is device else distance(describe(device), own)
    if known is not device:
        after, before = heuristic.analyse(rows, device), heuristic.analyse(rows, known)
        ratio = at_least(after.kernel_us, after, device) / at_least(before.kernel_us, before, known)
        kernel_us, analysis = at_least(kernel_us * ratio, after, device), after
    floor_us, offset_us = part.floors(rows, cells, own)
    us = measured_us(kernel_us, floor_us, offset_us)
    low, high = part.intervals(rows, found, us, floor_us, changed)
    similar, inside = np.zeros((2, len(rows)))
    for cell in cells:
        similar[cell.at] = similarity(cell.away) * similarity(changed)
        inside[cell.at] = part.is_inside(cell, found.columns)
    low_us = us * np.exp(low - similar * found.columns.power_log)
    high_us = us * np.exp(high + _WARMER * similar * found.columns.power_log)
    is_shortest = kernel_us <= device.kernel_floor_us
    low_us = np.where(is_shortest, np.minimum(low_us, us * SHORTEST_ENDS[0]), low_us)
    high_us = np.where(is_shortest, np.maximum(high_us, us * SHORTEST_ENDS[1]), high_us)
    in_program = rows.of_kinds(lambda kind: kind.timing == KERNEL, bool)
    hot = np.where(in_program, hot_us(analysis.flop, rows.dtype, device), 0.0)
    low_us = np.maximum(low_us, np.minimum(us, analysis.bound_us))
    high_us = np.where(hot > us, high_us * hot / us, high_us)
    return _Answer(us, low_us, high_us, similar, inside, hot, _source(part, similar, cells))


def _source(part: Part, similar: Floats, cells: list) -> str:  # type: ignore[type-arg]
    if (similar >= 1.0).all():
        return "measurements of this device or one like it"
    if (similar > 0.0).any():
        return _SIMILAR
    by_trees = part.fitted.share > 0.0 and any(cell.near for cell in cells)
    return "measurements of other devices" if by_trees else DATASHEET
