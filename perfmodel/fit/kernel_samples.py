"""Measurements as what models are fitted to: columns, targets and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.fit.kernel_data import FloorKey, floor_columns, weights
from perfmodel.hardware import Device
from perfmodel.kernels.gpu.floors import Floor
from perfmodel.kernels.learned.builds import BUILDS
from perfmodel.kernels.learned.columns import Tiles
from perfmodel.kernels.learned.devices import Description, describe, distance, kinship
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats

if TYPE_CHECKING:
    import pandas as pd

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
    lift: Floats
    floor_us: Floats
    offset_us: Floats
    sizes: tuple[str, ...]
    size_matrix: np.ndarray

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
        found: dict[str, Description] = {}
        for name in dict.fromkeys([*by_rows, *self.known]):
            own = describe(self.known[name])
            alike = [each for each in found.values() if kinship(distance(own, each)) >= 1.0]
            found[name] = alike[0] if alike else own
        return found

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

    frames, found = [], []
    for name, group in frame.groupby("device", sort=True):
        found.append(BUILDS[build](Rows.from_frame(group), known[name], tiles))
        frames.append(group)
    whole = pd.concat(frames)
    figures, sizes = tuple(found[0].figures), tuple(found[0].sizes)
    base = np.concatenate([each.base_us for each in found])
    extra = np.concatenate([each.extra_us for each in found])
    work = np.concatenate([each.work for each in found])
    floor_us, offset_us = floor_columns(whole, floors)
    measured = whole["duration_us"].to_numpy(np.float64)
    kernel = np.maximum(measured - offset_us, 0.5 * np.minimum(measured, base + extra))
    kernel = np.maximum(kernel - extra, 0.3 * kernel)
    return Samples(
        frame=whole,
        figures=figures,
        matrix=np.vstack([each.matrix(figures, {}) for each in found]),
        devices=whole["device"].to_numpy(object),
        known=known,
        target=np.log(kernel / base),
        weight=weights(whole, floor_us, work, _SMALL_WEIGHT.get(build, 1.0)),
        base_us=base,
        bound_us=np.concatenate([each.bound_us for each in found]),
        extra_us=extra,
        work=work,
        lift=np.concatenate([each.lift for each in found]),
        floor_us=floor_us,
        offset_us=offset_us,
        sizes=sizes,
        size_matrix=np.vstack([each.matrix(sizes, {}) for each in found]),
    )
