"""One fitted part of a family: trees over figures, and what makes their answers safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, clipped
from perfmodel.cost.basis import OfDevice
from perfmodel.cost.learned.corrections import (
    NONE,
    Extension,
    Gains,
    Growth,
    carried_log_factors,
    extrapolated_log_factors,
    places_of,
)
from perfmodel.cost.learned.devices import (
    COLUMNS,
    Description,
    describe,
    distance,
    kinship,
    nearest,
    same_maker,
    unlikeness,
    usual,
)
from perfmodel.cost.learned.features import Columns
from perfmodel.cost.learned.forest import Ensemble
from perfmodel.cost.learned.same_kernels import same_kernels_dtype
from perfmodel.cost.learned.tiles import Tiles
from perfmodel.hardware import Device
from perfmodel.ops.rows import FRAMEWORKS, Kind, Rows

Groups: TypeAlias = Sequence[tuple[str, Ints]]
Places: TypeAlias = tuple[int, ...]

AS_KIND = {"matmul": ("tf32",)}
"""Per build, dtypes that were measured nowhere, for which kernels are those of their kind: matrix
units, the same tiles and loads, at a rate of their own."""
_WIDER_BEYOND = 1.3
"""Intervals of unmeasured devices outside the domain against those within it (assumed)."""
OWN_FRAC = 0.5
"""Of a device's own trees in the answers for it; the rest is of the trees that all share."""
_FADES_OVER = np.log(4.0)
"""Logarithm of time below the shortest kernels told, or of a figure below those that were measured,
over which what was learned is left behind."""


@dataclass(frozen=True)
class Spread:
    """90 % intervals as logarithms of measured over predicted: `low` to `high`, by situation.

    `seen` within the training domain on a measured device, `beyond` outside the domain, `unseen`
    on a device left out that the trees answer for, `physics` where physics answers alone.
    """

    seen: tuple[float, float]
    beyond: tuple[float, float]
    unseen: tuple[float, float]
    physics: tuple[float, float]
    domain: tuple[float, float]
    """Least and largest log(work) of training."""
    centre: float
    """Logarithm by which physics is off: the median over chips of their medians."""
    least_us: float
    """Base of the shortest kernels that measurements told: their floors hide shorter ones."""


@dataclass(frozen=True)
class Answer:
    """Log factors `[n]` over the base, and what they rest on.

    `weight` is how near the device is to a measured one (0 to 1), `unlike` how far its interval is
    that of a device left out, `by_trees` whether trees had a say, `is_shown` whether the maker has
    two measured chips at least, so that leaving one out shows how far trees hold.
    """

    factors: Floats
    weight: float
    unlike: float
    by_trees: bool
    is_shown: bool = True


@dataclass(frozen=True)
class Standing:
    """Where a device stands among those that tell of some rows."""

    description: Description
    near: Description | None = None
    """The most similar of its maker; None where there is none of its maker."""
    away: float = np.inf
    """How far that is."""
    places: Places = ()
    """Of that device."""
    sources: Places = ()
    """Of those that an answer rests on: that device and those that are alike."""
    is_shown: bool = False
    """Whether there are others of its maker."""
    growths: Mapping[str, Growth] = field(default_factory=dict)
    slopes: Mapping[str, float] = field(default_factory=dict)
    """By op, how that device goes on and what it gains."""


@dataclass(frozen=True)
class SeparateTrees:
    """Trees that answer alone for the rows of one framework that others outnumber, which would else
    decide.

    `framework` is its place in `FRAMEWORKS` from 1 on, `kinds` are the ops and kinds of dtype that
    it ran, `places` those of the devices it ran on.
    """

    trees: Ensemble
    framework: int
    kinds: frozenset[tuple[str, str]]
    places: Places

    def ran(self, kind: Kind) -> bool:
        """Whether rows like these are among those of the framework."""
        return (kind.op, same_kernels_dtype(kind.dtype)) in self.kinds


@dataclass(frozen=True)
class Part:
    """Trees over the figures of rows and of their device, for some dtypes.

    Of a device that was not measured, the answer is a geometric mean of the trees' and of physics,
    in the shares that came nearest to chips left out of the fit: `share` of the trees, all of them
    for boards of a measured chip, nothing for makers of whom nothing was measured. The trees are
    asked about it as the most similar measured device of its maker, or with its own figures, and
    physics includes what it is off on measured chips (`Spread.centre`), each where that was nearer.
    Behind a slower memory less of both shows (`carried_log_factors`).
    """

    name: str
    build: str
    """Which function gives the columns (`matmul stream convolution attention`)."""
    dtypes: tuple[str, ...]
    """The dtypes it was trained on; others but those of `AS_KIND` have the heuristic."""
    ops: tuple[str, ...]
    """The ops that it answers for; none means all of its family."""
    figures: tuple[str, ...]
    trees: Ensemble
    """Anything with `predict` of a matrix."""
    own: Mapping[int, Ensemble]
    """By place, trees over the figures of rows alone, of devices with many rows."""
    separate: tuple[SeparateTrees, ...]
    share: float
    """Of the trees in answers for chips that were not measured, 0 to 1."""
    as_nearest: bool
    """Whether those are asked about as the most similar measured device."""
    devices: tuple[Description, ...]
    spreads: dict[str, Spread]
    """By `spread_key`, and `*` for other ops."""
    tiles: Tiles
    measured: Mapping[tuple[str, str], Places]
    """By op and kind of dtype, the places among `devices` of those with enough rows of it."""
    extensions: Mapping[str, Extension]
    """Per op, where the largest rows told how it goes on."""
    least: Mapping[tuple[str, str, int], Mapping[str, float]]
    """By op, kind of dtype and place of the device, the least of the figures in `NOT_BELOW` that
    was measured."""
    gains: Gains = NONE

    def answers_for(self, op: str, dtype: str) -> bool:
        """Whether rows of `op` in `dtype` are the part's."""
        as_kind = dtype in AS_KIND.get(self.build, ()) and same_kernels_dtype(dtype) in self.dtypes
        return (dtype in self.dtypes or as_kind) and (op in self.ops or not self.ops)

    def known_to(self, op: str, dtype: str) -> Places:
        """Places of the devices on which rows like these were measured.

        An op that was measured nowhere is taken for those that were, in its dtype.
        """
        if (op, dtype) not in self._known:
            self._known[op, dtype] = self._measured_on(op, same_kernels_dtype(dtype))
        return self._known[op, dtype]

    @cached_property
    def _known(self) -> dict[tuple[str, str], Places]:
        return {}

    def _measured_on(self, op: str, kind: str) -> Places:
        if any(op == each for each, _ in self.measured):
            return self.measured.get((op, kind), ())
        alike = (places for (_, each), places in self.measured.items() if each == kind)
        return tuple(sorted(set().union(*alike)))

    def away(self, op: str, dtype: str, device: Device) -> float:
        """How far the most similar device is on which rows like these were measured."""
        return self.standing(self.known_to(op, dtype), device).away

    def standing(self, known: Places, device: Device) -> Standing:
        """Where `device` stands among those at the places `known`."""
        stands: Standing = _standing(OfDevice((id(self), known), device, (self, known)))
        return stands

    def by_separate(self, rows: Rows, device: Device) -> Floats:
        """`[n]`: which of `separate` answers for each row on `device`, from 1 on; 0: none."""
        framework, answers = rows.in_framework(), np.zeros(len(rows))
        for number, separate in enumerate(self.separate, 1):
            if kinship(self.standing(separate.places, device).away) > 0.0:
                own = framework == separate.framework
                answers[rows.of_kinds(separate.ran, bool) & own] = number
        return answers

    def log_factors(
        self,
        columns: Columns,
        groups: Groups,
        device: Device,
        known: Places,
        by_separate: Floats | None = None,
    ) -> Answer:
        """Logarithms of kernel time over base, per row.

        `groups` are the rows of each op, `known` the places of the devices that tell of them all,
        `by_separate` what the method of that name says. Rows that are in no group have what physics
        says: trees are not asked about them.
        """
        stands = self.standing(known, device)
        physics = np.array(columns.power_log)
        frac = np.broadcast_to(columns.on_chip_frac, len(physics))
        asked, others = stands.description, usual(self.devices)
        for op, index in groups:
            centre = np.full(len(index), self.spreads.get(op, self.spreads["*"]).centre)
            physics[index] += carried_log_factors(centre, frac[index], others, asked)
        if stands.near is None:
            return Answer(physics, 0.0, 1.0, by_trees=False)
        near, weight = stands.near, kinship(stands.away)
        share = self.share + (1.0 - self.share) * weight
        factors = (1.0 - share) * physics
        if share > 0.0 and groups:
            seen_as = near if self.as_nearest or weight > 0.0 else stands.description
            own = [at for at in stands.places if at in self.own and weight > 0.0]
            names, (left, learned) = known_device_columns(self.figures), np.zeros((2, len(physics)))
            left[np.concatenate([index for _, index in groups])] = 1.0
            for number, separate in enumerate(self.separate, 1) if by_separate is not None else ():
                index = np.flatnonzero((by_separate == number) & (left > 0.0))
                if len(index):
                    like = self.standing(separate.places, device)
                    holds, constants = kinship(like.away), like.near or {}
                    found = separate.trees.predict(columns.matrix(names, constants)[index])
                    learned[index], left[index] = holds * found, 1.0 - holds
            if len(index := np.flatnonzero(left > 0.0)):
                matrix = columns.matrix(names, seen_as)[index]
                shared = self.trees.predict(matrix)
                for place in own[:1]:
                    alone = self.own[place].predict(matrix[:, : len(self.figures)])
                    shared += OWN_FRAC * weight * (alone - shared)
                learned[index] += left[index] * shared
            for op, index in groups:
                if op in stands.growths:
                    work, growth = columns.work[index], stands.growths[op]
                    trust = self.extensions[op].trust
                    learned[index] = extrapolated_log_factors(learned[index], work, growth, trust)
                if op in stands.slopes:
                    figure = columns.figures[self.gains.figure]
                    learned[index] += stands.slopes[op] * figure[index]
            factors = factors + share * carried_log_factors(learned, frac, near, asked)
        return Answer(factors, weight, unlikeness(stands.away), share > 0.0, stands.is_shown)

    def support(
        self, op: str, dtype: str, columns: Columns, index: Ints, sources: Places
    ) -> Floats:
        """How much of the factors holds for the rows `index` of `op` in `dtype`: less below what
        was measured, in time, or in a figure on the devices that are its `sources`.

        Measurements with a floor tell nothing of short kernels; there physics alone speaks.
        """
        least_us = self.spreads.get(op, self.spreads["*"]).least_us
        below = np.log(least_us / np.maximum(columns.base_us[index], np.finfo(float).tiny))
        for name, least in self._least_of(op, dtype, sources).items():
            below = np.maximum(below, least - columns.figures[name][index])
        return clipped(1.0 - below / _FADES_OVER, 0.0, 1.0)

    def _least_of(self, op: str, dtype: str, places: Places) -> Mapping[str, float]:
        """Of an op that was measured nowhere: the least of those that were."""
        kind = same_kernels_dtype(dtype)
        found = [self.least[op, kind, at] for at in places if (op, kind, at) in self.least]
        if not found and all(key[:2] != (op, kind) for key in self.least):
            among = self.least.items()
            found = [each for (_, own, at), each in among if own == kind and at in places]
        return {name: min(each[name] for each in found) for name in (found[0] if found else ())}

    def is_inside(self, op: str, work: Floats) -> Mask:
        """Whether rows of `op` have as much work as some that were measured."""
        least, most = self.spreads.get(op, self.spreads["*"]).domain
        log_work = np.log(np.maximum(work, 1.0))
        return np.asarray((log_work >= least) & (log_work <= most))

    def ends(
        self,
        op: str,
        work: Floats,
        answer: Answer,
        framework: Floats,
        support: Floats | float = 1.0,
    ) -> Floats:
        """Logarithms (low, high) of the interval around a prediction, `[2, n]` of rows of one op.

        `framework` is the place of each row's from 1 on; rows of 0 may be of any. Rows that
        measurements `support` little have the intervals of physics.
        """
        usual = self.spreads.get(op, self.spreads["*"])
        ends, outside = np.zeros((2, len(work))), ~self.is_inside(op, work)
        for code in dict.fromkeys(framework.tolist()):
            own = framework == code
            spread = self.spreads.get(spread_key(op, code), usual)
            ends[:, own] = _ends(spread, outside[own], answer)
        widest = np.minimum(ends[0], usual.physics[0]), np.maximum(ends[1], usual.physics[1])
        return np.asarray(ends + (1.0 - support) * (widest - ends))


def _ends(spread: Spread, outside: Mask, answer: Answer) -> Floats:
    left_out = spread.unseen if answer.by_trees else spread.physics
    if not answer.is_shown:
        left_out = min(left_out[0], spread.physics[0]), max(left_out[1], spread.physics[1])
    beyond, seen, unseen = np.array([spread.beyond, spread.seen, left_out])[:, :, None]
    wider = np.where(outside, _WIDER_BEYOND, 1.0) * unseen
    known = np.where(outside, beyond, seen)
    return np.asarray((1.0 - answer.unlike) * known + answer.unlike * wider)


def _standing_of(asked: OfDevice) -> Standing:
    part: Part
    part, known = asked.by
    description = describe(asked.device)
    alike = [at for at in known if same_maker(part.devices[at], description)]
    if not alike:
        return Standing(description)
    near, away = nearest(description, [part.devices[at] for at in alike])
    sources = tuple(at for at in alike if kinship(distance(near, part.devices[at])) > 0.0)
    places = places_of(near, part.devices)
    return Standing(
        description=description,
        near=near,
        away=away,
        places=places,
        sources=sources,
        is_shown=len(sources) < len(alike),
        growths={op: each.on(near) for op, each in part.extensions.items() if each.trust > 0.0},
        slopes=part.gains.on(places),
    )


_standing = lru_cache(maxsize=1024)(_standing_of)


def spread_key(op: str, framework: float) -> str:
    """Under which spreads of rows in the `framework` at a place from 1 on are kept; 0: in any."""
    return f"{op}/{FRAMEWORKS[int(framework) - 1]}" if framework else op


def known_device_columns(figures: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of the ensemble that knows its devices."""
    return figures + COLUMNS
