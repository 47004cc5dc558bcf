"""A fitted family behind the contract of kernel models: boosted trees on log(kernel / physics),
floors of hosts, intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ints, clipped, median
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu.analysis import (
    AS_TIMED,
    DATASHEET,
    SHORTEST_ENDS,
    TIMINGS,
    Heuristic,
    at_least,
    floors_of,
    measured_us,
)
from perfmodel.cost.gpu.rates import hot_us
from perfmodel.cost.learned.features import (
    COLUMNS,
    FEATURES,
    NOT_BELOW,
    SAME,
    Columns,
    Description,
    as_layers,
    describe,
    distance,
    interval_blend,
    same_maker,
    similarity,
    transferred_log_factors,
)
from perfmodel.cost.learned.lattice import limits_us
from perfmodel.hardware import Device
from perfmodel.hardware.originals import original
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.vocabulary.matmul import MATMUL

FORMULA = (
    "kernel = max(heuristic x what trees learned of its error on measurements, bound_us, "
    f"device.kernel_floor_us); {AS_TIMED}"
)
MAX_LOG = 50.0
"""Above the logarithm of every factor that kernels can be off by."""
SINGLE_CALL = "event_single_call"
_OFFSET_FRAC = 0.5
"""Of the floor of a single call, what a long kernel shows as well: the host's launch."""
_SHARED_FRAC = 0.5
"""Of the trees that all devices share in answers for a device with trees of its own."""
_FADES_OVER = np.log(4.0)
"""Logarithm below the measured range over which what was learned gives way to physics."""
_WARMER = 0.5
"""A board at its power limit may be cool and run up to its peak, for which measurements of one
session are no guide; or warmer than theirs, by half as much (assumed)."""
_SAME_KIND = {"bf16": "fp16", "tf32": "fp16"}
SHORT, LONG, BEYOND = "short", "long", "beyond"
"""Where an interval holds: up to twice its host's floor, above, beyond the largest row."""
ANY_OP, OTHERS = "*", ""
_SIMILAR = "similar devices"
_USUAL_INTERVAL = (-1.0, 1.0)
_BY_ROWS = "vector_rows"
"""The part of norms and softmax in fp32, whose times rise with every dim as those of products do.
In 16 bits two boards tell of few lengths of rows, and the lattice between them is a guess: layer
norms of an H100, half given, 1.4 % off, 7.2 with it."""


class File(msgspec.Struct, frozen=True):
    """A file of trees, or of a user's regressor: then with its class and the range of targets."""

    file: str
    sha256: str
    regressor: str = ""
    low: float = 0.0
    high: float = 0.0


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a fit found but for the trees, as the manifest has it. Keys are joined by `/`."""

    name: str
    family: str
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    """Those that it answers for; none: all of its family."""
    features: tuple[str, ...]
    devices: dict[str, dict[str, float]]
    share: float = 1.0
    """Of the trees in answers for devices that were not measured; the rest is physics'."""
    measured: dict[str, dict[str, float]] = {}
    """`device/op/kind of dtype`: least `base_us` and features of `NOT_BELOW`, largest `work`."""
    floors: dict[str, float] = {}
    """`device/timing/op/dtype` to where short calls of its host pile up."""
    intervals: dict[str, tuple[float, float]] = {}
    """`op/device/where` to 90 % of log(measured / predicted): of any op, of devices left out."""
    files: dict[str, File] = {}
    """Of the trees that all devices share, and by device of those with their own."""


class Cell(NamedTuple):
    """Rows `at` of one op, dtype and timing, and the most similar device that tells of them."""

    op: str
    dtype: str
    timing: str
    at: Ints
    near: str
    away: float  # infinite where none of the maker was measured


class Answer(NamedTuple):
    """Per row of a part: microseconds as they are timed, and what they rest on."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    similar: Floats
    inside: Floats
    hot_us: Floats
    source: str


def kind_of(dtype: str) -> str:
    """The dtype for which the same kernels are written."""
    return _SAME_KIND.get(dtype, dtype)


def place_of(us: Floats, floor_us: Floats) -> np.ndarray:
    """`[n]`: where the interval of each time lies, within what was measured."""
    return np.where(us < 2.0 * floor_us, SHORT, LONG).astype(object)


@dataclass(frozen=True)
class Part:
    """Trees over the features of rows and of their device, for some dtypes.

    A device that was not measured is taken for the most similar one of its maker; the answer is a
    geometric mean of the trees' and of physics: all of the trees for boards of a measured chip,
    physics alone where none of the maker was measured, and outside of what was measured.
    """

    fitted: Fitted
    trees: Mapping[str, Any]
    """Whose `predict` gives one answer per row of a matrix."""
    heuristic: Heuristic

    def answers_for(self, op: str, dtype: str) -> bool:
        """Whether rows of `op` in `dtype` are the part's."""
        own = self.fitted
        is_known = dtype in own.dtypes or (own.family == MATMUL and kind_of(dtype) in own.dtypes)
        return is_known and (op in own.ops or not own.ops)

    def cells(self, rows: Rows, own: Description) -> list[Cell]:
        """`rows` by op, dtype and timing, each with the most similar device of the maker that rows
        like these were measured on: of all ops for one that was measured nowhere."""
        devices, cells = self.fitted.devices, []
        known = [key.split("/") for key in self.fitted.measured]
        measured = {op for _, op, _ in known}
        kinds = rows.grouped(lambda kind: (kind.op, kind.dtype, kind.timing))
        for (op, dtype, timing), at in kinds:
            ops = {op} & measured or measured
            names = {name for name, each, kind in known if each in ops and kind == kind_of(dtype)}
            near = [(distance(devices[name], own), name) for name in names]
            near = [each for each in near if same_maker(devices[each[1]], own)]
            away, name = min(near, default=(np.inf, OTHERS))
            cells.append(Cell(op, dtype, timing, at, name, away))
        return cells

    def kernels(self, columns: Columns, device: Device, cells: list[Cell]) -> tuple[Floats, Floats]:
        """(times `[n]` without a floor, how far each row lies within what was measured, 0 to 1);
        physics answers for the rest."""
        support, share = np.zeros((2, len(columns.base_us)))
        for cell in cells:
            support[cell.at] = self._support(cell, columns) if cell.near else 0.0
            share[cell.at] = 1.0 - (1.0 - self.fitted.share) * (1.0 - similarity(cell.away))
        learned = self._learned(columns, cells, describe(device))
        factors = support * (share * learned + (1.0 - share) * columns.power_log)
        us = columns.base_us * np.exp(factors) + columns.extra_us
        return at_least(us, columns.analysis, device), support

    def _learned(self, columns: Columns, cells: list[Cell], own: Description) -> Floats:
        """Log factors `[n]` of the trees; 0 where no device of the maker was measured."""
        factors, width = np.zeros(len(columns.base_us)), len(self.fitted.features)
        cells = [cell for cell in cells if cell.near]
        if not cells:
            return factors
        matrix = columns.matrix((*self.fitted.features, *COLUMNS), own)
        for cell in cells:
            near = self.fitted.devices[cell.near]
            matrix[cell.at, width:] = [near[name] for name in COLUMNS]
        asked = np.concatenate([cell.at for cell in cells])
        factors[asked] = self.trees[OTHERS].predict(matrix[asked])
        for name in {cell.near for cell in cells} & set(self.trees):
            alike = [cell for cell in cells if cell.near == name and similarity(cell.away) > 0.0]
            if alike:
                at = np.concatenate([cell.at for cell in alike])
                alone = self.trees[name].predict(matrix[at, :width])
                weight = (1.0 - _SHARED_FRAC) * similarity(alike[0].away)
                factors[at] += weight * (alone - factors[at])
        on_chip_frac = np.broadcast_to(columns.on_chip_frac, len(factors))
        for cell in cells:
            if cell.away >= SAME:
                near, at = self.fitted.devices[cell.near], cell.at
                factors[at] = transferred_log_factors(factors[at], on_chip_frac[at], near, own)
        return factors

    def _range(self, cell: Cell) -> Mapping[str, float]:
        """What was measured on the nearest device; of others for an op measured nowhere."""
        known, kind = self.fitted.measured, kind_of(cell.dtype)
        if (found := known.get(f"{cell.near}/{cell.op}/{kind}")) is not None:
            return found
        others = [known[key] for key in known if key.split("/")[::2] == [cell.near, kind]]
        least = {name: min(each[name] for each in others) for name in others[0]}
        return least | {"work": max(each["work"] for each in others)}

    def _support(self, cell: Cell, columns: Columns) -> Floats:
        least = self._range(cell)
        below = np.log(least["base_us"] / np.maximum(columns.base_us[cell.at], 1e-300))
        for name in NOT_BELOW.get(self.fitted.family, ()):
            below = np.maximum(below, least[name] - columns.features[name][cell.at])
        return clipped(1.0 - below / _FADES_OVER, 0.0, 1.0)

    def _is_inside(self, cell: Cell, columns: Columns) -> Floats:
        most = self._range(cell)["work"] if cell.near else 0.0
        return (columns.work[cell.at] <= most).astype(np.float64)

    def floors(self, rows: Rows, cells: list[Cell], own: Description) -> Floats:
        """(floor, offset) `[2, n]` microseconds: of the device's own host, else the median of its
        maker's, else of all, else the usual ones."""
        floors, devices = floors_of(rows), self.fitted.devices
        for cell in cells:
            keys = {f"{name}/{cell.timing}/{cell.op}/{cell.dtype}": name for name in devices}
            known = {name: us for key, name in keys.items() if (us := self.fitted.floors.get(key))}
            if known:
                host = [us for name, us in known.items() if distance(devices[name], own) < SAME]
                maker = [us for name, us in known.items() if same_maker(devices[name], own)]
                floor_us = median(np.array(host or maker or [*known.values()]))
                usual = TIMINGS[cell.timing].offset_us
                offset_us = _OFFSET_FRAC * floor_us if cell.timing == SINGLE_CALL else usual
                floors[:, cell.at] = [[floor_us], [min(offset_us, 0.9 * floor_us)]]
        return floors

    def intervals(
        self, cells: list[Cell], columns: Columns, support: Floats, times: Floats, changed: float
    ) -> Floats:
        """Logarithms (low, high) `[2, n]` of 90 % intervals around `times` (microseconds, and their
        floors `[2, n]`), on a device that was `changed` by so much. Where physics answers they are
        at least as wide as its own."""
        us, floor_us = times
        ends, spread = np.zeros((2, len(us))), np.log(self.heuristic.spread)
        for cell in cells:
            where = place_of(us[cell.at], floor_us[cell.at])
            blend = max(interval_blend(cell.away), interval_blend(changed))
            for name, weight in ((OTHERS, blend), (cell.near, 1.0 - blend)):
                if weight > 0.0:
                    inside = self._is_inside(cell, columns) > 0.0
                    place = where if name == OTHERS else np.where(inside, where, BEYOND)
                    known = {each: self._interval(cell.op, name, each) for each in set(place)}
                    ends[:, cell.at] += weight * np.array([known[each] for each in place]).T
        physics = np.minimum(ends[0], -spread), np.maximum(ends[1], spread)
        ends += (1.0 - support) * (np.array(physics) - ends)
        return ends

    def _interval(self, op: str, name: str, where: str) -> tuple[float, float]:
        for device in (name, OTHERS):
            for key in (f"{each}/{device}/{at}" for each in (op, ANY_OP) for at in (where, LONG)):
                if (found := self.fitted.intervals.get(key)) is not None:
                    return found
        return _USUAL_INTERVAL

    def answer(self, rows: Rows, device: Device) -> Answer:
        """Of a device whose values were changed: the original's times, times what physics makes of
        the change."""
        known, own = original(device), describe(original(device))
        cells, columns = self.cells(rows, own), FEATURES[self.fitted.family](rows, known)
        (kernel_us, support), analysis = self.kernels(columns, known, cells), columns.analysis
        if self.fitted.family == MATMUL or self.fitted.name == _BY_ROWS:
            kernel_us = clipped(kernel_us, *limits_us(self._lattice_us, id(self), rows, known))
        changed = 0.0 if known is device else distance(describe(device), own)
        if known is not device:
            before, analysis = analysis, self.heuristic.analyse(rows, device)
            ratio = at_least(analysis.kernel_us, analysis, device)
            ratio = ratio / at_least(before.kernel_us, before, known)
            kernel_us = at_least(kernel_us * ratio, analysis, device)
        floor_us, offset_us = self.floors(rows, cells, own)
        us = measured_us(kernel_us, floor_us, offset_us)
        times = np.array([us, floor_us])
        low, high = self.intervals(cells, columns, support, times, changed)
        similar, inside = np.zeros((2, len(rows)))
        for cell in cells:
            similar[cell.at] = similarity(cell.away) * similarity(changed)
            inside[cell.at] = self._is_inside(cell, columns)
        ends = np.exp([low, high] + similar * columns.power_log * np.array([[-1.0], [_WARMER]]))
        shortest = np.where(kernel_us <= device.kernel_floor_us, SHORTEST_ENDS, 1.0)
        ends = np.array([np.minimum(ends[0], shortest[0]), np.maximum(ends[1], shortest[1])])
        in_program = rows.of_kinds(lambda kind: kind.timing == KERNEL, bool)
        hot = np.where(in_program, hot_us(analysis.flop, rows.dtype, device), 0.0)
        low_us = np.maximum(us * ends[0], np.minimum(us, analysis.bound_us))
        high_us = us * ends[1] * np.maximum(hot / us, 1.0)
        source = "measurements of other devices" if any(cell.near for cell in cells) else DATASHEET
        if (similar > 0.0).any():
            is_own = (similar >= 1.0).all()
            source = f"measurements of {'this device or one like it' if is_own else _SIMILAR}"
        return Answer(us, low_us, high_us, similar, inside, hot, source)

    def _lattice_us(self, rows: Rows, device: Device) -> Floats:
        cells = self.cells(rows, describe(device))
        return self.kernels(FEATURES[self.fitted.family](rows, device), device, cells)[0]


@dataclass(frozen=True)
class Learned:
    """Durations of one family: the part trained on a row's dtype, else the heuristic."""

    name: str
    heuristic: Heuristic
    parts: tuple[Part, ...]

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; raises `ModelError` on impossible rows."""
        return self._answered(as_layers(rows), device)[0]

    def _answered(self, rows: Rows, device: Device) -> tuple[Estimate, list[tuple[Ints, Answer]]]:
        us = np.zeros((3, len(rows)))
        similar, left, answers, sources = np.zeros(len(rows)), np.ones(len(rows), bool), [], set()

        def place(op: str, dtype: str) -> int:
            own = (at for at, part in enumerate(self.parts) if part.answers_for(op, dtype))
            return next(own, -1)

        for at, index in rows.grouped(lambda kind: place(kind.op, kind.dtype)):
            if at < 0:
                found = self.heuristic.estimate(rows.take(index), device)
                us[:, index] = found.duration_us, found.low_us, found.high_us
            else:
                answer = self.parts[at].answer(rows.take(index), device)
                us[:, index], similar[index], left[index] = answer[:3], answer.similar, False
                answers.append((index, answer))
            sources.add(found.source if at < 0 else answer.source)
        name = self.heuristic.name if left.all() else self.name
        source = ", ".join(sorted(sources))
        return Estimate(us[0], us[1], us[2], name, source, similar, left), answers

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row: the heuristic's reasons around the learned duration.

        Terms: what measurements made of the heuristic, how similar the device is to those that they
        are of, and whether the row's work lies among theirs (1) or not (0).
        """
        rows = as_layers(rows)
        (estimate, answers), why = (
            self._answered(rows, device),
            self.heuristic.explain(rows, device),
        )
        for row, us in enumerate(estimate.duration_us.tolist()):
            own = why[row]
            used_frac = min(1.0, own.terms["bound_us"] / us)
            terms = own.terms | {"heuristic_us": own.duration_us}
            why[row] = replace(own, duration_us=us, utilisation_frac=used_frac, terms=terms)
        for index, found in answers:
            for at, row in enumerate(index.tolist()):
                own, us = why[row], float(found.duration_us[at])
                more = {
                    "learned_factor": us / own.terms["heuristic_us"],
                    "kinship_frac": float(found.similar[at]),
                    "inside_domain": float(found.inside[at]),
                }
                if found.hot_us[at] > us:
                    more["hot_us"] = float(found.hot_us[at])
                why[row] = replace(own, terms=own.terms | more, formula=FORMULA)
        return why
