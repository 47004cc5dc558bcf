"""Matrix products as thread blocks: tiles, waves, the serial loop over k, split-k."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.machine import l2_bytes_per_us
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Tile:
    """One kernel's block of the output, and the share of a multiprocessor's peak it reaches."""

    rows: int
    columns: int
    peak_frac: float


_VECTOR_TILES = (
    Tile(128, 128, 1.0),
    Tile(128, 64, 0.92),
    Tile(64, 128, 0.92),
    Tile(64, 64, 0.85),
    Tile(32, 128, 0.75),
    Tile(128, 32, 0.75),
    Tile(32, 32, 0.6),
)
_MATRIX_TILES = (
    Tile(256, 128, 1.0),
    Tile(128, 256, 1.0),
    Tile(128, 128, 0.93),
    Tile(128, 64, 0.8),
    Tile(64, 128, 0.8),
    Tile(64, 64, 0.62),
    Tile(64, 32, 0.45),
    Tile(32, 64, 0.45),
)
_SPLITS = (1, 2, 4, 8, 16)
_K_STEP = 32
_LEAST_DEPTH = {False: _K_STEP, True: 4 * _K_STEP}
"""Of k per block, without and with a split: a shorter k does not make a split cheaper."""
_ALONE_FRAC = {False: 0.5, True: 0.7}
"""What one block alone reaches of what a full multiprocessor does: its loop over k waits for its
own loads. Source: fp32 on an A100, 0.36 us per element of k against 0.18 at the peak."""
_SPLIT_US = 2.0
_PROLOGUE_US = 1.5
_AT_ONCE = 8192
"""Rows whose candidates are compared at once: what that takes stays in memory's bounds."""


@dataclass(frozen=True)
class Tiling:
    """Per row, of the fastest tile: its time, and how the work falls on the multiprocessors."""

    time_us: Floats
    l2_us: Floats
    blocks_per_sm: Floats
    filled_frac: Floats
    """Useful outputs over those computed: tiles hang over the edges."""
    wave_frac: Floats
    """Blocks over the places for blocks in the waves that they take."""
    splits: Floats
    serial_us: Floats
    """One block's loop over k alone on its multiprocessor."""


def fastest(
    b: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    item_bytes: Floats,
    rate_flop_per_us: Floats,
    device: Device,
    *,
    is_matrix_unit: bool,
) -> Tiling:
    """The tile and split of k that take least time, per row, as a library would choose."""
    tiles = _MATRIX_TILES if is_matrix_unit else _VECTOR_TILES
    sizes = np.stack([b, m, n, k, item_bytes, rate_flop_per_us / device.sm_count])
    parts = [
        _fastest(sizes[:, begin : begin + _AT_ONCE], device, tiles, _ALONE_FRAC[is_matrix_unit])
        for begin in range(0, len(m), _AT_ONCE)
    ]
    return Tiling(*(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)))


def _fastest(
    sizes: NDArray[np.float64], device: Device, tiles: tuple[Tile, ...], alone_frac: float
) -> NDArray[np.float64]:
    """The columns of `Tiling` `[columns, n]`, from all candidates `[candidates, n]`."""
    b, m, n, k, item_bytes, per_sm = sizes
    rows, columns, frac, splits = np.array(
        [(each.rows, each.columns, each.peak_frac, splits) for each in tiles for splits in _SPLITS]
    ).T[:, :, None]
    sms, l2 = float(device.sm_count), l2_bytes_per_us(device)
    across = np.ceil(m / rows) * np.ceil(n / columns) * b
    step_us = 2.0 * rows * columns / (per_sm * frac)
    is_split = splits > 1.0
    least = np.where(is_split, _LEAST_DEPTH[True], _LEAST_DEPTH[False])
    depth = np.maximum(np.ceil(k / (splits * _K_STEP)) * _K_STEP, least)
    rounds = np.ceil(across * splits / sms)
    serial = depth * step_us / alone_frac
    compute = np.maximum(serial, rounds * depth * step_us)
    loads = across * splits * depth * (rows + columns) * item_bytes / l2
    joining = np.where(is_split, _SPLIT_US + 8.0 * splits * b * m * n / l2, 0.0)
    time = np.maximum(compute, loads) + _PROLOGUE_US + joining
    best = time.argmin(axis=0)
    at = np.arange(len(m))
    chosen, wide, tall = across[best, at], columns[best, 0], rows[best, 0]
    split, waves = splits[best, 0], rounds[best, at]
    return np.stack(
        [
            time[best, at],
            loads[best, at],
            waves,
            b * m * n / (chosen * tall * wide),
            chosen * split / (waves * sms),
            split,
            serial[best, at],
        ]
    )


def fastest_of_either(
    b: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    item_bytes: Floats,
    rate_flop_per_us: Floats,
    device: Device,
    is_matrix_unit: NDArray[np.bool_],
) -> Tiling:
    """`fastest`, row by row on matrix units or on vector units."""
    whole = np.zeros((len(fields(Tiling)), len(m)))
    for kind in (False, True):
        index = np.flatnonzero(is_matrix_unit == kind)
        if len(index):
            found = fastest(
                b[index],
                m[index],
                n[index],
                k[index],
                item_bytes[index],
                rate_flop_per_us[index],
                device,
                is_matrix_unit=kind,
            )
            whole[:, index] = np.stack([getattr(found, each.name) for each in fields(Tiling)])
    return Tiling(*whole)
