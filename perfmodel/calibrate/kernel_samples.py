"""Measurements as what models are fitted to: columns, targets, weights; tiles that were seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.kernel_data import weights
from perfmodel.calibrate.kernel_floors import FloorKey, floor_columns, support_of
from perfmodel.cost.gpu.heuristic import Floor
from perfmodel.cost.gpu.rates import matrix_flop_per_us
from perfmodel.cost.learned.devices import Description, describe, distance, kinship
from perfmodel.cost.learned.features import BUILDS
from perfmodel.cost.learned.tiles import Tiles, tile_key
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

if TYPE_CHECKING:
    import pandas as pd


_MIN_SHARE = 0.02
_FEWEST = 20
_FULL_WAVES = 3.0
_NAMES = (r"MT(\d+)x(\d+)x\d+", r"gemm\w*?_(\d+)x(\d+)")
"""Tensile's and cuBLAS's way to name a tile; the first number runs along n."""


def observed_tiles(
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
    rows: dict[str, list[list[float]]] = {}
    for (op, dtype, name), index in frame.groupby(
        ["op", "dtype", "device"], sort=True
    ).indices.items():
        key, own = tile_key(op, dtype, known[name]), frame.iloc[index]
        if key in rows or not (sizes[index] > 0).any():
            continue
        shares = _shares(own, sizes[index], known[name], floors)
        rows[key] = [
            [*map(float, each), _reached(shares[(sizes[index] == each).all(axis=1)])]
            for each in np.unique(sizes[index], axis=0)
            if each[0] > 0 and (sizes[index] == each).all(axis=1).mean() >= _MIN_SHARE
        ]
    return {key: tiles for key, tiles in rows.items() if tiles}


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


_SMALL_WEIGHT = {"matmul": 0.1}


@dataclass(frozen=True)
class Samples:
    """Rows of one part as columns, with their targets: log of kernel time over base."""

    frame: pd.DataFrame
    figures: tuple[str, ...]
    matrix: np.ndarray
    devices: np.ndarray
    """`[n]` the driver's names."""
    known: Mapping[str, Device]
    target: Floats
    weight: Floats
    base_us: Floats
    bound_us: Floats
    extra_us: Floats
    work: Floats
    power_log: Floats
    on_chip_frac: Floats
    floor_us: Floats
    offset_us: Floats
    support: Floats
    """How much each row tells of its kernel, 0.01 to 1."""

    @property
    def ops(self) -> np.ndarray:
        """`[n]` the op of each row."""
        return np.asarray(self.frame["op"].to_numpy(object))

    @cached_property
    def seen_as(self) -> dict[str, Description]:
        """Per device, the description that stands for it: of the like device with most rows.

        Two boards of one chip would else be told apart by their clocks, and where one has few rows,
        what is odd about those would be taken for its own.
        """
        names, counts = np.unique(self.devices.astype(str), return_counts=True)
        by_rows = [str(name) for name in names[np.argsort(-counts, kind="stable")]]
        described: dict[str, Description] = {}
        for name in dict.fromkeys([*by_rows, *self.known]):
            own = describe(self.known[name])
            alike = [each for each in described.values() if kinship(distance(own, each)) >= 1.0]
            described[name] = alike[0] if alike else own
        return described

    def with_devices(self, names: Sequence[str]) -> np.ndarray:
        """The figures beside the named figures of each row's device."""
        table = {each: [own[name] for name in names] for each, own in self.seen_as.items()}
        return np.hstack(
            [self.matrix, np.array([table[each] for each in self.devices], np.float32)]
        )


def samples(
    frame: pd.DataFrame,
    build: str,
    known: Mapping[str, Device],
    floors: dict[FloorKey, Floor],
    tiles: Tiles,
) -> Samples:
    """Columns and targets of `frame`, device by device. Raises `ModelError` on impossible rows."""
    import pandas as pd

    frames, parts = [], []
    for name, group in frame.groupby("device", sort=True):
        parts.append(BUILDS[build](Rows.from_frame(group), known[name], tiles))
        frames.append(group)
    whole = pd.concat(frames)
    figures = tuple(parts[0].figures)
    base = np.concatenate([each.base_us for each in parts])
    extra = np.concatenate([each.extra_us for each in parts])
    work = np.concatenate([each.work for each in parts])
    floor_us, offset_us = floor_columns(whole, floors)
    measured = whole["duration_us"].to_numpy(np.float64)
    kernel = np.maximum(measured - offset_us, 0.5 * np.minimum(measured, base + extra))
    kernel = np.maximum(kernel - extra, 0.3 * kernel)
    support = support_of(measured, floor_us)
    return Samples(
        frame=whole,
        figures=figures,
        matrix=np.vstack([each.matrix(figures, {}) for each in parts]),
        devices=whole["device"].to_numpy(object),
        known=known,
        target=np.log(kernel / base),
        weight=weights(whole, support, work, _SMALL_WEIGHT.get(build, 1.0)),
        base_us=base,
        bound_us=np.concatenate([each.bound_us for each in parts]),
        extra_us=extra,
        work=work,
        power_log=np.concatenate([each.power_log for each in parts]),
        on_chip_frac=np.concatenate(
            [np.broadcast_to(each.on_chip_frac, len(each.base_us)) for each in parts]
        ),
        floor_us=floor_us,
        offset_us=offset_us,
        support=support,
    )
