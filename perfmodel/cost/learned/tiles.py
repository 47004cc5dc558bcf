"""The tile that a library would take for a product, of those that it was seen to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.gpu import matmul
from perfmodel.cost.learned.devices import kernels_of
from perfmodel.hardware import Device

Tiles = Mapping[str, Sequence[Sequence[float]]]
"""`op/target/capability` to the tiles its library was seen to use: rows, columns, share of peak."""

_ANY_TILES = (
    (256.0, 128.0, 1.0),
    (128.0, 256.0, 1.0),
    (128.0, 128.0, 0.95),
    (64.0, 256.0, 0.85),
    (256.0, 64.0, 0.85),
    (64.0, 128.0, 0.8),
    (128.0, 64.0, 0.8),
    (64.0, 64.0, 0.6),
    (32.0, 128.0, 0.5),
    (128.0, 32.0, 0.5),
    (16.0, 128.0, 0.3),
    (128.0, 16.0, 0.3),
)
_SPLITS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
_SPLIT_US = 3.0
_MIN_DEPTH = 128.0
_USUAL_OUTPUTS = 128.0 * 128.0
"""Of a tile that every library has (the largest of CUTLASS's usual ones, NVIDIA/cutlass)."""


def tile_key(op: str, dtype: str, device: Device) -> str:
    """Under which tiles are kept: ops and dtypes have libraries of their own, per generation."""
    return f"{op}/{dtype}/{device.target}/{kernels_of(device)}"


def _candidates(key: str, tiles: Tiles) -> tuple[Sequence[Sequence[float]], int]:
    """(tiles, how many of them the library was seen to use): of the nearest generation for the same
    op, dtype and target; any tile, where none was seen. Where only large ones were, since only
    large products were measured, any that is smaller comes behind them.
    """
    *same, capability = key.split("/")
    near = [
        (abs(float(each.split("/")[-1]) - float(capability)), each)
        for each in tiles
        if each.split("/")[:-1] == same
    ]
    if not near:
        return _ANY_TILES, len(_ANY_TILES)
    seen = tiles[min(near)[1]]
    least = min(rows * columns for rows, columns, _ in seen)
    if least <= _USUAL_OUTPUTS:
        return seen, len(seen)
    return [*seen, *(each for each in _ANY_TILES if each[0] * each[1] < least)], len(seen)


_AT_ONCE = 256
"""Rows whose candidates are weighed together: few enough for a processor's cache."""


def fastest_tiles(
    sizes: Floats, rate_flop_per_us: Floats, device: Device, key: str, tiles: Tiles
) -> Floats:
    """`[4, n]`: rows and columns of the fastest tile of those under `key`, its splits of k, and its
    time at the peak with its blocks' starts.

    `sizes` are b, m, n and k `[4, n]`, the rate `[n]` that of all multiprocessors together.
    """
    candidates, seen = _candidates(key, tiles)
    splits = (1.0,) if key.startswith("bmm/") else _SPLITS
    parts = []
    for begin in range(0, len(rate_flop_per_us), _AT_ONCE):
        own = slice(begin, begin + _AT_ONCE)
        rate = rate_flop_per_us[own]
        parts.append(_fastest(sizes[:, own], rate, device, np.array(candidates), seen, splits))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _fastest(
    sizes: Floats,
    rate_flop_per_us: Floats,
    device: Device,
    candidates: Floats,
    seen: int,
    may_split: tuple[float, ...],
) -> Floats:
    """The same, of all candidates `[tiles, splits, n]` at once. Those after the first `seen` are
    for products that fill less than half of a side of all of these."""
    (b, m, n, k), (rows, columns, frac) = sizes, candidates.T[:, :, None, None]
    splits = np.array(may_split)[:, None]
    sms = float(device.sm_count)
    blocks = b * np.ceil(m / rows) * np.ceil(n / columns)
    step = 2.0 * rows * columns * sms / rate_flop_per_us
    rounds = np.ceil(blocks * splits / sms)
    starts = matmul.starts_us(rounds, rows * columns, device)
    compute = rounds * np.ceil(k / splits) * step
    is_split = splits > 1.0
    joining = np.where(is_split, _SPLIT_US, 0.0)
    joining = np.where(is_split & (k < splits * _MIN_DEPTH), np.inf, joining)
    time = compute / frac + starts + joining
    if seen < len(candidates):
        is_small = (m < rows[:seen].min() / 2.0) | (n < columns[:seen].min() / 2.0)
        time[seen:] = np.where(is_small, time[seen:], np.inf)
    tile, split = np.divmod(time.reshape(-1, time.shape[-1]).argmin(axis=0), len(splits))
    chosen = tile, split, np.arange(len(tile))
    took = compute[chosen] + starts[chosen]
    return np.array([rows[tile, 0, 0], columns[tile, 0, 0], splits[split, 0], took])
