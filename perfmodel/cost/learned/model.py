"""A fitted family behind the contract of kernel models: boosted trees on log(kernel / physics),
floors of hosts, intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, median
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.gpu.analysis import (
    AS_TIMED,
    DATASHEET,
    SHORTEST_ENDS,
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
    WITH_BACKWARD,
    Columns,
    Description,
    as_kernels,
    describe,
    distance,
    interval_blend,
    same_maker,
    similarity,
)
from perfmodel.cost.learned.lattice import limits_us
from perfmodel.hardware import Device
from perfmodel.hardware.catalogue import original
from perfmodel.ops.rows import KERNEL, Kind, Rows
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
_MOSTLY = 0.5
"""Of what measurements tell of a row, from which on its answer is called theirs."""
_SAME_KIND = {"bf16": "fp16", "tf32": "fp16"}
_ALIKE = {MATMUL: _SAME_KIND, "attention": {"fp16": "bf16"}, "experts": {"fp16": "bf16"}}
"""By family, types that are answered for as another: of equal bytes on equal units, or both."""
_ANYWHERE = (MATMUL, "convolution")
"""Families whose trees in fp16 tell of unlike boards, too: by those of cuDNN's convolutions
whole models of timm on RTX 3090 and 4090 were 7 to 14 % off, by physics 10 to 24."""
_FORWARD_ALONE = "physics times what measurements of forward kernels tell"
SHORT, LONG, BEYOND = "short", "long", "beyond"
"""Where an interval holds: up to twice its host's floor, above, beyond the largest row."""
ANY_OP, OTHERS = "*", ""
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
    """What measurements tell of rows of one op, dtype and timing on a device."""

    op: str
    near: str  # the most similar device of the maker that rows like these were measured on
    away: float  # its distance; infinite where there is none
    measured: Mapping[str, float]  # the range there, as `Fitted.measured` has it
    floor_us: float
    offset_us: float
    within_us: float  # of the offset, what is part of the shortest kernel too


class Answer(NamedTuple):
    """Per row of one op, dtype and timing: microseconds as they are timed, what they rest on."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    inside: Floats
    hot_us: Floats
    measured: Floats
    similar: float
    source: NDArray[np.object_]


def kind_of(dtype: str) -> str:
    """The dtype for which the same kernels are written."""
    return _SAME_KIND.get(dtype, dtype)


def place_of(us: Floats, floor_us: float) -> np.ndarray:
    """`[n]`: where the interval of each time lies, within what was measured."""
    return np.where(us < 2.0 * floor_us, SHORT, LONG).astype(object)


@dataclass(frozen=True)
class Part:
    """Trees over the features of rows and of their device, for some dtypes. Rows that are asked
    about are of one op, dtype and timing.

    A device that was not measured is taken for the most similar one of its maker; the answer is a
    geometric mean of the trees' and of physics: all of the trees for boards of a measured chip,
    physics alone where none of the maker was measured, and outside of what was measured.
    """

    fitted: Fitted
    trees: Mapping[str, Any]
    """Whose `predict` gives one answer per row of a matrix."""
    heuristic: Heuristic

    def answers_for(self, op: str, dtype: str, device: Device) -> bool:
        """Whether rows of `op` in `dtype` are the part's: in fp16, which but for products and
        convolutions is known of one library on two chips (vLLM's layers), on boards like those
        alone."""
        own, kinds = self.fitted, {dtype, _ALIKE.get(self.fitted.family, {}).get(dtype)}
        is_known = not kinds.isdisjoint(own.dtypes) and (op in own.ops or not own.ops)
        if not is_known or dtype != "fp16" or own.family in _ANYWHERE:
            return is_known
        asked, keys = describe(original(device)), (key.split("/") for key in own.measured)
        there = {name for name, _, kind in keys if kind == dtype}
        return any(similarity(distance(own.devices[name], asked)) > 0.0 for name in there)

    def cell(self, rows: Rows, own: Description) -> Cell:
        """What is known of `rows` on the device `own`; an op that was measured nowhere is taken for
        those that were, in its dtype. The floor is that of the device's own host, else the median
        of its maker's, else of all, else the usual one."""
        (op, dtype, _, timing), devices = rows.kinds[0][0], self.fitted.devices
        keys = [key.split("/") for key in self.fitted.measured]
        is_new = all(each != op for _, each, _ in keys)
        keys = [each for each in keys if (is_new or each[1] == op) and each[2] == kind_of(dtype)]
        near = [(distance(devices[each], own), each) for each, *_ in keys]
        near = [each for each in near if same_maker(devices[each[1]], own)]
        away, name = min(near, default=(np.inf, OTHERS))
        there = [self.fitted.measured["/".join(each)] for each in keys if each[0] == name]
        measured = {each: min(one[each] for one in there) for each in (there or [{}])[0]}
        if there:
            measured["work"] = max(each["work"] for each in there)
        floor_us, offset_us = floors_of(rows)[:, 0].tolist()
        named = {f"{each}/{timing}/{op}/{dtype}": each for each in devices}
        known = {each: us for key, each in named.items() if (us := self.fitted.floors.get(key))}
        if known:
            host = [us for each, us in known.items() if distance(devices[each], own) < SAME]
            maker = [us for each, us in known.items() if same_maker(devices[each], own)]
            floor_us = median(np.array(host or maker or [*known.values()]))
            usual_us = _OFFSET_FRAC * floor_us if timing == SINGLE_CALL else offset_us
            offset_us = min(usual_us, 0.9 * floor_us)
        within_us = 0.0 if timing == SINGLE_CALL else offset_us  # calls one by one add a host's
        return Cell(op, name, away, measured, floor_us, offset_us, within_us)

    def kernels(self, columns: Columns, device: Device, cell: Cell) -> tuple[Floats, Floats]:
        """(times `[n]` without a floor, how far each row lies within what was measured, 0 to 1);
        physics answers for the rest."""
        base_us = columns.base_us
        if not cell.near:
            return at_least(base_us + columns.extra_us, columns.analysis, device), 0.0 * base_us
        near, alike = self.fitted.devices[cell.near], similarity(cell.away)
        matrix = columns.matrix((*self.fitted.features, *COLUMNS), near)
        learned = self.trees[OTHERS].predict(matrix)
        if cell.near in self.trees and alike > 0.0:
            alone = self.trees[cell.near].predict(matrix[:, : len(self.fitted.features)])
            learned = learned + (1.0 - _SHARED_FRAC) * alike * (alone - learned)
        below = np.log(cell.measured["base_us"] / np.maximum(base_us, 1e-300))
        for name in NOT_BELOW.get(self.fitted.family, ()):
            below = np.maximum(below, cell.measured[name] - columns.features[name])
        support = np.clip(1.0 - below / _FADES_OVER, 0.0, 1.0)
        share = 1.0 - (1.0 - self.fitted.share) * (1.0 - alike)
        us = base_us * np.exp(support * share * learned) + columns.extra_us
        least = max(1.0 - cell.within_us / device.kernel_floor_us, 0.0)
        return at_least(us, columns.analysis, device, least), support

    def intervals(
        self, cell: Cell, columns: Columns, support: Floats, us: Floats, changed: float = 0.0
    ) -> Floats:
        """Logarithms (low, high) `[2, n]` of 90 % intervals around `us`, on a device that was
        `changed` by so much. Where physics answers they are at least as wide as its own."""
        ends, spread = np.zeros((2, len(us))), np.log(self.heuristic.spread)
        where = place_of(us, cell.floor_us)
        own = np.where(columns.work <= cell.measured.get("work", 0.0), where, BEYOND)
        blend = max(interval_blend(cell.away), interval_blend(changed))
        for name, weight, place in ((OTHERS, blend, where), (cell.near, 1.0 - blend, own)):
            if weight > 0.0:
                known = {each: self._interval(cell.op, name, each) for each in set(place)}
                ends += weight * np.array([known[each] for each in place]).T
        physics = np.minimum(ends[0], -spread), np.maximum(ends[1], spread)
        return np.asarray(ends + (1.0 - support) * (np.array(physics) - ends))

    def _interval(self, op: str, name: str, where: str) -> tuple[float, float]:
        """That of the op on the device, else of what comes nearest to it."""
        for device in (name, OTHERS):
            for key in (f"{each}/{device}/{at}" for each in (op, ANY_OP) for at in (where, LONG)):
                if (found := self.fitted.intervals.get(key)) is not None:
                    return found
        return _USUAL_INTERVAL

    def answer(self, rows: Rows, device: Device) -> Answer:
        """Of a device whose values were changed: the original's times, times what physics makes of
        the change."""
        known, own = original(device), describe(original(device))
        cell, columns = self.cell(rows, own), FEATURES[self.fitted.family](rows, known)
        (kernel_us, support), analysis = self.kernels(columns, known, cell), columns.analysis
        if self.fitted.family == MATMUL or self.fitted.name == _BY_ROWS:
            kernel_us = np.clip(kernel_us, *limits_us(self._lattice_us, id(self), rows, known))
        changed = 0.0 if known is device else distance(describe(device), own)
        if known is not device:
            before, analysis = analysis, self.heuristic.analyse(rows, device)
            ratio = at_least(analysis.kernel_us, analysis, device)
            ratio = ratio / at_least(before.kernel_us, before, known)
            kernel_us = at_least(kernel_us * ratio, analysis, device)
        us = measured_us(kernel_us, cell.floor_us, cell.offset_us)
        untold = rows.of_kinds(lambda kind: kind.direction != "fwd", bool)
        untold &= self.fitted.family not in WITH_BACKWARD
        ends = np.exp(self.intervals(cell, columns, support * ~untold, us, changed))
        similar = similarity(cell.away) * similarity(changed)
        shortest = np.where(kernel_us <= device.kernel_floor_us, SHORTEST_ENDS, 1.0)
        low, high = np.minimum(ends[0], shortest[0]), np.maximum(ends[1], shortest[1])
        in_program = rows.of_kinds(lambda kind: kind.timing == KERNEL, bool)
        hot = np.where(in_program, hot_us(analysis.flop, rows.dtype, device), 0.0)
        low_us = np.maximum(us * low, np.minimum(us, analysis.bound_us))
        inside = (columns.work <= cell.measured.get("work", 0.0)).astype(np.float64)
        of_what = "other devices" if similar == 0.0 else "similar devices"
        said = f"measurements of {of_what if similar < 1.0 else 'this device or one like it'}"
        source = np.where(untold, _FORWARD_ALONE, said).astype(object)
        source = np.where(support > _MOSTLY, source, DATASHEET)
        high_us = us * high * np.maximum(hot / us, 1.0)
        measured = similarity(cell.away) * support  # a changed device takes its original's times
        return Answer(us, low_us, high_us, inside, hot, measured, similar, source)

    def _lattice_us(self, rows: Rows, device: Device) -> Floats:
        columns = FEATURES[self.fitted.family](rows, device)
        return self.kernels(columns, device, self.cell(rows, describe(device)))[0]


@dataclass(frozen=True)
class Learned:
    """Durations of one family: the part trained on a row's dtype, else the heuristic."""

    name: str
    heuristic: Heuristic
    parts: tuple[Part, ...]

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; raises `ModelError` on impossible rows."""
        return self._answered(as_kernels(rows), device)[0]

    def _answered(self, rows: Rows, device: Device) -> tuple[Estimate, list[tuple[Ints, Answer]]]:
        us, answers, source = np.zeros((3, len(rows))), [], np.full(len(rows), DATASHEET, object)
        known, left = np.zeros(len(rows)), np.ones(len(rows), bool)

        def place(kind: Kind) -> tuple[int, str, str, str]:
            own = (at for at, part in enumerate(self.parts) if part.answers_for(*kind[:2], device))
            at = next(own, -1)
            return (at, kind.op, kind.dtype, kind.timing) if at >= 0 else (at, "", "", "")

        for (at, *_), index in rows.grouped(place):
            if at < 0:
                found = self.heuristic.estimate(rows.take(index), device)
                us[:, index] = found.duration_us, found.low_us, found.high_us
            else:
                answer = self.parts[at].answer(rows.take(index), device)
                us[:, index], known[index], left[index] = answer[:3], answer.measured, False
                source[index] = answer.source
                answers.append((index, answer))
        name = self.heuristic.name if left.all() else self.name
        return Estimate(us[0], us[1], us[2], name, source, known, left), answers

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Why, per row: the heuristic's reasons around the learned duration.

        Terms: what measurements made of the heuristic, how similar the device is to those that they
        are of, and whether the row's work lies among theirs (1) or not (0).
        """
        rows = as_kernels(rows)
        estimate, answers = self._answered(rows, device)
        why = self.heuristic.explain(rows, device)
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
                    "similar_frac": found.similar,
                    "inside_domain": float(found.inside[at]),
                }
                if found.hot_us[at] > us:
                    more["hot_us"] = float(found.hot_us[at])
                why[row] = replace(own, terms=own.terms | more, formula=FORMULA)
        return why
