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
    sms = float(device.sm_count)
    per_sm = rate_flop_per_us / sms
    alone = _ALONE_FRAC[is_matrix_unit]
    l2 = l2_bytes_per_us(device)
    best = np.full(len(m), np.inf)
    columns = np.zeros((6, len(m)))
    for tile in _MATRIX_TILES if is_matrix_unit else _VECTOR_TILES:
        across = np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * b
        filled = b * m * n / (across * tile.rows * tile.columns)
        step_us = 2.0 * tile.rows * tile.columns / (per_sm * tile.peak_frac)
        for splits in _SPLITS:
            steps = np.ceil(k / (splits * _K_STEP))
            depth = np.maximum(steps * _K_STEP, _LEAST_DEPTH[splits > 1])
            rounds = np.ceil(across * splits / sms)
            serial = depth * step_us / alone
            compute = np.maximum(serial, rounds * depth * step_us)
            loads = across * splits * depth * (tile.rows + tile.columns) * item_bytes / l2
            time = np.maximum(compute, loads) + _PROLOGUE_US
            if splits > 1:
                time = time + _SPLIT_US + 8.0 * splits * b * m * n / l2
            better = time < best
            best = np.where(better, time, best)
            found = (
                loads,
                rounds,
                filled,
                across * splits / (rounds * sms),
                np.full(len(m), float(splits)),
                serial,
            )
            columns = np.where(better, np.stack(found), columns)
    return Tiling(best, *columns)


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
