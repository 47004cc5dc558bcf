"""One fitted part of a family: two ensembles of trees and what makes their answers safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.cost.learned.corrections import (
    NONE,
    Extension,
    Gains,
    Plain,
    places_of,
    uses_plain_trees,
)
from perfmodel.cost.learned.devices import (
    COLUMNS,
    Description,
    describe,
    general_figures,
    kinship,
    nearest,
)
from perfmodel.cost.learned.features import Columns, Tiles
from perfmodel.cost.learned.forest import Ensemble
from perfmodel.hardware import Device

Groups: TypeAlias = Sequence[tuple[str, Ints]]
Places: TypeAlias = tuple[int, ...]

_SAME_KIND = {"bf16": "fp16", "tf32": "fp16"}
AS_KIND = {"matmul": ("tf32",)}
"""Per build, dtypes that were measured nowhere, for which kernels are those of their kind: matrix
units, the same tiles and loads, at a rate of their own."""
_FADES_OVER = np.log(4.0)
"""Logarithm of time below the shortest kernels told over which what was learned is left behind."""


@dataclass(frozen=True)
class Spread:
    """90 % intervals as logarithms of measured over predicted: `low` to `high`, by situation.

    `seen` within the training domain on a training device, `beyond` outside the domain, `unseen`
    on a device left out.
    """

    seen: tuple[float, float]
    beyond: tuple[float, float]
    unseen: tuple[float, float]
    domain: tuple[float, float]
    """Least and largest log(work) of training."""
    least_us: float
    """Base of the shortest kernels that measurements told: their floors hide shorter ones."""


@dataclass(frozen=True)
class Part:
    """Trees over figures (`own` with all of a device's, `general` with few), for some dtypes.

    `own` answers near devices that it was trained on, `general` elsewhere, shrunk by `shrink`
    towards its mean `centre`: as much as leaving devices out showed to be best.
    """

    name: str
    build: str
    """Which function gives the columns (`matmul stream convolution attention`)."""
    dtypes: tuple[str, ...]
    """The dtypes it was trained on; others but those of `AS_KIND` have the heuristic."""
    ops: tuple[str, ...]
    """The ops that it answers for; none means all of its family."""
    figures: tuple[str, ...]
    own: Ensemble
    general: Ensemble
    """Ensembles; anything with `predict` of a matrix."""
    centre: float
    shrink: float
    devices: tuple[Description, ...]
    spreads: dict[str, Spread]
    """Per op, and `*` for others."""
    tiles: Tiles
    measured: Mapping[tuple[str, str], Places]
    """By op and kind of dtype, the places among `devices` of those with enough rows of it."""
    extensions: Mapping[str, Extension]
    """Per op, where the largest rows told how it goes on."""
    gains: Gains = NONE
    plain: Plain | None = None
    """Trees without physics that have a say beside `general`, where devices left out showed that
    the two together are nearer."""

    def answers_for(self, op: str, dtype: str) -> bool:
        """Whether rows of `op` in `dtype` are the part's."""
        as_kind = dtype in AS_KIND.get(self.build, ()) and same_kernels_dtype(dtype) in self.dtypes
        return (dtype in self.dtypes or as_kind) and (op in self.ops or not self.ops)

    def known_to(self, op: str, dtype: str) -> Places:
        """Places of the devices on which rows like these were measured.

        An op that was measured nowhere is taken for those that were, in its dtype.
        """
        kind = same_kernels_dtype(dtype)
        if any(op == each for each, _ in self.measured):
            return self.measured.get((op, kind), ())
        alike = (places for (_, each), places in self.measured.items() if each == kind)
        return tuple(sorted(set().union(*alike)))

    def log_factors(
        self, columns: Columns, groups: Groups, device: Device, known: Places
    ) -> tuple[Floats, float]:
        """(log of kernel time over base, per row; how near the device is to known ones, 0 to 1).

        `groups` are the rows of each op, `known` the places of the devices that tell of them all.
        """
        description: Description = describe(device)
        near, weight = description, 0.0
        if known:
            near, away = nearest(description, [self.devices[place] for place in known])
            weight = kinship(away)
        found = np.zeros(len(columns.base_us))
        if weight > 0.0:
            own = self.own.predict(columns.matrix(known_device_columns(self.figures), near))
            for op, index in groups:
                if op in self.extensions:
                    extension, work = self.extensions[op], columns.work[index]
                    own[index] = extension.carried(own[index], work, near)
            found += weight * own
        if weight < 1.0:
            raw = self.general.predict(
                columns.matrix(self.figures + general_figures(self.name), description)
            )
            shrunk = self.centre + self.shrink * (raw - self.centre)
            general = columns.lift + shrunk
            if self.plain is not None:
                holds = self._within(groups, columns.work)
                general = self.plain.blended(general, columns, description, holds)
            found += (1.0 - weight) * (general + columns.library)
        if self.gains.slopes:
            places = places_of(near, self.devices) if weight > 0.0 else ()
            found += self.gains.of(columns.figures, groups, places)
        return found, weight

    def told(self, op: str, base_us: Floats) -> Floats:
        """How much of the factors holds for rows of `op`: less below what was measured.

        Measurements with a floor tell nothing of short kernels; there physics alone speaks.
        """
        least_us = self.spreads.get(op, self.spreads["*"]).least_us
        below = np.log(least_us / np.maximum(base_us, np.finfo(float).tiny))
        return np.asarray(np.clip(1.0 - below / _FADES_OVER, 0.0, 1.0))

    def is_inside(self, op: str, work: Floats) -> Mask:
        """Whether rows of `op` have as much work as some that were measured."""
        least, most = self.spreads.get(op, self.spreads["*"]).domain
        log_work = np.log(np.maximum(work, 1.0))
        return np.asarray((log_work >= least) & (log_work <= most))

    def _within(self, groups: Groups, work: Floats) -> Floats:
        """How far trees without physics hold: 1 for rows with as much work as some that were
        measured, 0 for four times more or less."""
        found = np.zeros(len(work))
        for op, index in groups:
            if not uses_plain_trees(self.build, op):
                continue
            least, most = self.spreads.get(op, self.spreads["*"]).domain
            log_work = np.log(np.maximum(work[index], 1.0))
            beyond = np.maximum(log_work - most, least - log_work)
            found[index] = np.clip(1.0 - beyond / _FADES_OVER, 0.0, 1.0)
        return found

    def ends(self, op: str, work: Floats, weight: float) -> tuple[Floats, Floats]:
        """Logarithms (low, high) of the interval around a prediction, per row of one op."""
        spread = self.spreads.get(op, self.spreads["*"])
        outside = ~self.is_inside(op, work)
        ends = []
        for side in (0, 1):
            seen = np.where(outside, spread.beyond[side], spread.seen[side])
            wider = np.where(outside, 1.3, 1.0) * spread.unseen[side]
            ends.append(weight * seen + (1.0 - weight) * wider)
        return ends[0], ends[1]


def same_kernels_dtype(dtype: str) -> str:
    """The dtype for which the same kernels are written."""
    return _SAME_KIND.get(dtype, dtype)


def known_device_columns(figures: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of the ensemble that knows its devices."""
    return figures + COLUMNS
