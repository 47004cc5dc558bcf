"""Which tiles a library was seen to use, and what share of the peak each reaches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.fit.kernel_data import FloorKey, floor_columns
from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import Floor
from perfmodel.kernels.gpu.machine import matrix_flop_per_us
from perfmodel.kernels.learned.matmul_columns import tile_key

if TYPE_CHECKING:
    import pandas as pd

_LEAST_SHARE = 0.02
_FEWEST = 20
_FULL_WAVES = 3.0
_NAMES = (r"MT(\d+)x(\d+)x\d+", r"gemm\w*?_(\d+)x(\d+)")
"""Tensile's and cuBLAS's way to name a tile; the first number runs along n."""


def tiles_seen(
    frame: pd.DataFrame, known: Mapping[str, Device], floors: Mapping[FloorKey, Floor]
) -> dict[str, list[list[float]]]:
    """Per op, dtype and generation, the tiles of at least 2 % of the rows: rows, columns, share.

    Names are known after the fact only: they tell which kernels a library has, not which one a
    row will run.
    """
    column = next((name for name in ("kernel_name", "kernel") if name in frame), None)
    if column is None:
        return {}
    names = frame[column].astype("string").fillna("")
    tile = {name: _tile_of(str(name)) for name in names.unique()}
    sizes = np.array([tile[name] or (0.0, 0.0) for name in names], np.float64)
    found: dict[str, list[list[float]]] = {}
    for (op, dtype, name), index in frame.groupby(
        ["op", "dtype", "device"], sort=True
    ).indices.items():
        key, own = tile_key(op, dtype, known[name]), frame.iloc[index]
        if key in found or not (sizes[index] > 0).any():
            continue
        shares = _shares(own, sizes[index], known[name], floors)
        found[key] = [
            [*map(float, each), _reached(shares[(sizes[index] == each).all(axis=1)])]
            for each in np.unique(sizes[index], axis=0)
            if each[0] > 0 and (sizes[index] == each).all(axis=1).mean() >= _LEAST_SHARE
        ]
    return {key: tiles for key, tiles in found.items() if tiles}


def _shares(
    frame: pd.DataFrame,
    sizes: np.ndarray,
    device: Device,
    floors: Mapping[FloorKey, Floor],
) -> np.ndarray:
    """`[n, 2]`: share of the peak, computed edges included, and waves of blocks."""
    b, m, n, k = (
        frame[name].astype("float64").fillna(1.0).to_numpy()
        if name in frame
        else np.ones(len(frame))
        for name in ("b", "m", "n", "k")
    )
    floor_us, offset_us = floor_columns(frame, dict(floors))
    measured = frame["duration_us"].to_numpy(np.float64)
    kernel = np.maximum(measured - offset_us, 0.1 * measured)
    rows, columns = np.maximum(sizes, 1.0).T
    blocks = b * np.ceil(m / rows) * np.ceil(n / columns)
    rate = matrix_flop_per_us(device, list(frame["dtype"])) * device.gemm_peak_frac
    waves = blocks / device.sm_count
    computed = np.ceil(waves) * device.sm_count * 2.0 * rows * columns * k
    share = np.where(measured > 1.5 * floor_us, computed / rate / kernel, np.nan)
    return np.stack([share, waves], axis=1)


def _reached(shares: np.ndarray) -> float:
    """The median share where many waves ran, else of all."""
    share, waves = shares.T
    full = share[(waves > _FULL_WAVES) & np.isfinite(share)]
    among = full if len(full) >= _FEWEST else share[np.isfinite(share)]
    return float(np.clip(np.median(among), 0.05, 1.2)) if len(among) else 0.5


def _tile_of(name: str) -> tuple[float, float] | None:
    for pattern in _NAMES:
        match = re.search(pattern, name)
        if match:
            return float(match[2]), float(match[1])
    return None
