"""How errors of one curve hang together over size: what a few measured points can correct."""

from __future__ import annotations

import numpy as np

from perfmodel.fit.collective_data import Measured
from perfmodel.network.calibration import Covariance
from perfmodel.ops.spec import Floats

_START = (0.2, 0.3, 0.1, 0.04)
_LEAST = (0.02, 0.02, 0.01, 0.01)
_MOST = (1.0, 1.0, 0.5, 0.15)
_OCTAVES, _STEP_OCTAVES = 12.0, 1.5
"""Chosen on repositories left out; likelihood alone takes one reach between the two."""
_CLIP = 1.0
_MACHINE_SHARE = 0.3
"""Assumed: variance of the level that all curves of a machine share, over that of a shape."""


def fit_covariance(measured: Measured, log_ratio: Floats) -> Covariance:
    """Level, shape, steps and noise that make `log_ratio` of all curves most likely."""
    from scipy.optimize import minimize

    sizes = np.log2(measured.calls.size_bytes)
    clipped = np.clip(log_ratio, -_CLIP, _CLIP)
    rows = [np.flatnonzero(measured.curve == curve) for curve in np.unique(measured.curve)]
    curves = [(sizes[each], clipped[each], measured.weight[each].mean()) for each in rows]

    def surprise(logs: Floats) -> float:
        level, shape, step, noise = np.exp(np.clip(logs, np.log(_LEAST), np.log(_MOST)))
        covariance = Covariance(0.0, level, shape, _OCTAVES, step, _STEP_OCTAVES, noise)
        total = 0.0
        for size, ratio, weight in curves:
            same = np.zeros(len(size), np.int64)
            own = covariance.between(same, size, same, size) + np.eye(len(size)) * noise**2
            root = np.linalg.cholesky(own)
            solved = np.linalg.solve(root, ratio)
            total += weight * (0.5 * solved @ solved + np.log(np.diag(root)).sum())
        return float(total)

    found = minimize(surprise, np.log(_START), method="Nelder-Mead", options={"maxfev": 200})
    level, shape, step, noise = np.exp(np.clip(found.x, np.log(_LEAST), np.log(_MOST)))
    return Covariance(
        machine_sd=round(float(shape * np.sqrt(_MACHINE_SHARE)), 4),
        curve_sd=round(float(level), 4),
        shape_sd=round(float(shape), 4),
        octaves=_OCTAVES,
        step_sd=round(float(step), 4),
        step_octaves=_STEP_OCTAVES,
        noise_sd=round(float(noise), 4),
    )
