"""How errors of one curve hang together over size: what a few measured points can correct."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, WhiteKernel

from perfmodel.fit.collective_data import Measured
from perfmodel.network.calibration import Covariance
from perfmodel.ops.spec import Floats

_OCTAVES, _STEP_OCTAVES = 12.0, 1.5
"""Chosen on repositories left out; likelihood alone takes one reach between the two."""
_CLIP = 1.0
_MACHINE_SHARE = 0.3
"""Assumed: variance of the level that all curves of a machine share, over that of a shape."""
_MOST_CURVES = 60
"""Drawn by weight; a likelihood takes the cube of their points."""
_APART, _ALIKE = 1e-3, 1e6
"""Reaches over curves, numbered 0, 1, …, and over sizes: unlike the next, and alike everywhere."""


def fit_covariance(measured: Measured, log_ratio: Floats, seed: int = 0) -> Covariance:
    """Level, shape, steps and noise that make `log_ratio` of the curves most likely."""
    names, number = np.unique(measured.curve, return_inverse=True)
    share = np.bincount(number, measured.weight) / np.bincount(number)
    generator = np.random.default_rng(seed)
    count = min(_MOST_CURVES, len(names))
    drawn = generator.choice(len(names), count, replace=False, p=share / share.sum())
    told = np.isin(number, drawn)
    points = np.column_stack([number[told], np.log2(measured.calls.size_bytes[told])])
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # a part that is not there is at its end
        process = GaussianProcessRegressor(_kernel())
        process.fit(points, np.clip(log_ratio[told], -_CLIP, _CLIP))
    level, shape, step, noise = (round(float(sd), 4) for sd in np.exp(process.kernel_.theta / 2))
    return Covariance(
        machine_sd=round(float(shape * np.sqrt(_MACHINE_SHARE)), 4),
        curve_sd=level,
        shape_sd=shape,
        octaves=_OCTAVES,
        step_sd=step,
        step_octaves=_STEP_OCTAVES,
        noise_sd=noise,
    )


def _kernel() -> Kernel:
    """As `Covariance`, over (curve, log2 of size): start and limits are standard deviations."""

    def variance(start: float, least: float, most: float) -> Kernel:
        return ConstantKernel(start**2, (least**2, most**2))

    return (
        variance(0.2, 0.02, 1.0) * RBF([_APART, _ALIKE], "fixed")
        + variance(0.3, 0.02, 1.0) * Matern([_APART, _OCTAVES], "fixed", nu=1.5)
        + variance(0.1, 0.01, 0.5) * Matern([_APART, _STEP_OCTAVES], "fixed", nu=1.5)
        + WhiteKernel(0.04**2, (0.01**2, 0.15**2))
    )
