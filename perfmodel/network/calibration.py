"""Corrections from measured points: a Gaussian process on log(measured / predicted).

Points of one curve (op, ranks, domains) share a level and a smooth shape over log size; all curves
of a machine share a level. The posterior is the correction, its spread the interval.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.spec import Floats

Groups = NDArray[np.int64]


@dataclass(frozen=True)
class Covariance:
    """Standard deviations of log time, and how far shapes reach in octaves of size."""

    machine_sd: float
    curve_sd: float
    shape_sd: float
    octaves: float
    step_sd: float
    """Of what protocols add where they switch."""
    step_octaves: float
    noise_sd: float

    @classmethod
    def from_dict(cls, found: Mapping[str, float]) -> Covariance:
        """From `to_dict`."""
        return cls(**{name: float(found[name]) for name in cls.__dataclass_fields__})

    def to_dict(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)

    @property
    def variance(self) -> float:
        """Of the correction where nothing was measured."""
        return self.machine_sd**2 + self.curve_sd**2 + self.shape_sd**2 + self.step_sd**2

    def between(
        self, groups: Groups, log2_sizes: Floats, others: Groups, log2_others: Floats
    ) -> Floats:
        """`[points, others]` without noise."""
        away = np.abs(log2_sizes[:, None] - log2_others[None, :])
        shape = (
            self.curve_sd**2
            + self.shape_sd**2 * _matern(away / self.octaves)
            + self.step_sd**2 * _matern(away / self.step_octaves)
        )
        same = groups[:, None] == others[None, :]
        return np.asarray(self.machine_sd**2 + np.where(same, shape, 0.0), np.float64)


def _matern(away: Floats) -> Floats:
    """Matérn's covariance of order 3/2."""
    scaled = np.sqrt(3.0) * away
    return np.asarray((1.0 + scaled) * np.exp(-scaled), np.float64)


@dataclass(frozen=True)
class Points:
    """Measured: which curve, log2 of bytes, log(measured / predicted)."""

    groups: Groups
    log2_sizes: Floats
    log_ratio: Floats


def correct(
    known: Points, groups: Groups, log2_sizes: Floats, covariance: Covariance
) -> tuple[Floats, Floats]:
    """(mean, standard deviation) of log(measured / predicted) at `groups`, `log2_sizes`."""
    prior = covariance.variance
    if not len(known.groups):
        return np.zeros(len(groups)), np.full(len(groups), np.sqrt(prior))
    own = covariance.between(known.groups, known.log2_sizes, known.groups, known.log2_sizes)
    own += np.eye(len(own)) * covariance.noise_sd**2
    cross = covariance.between(groups, log2_sizes, known.groups, known.log2_sizes)
    solved = np.linalg.solve(own, np.column_stack([known.log_ratio, cross.T]))
    mean = cross @ solved[:, 0]
    left = prior - np.einsum("ij,ji->i", cross, solved[:, 1:])
    return mean, np.sqrt(np.maximum(left, 0.0) + covariance.noise_sd**2)
