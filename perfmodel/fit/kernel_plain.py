"""The plain method that fits are compared with: trees on log(measured / roofline) from dims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.fit.kernel_samples import Samples
from perfmodel.fit.kernel_trees import GENERAL_TREES, OWN_TREES, answers, grown
from perfmodel.fit.kernels import FittedPart
from perfmodel.kernels.learned.devices import COLUMNS
from perfmodel.ops.spec import Floats

_DIMS = ("b", "m", "n", "k", "rows", "cols", "batch", "in_channels", "out_channels", "kernel_size")
_MORE_DIMS = ("input_size", "stride", "s", "heads", "kv_heads", "head_dim")
_KINDS = ("op", "dtype")
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Plain:
    """Trees on the dims, op, dtype and the device's figures, for the rows of one part."""

    booster: Any
    codes: Mapping[str, Mapping[str, int]]

    def predict_us(self, data: Samples) -> Floats:
        """Microseconds `[n]`."""
        roofline = np.maximum(data.bound_us, _LEAST_US)
        return np.asarray(roofline * np.exp(answers(self.booster, _matrix(data, self.codes))))


def plain_of(part: FittedPart, seed: int) -> Plain:
    """Fitted to all of the part's rows."""
    data = part.data
    codes = {name: _codes(data, name) for name in _KINDS}
    booster = _grown(_matrix(data, codes), data, np.ones(len(data.target), bool), OWN_TREES, seed)
    return Plain(booster, codes)


def plain_left_out(part: FittedPart, seed: int) -> dict[str, Floats]:
    """Per device left out, microseconds by trees fitted to the others."""
    data = part.data
    matrix = _matrix(data, {name: _codes(data, name) for name in _KINDS})
    roofline = np.maximum(data.bound_us, _LEAST_US)
    found = {}
    for device in part.left_out:
        own = data.devices == device
        booster = _grown(matrix, data, ~own, GENERAL_TREES, seed)
        found[device] = roofline[own] * np.exp(answers(booster, matrix[own]))
    return found


def _grown(
    matrix: np.ndarray, data: Samples, among: np.ndarray, shape: Mapping[str, float], seed: int
) -> Any:
    measured = data.frame["duration_us"].to_numpy(np.float64)
    target = np.log(measured / np.maximum(data.bound_us, _LEAST_US))
    return grown(matrix[among], target[among], np.ones(int(among.sum())), shape, seed=seed)


def _codes(data: Samples, name: str) -> dict[str, int]:
    return {each: code for code, each in enumerate(sorted(set(data.frame[name])))}


def _matrix(data: Samples, codes: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    none, columns = np.zeros(len(data.target)), []
    for name in (*_DIMS, *_MORE_DIMS):
        known = name in data.frame
        values = data.frame[name].astype("float64").fillna(0.0).to_numpy() if known else none
        columns.append(np.log1p(values))
    columns += [data.frame[name].map(codes[name]).to_numpy(np.float64) for name in _KINDS]
    figures = np.stack(columns, axis=1).astype(np.float32)
    return np.hstack([figures, data.with_devices(COLUMNS)[:, -len(COLUMNS) :]])
