"""The kernels of a prediction from shapes, those of equal shapes together: work, bytes and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.scheduled import ScheduledSteps

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


ON_DEVICE = ("kernel", "copy")
Kind = tuple[str, str, str, tuple[tuple[str, float], ...]]
"""Op, dtype, direction and dims of a kernel."""
MATRIX = ("matmul", "convolution", "attention")


@dataclass(frozen=True, eq=False, repr=False)
class KernelTable:
    """Per kind of kernel of one step, longest first: columns of one length.

    `flop`, `bytes` and `duration_us` are of one of them, `count` how many there are in a step.
    """

    device: Device
    op: tuple[str, ...]
    family: tuple[str, ...]
    dtype: tuple[str, ...]
    count: Floats
    flop: Floats
    bytes: Floats
    duration_us: Floats

    def __len__(self) -> int:
        return len(self.op)

    def to_frame(self) -> pd.DataFrame:
        """One row per kind of kernel."""
        import pandas as pd

        names = ("op", "family", "dtype", "count", "flop", "bytes", "duration_us")
        return pd.DataFrame({name: getattr(self, name) for name in names})

    def roofline(self) -> Figure:
        """Achieved rate over arithmetic intensity, below the device's roofs."""
        from perfmodel.plot import roofline_figure

        busy_us = self.count * self.duration_us
        counts = self.flop > 0
        frame = {
            "family": np.array(self.family, object)[counts],
            "intensity": self.flop[counts] / np.maximum(self.bytes[counts], 1.0),
            "tflop_per_s": self.flop[counts] / self.duration_us[counts] / 1e6,
            "time_us": busy_us[counts],
        }
        without_pct = 100 * float(busy_us[~counts].sum() / busy_us.sum()) if len(self) else 0.0
        device, pairs = self.device, zip(self.dtype, self.family, strict=True)
        peaks = {"fp32 vector": device.fp32_tflop_per_s}
        for dtype in sorted({dtype for dtype, family in pairs if family in MATRIX}):
            peaks[f"{dtype} matrix"] = device.matrix_tflop_per_s(dtype)
        title = f"{device.name}; {without_pct:.0f} % of the kernel time does no arithmetic"
        return roofline_figure(frame, peaks=peaks, gb_per_s=device.hbm_gb_per_s, title=title)


def kernel_table(prediction: ScheduledSteps, rank: int, device: Device) -> KernelTable:
    """What `rank` runs on its `device`, summed up over steps."""
    steps = max(int((prediction.timeline.graph.marks.rank == rank).sum()), 1)
    own = np.flatnonzero(prediction.pieces_of(rank))
    groups: dict[Kind, list[int]] = {}
    for at in own.tolist():
        piece = prediction.pieces[at]
        if piece.kind in ON_DEVICE:
            key = (piece.op, piece.dtype, piece.direction, tuple(sorted(piece.dims.items())))
            groups.setdefault(key, []).append(at)
    taken = prediction.durations.duration_us
    time_us = np.array([taken[rows].sum() for rows in groups.values()])
    count = np.array([len(rows) for rows in groups.values()], np.float64)
    order = np.argsort(-time_us, kind="stable") if groups else np.empty(0, np.int64)
    kinds = [list(groups)[at] for at in order.tolist()]
    rows = Rows.of(
        [
            {"op": op, "dtype": dtype, "direction": direction, "timing": KERNEL, **dict(dims)}
            for op, dtype, direction, dims in kinds
        ]
    )
    flop, moved = np.zeros(len(rows)), np.zeros(len(rows))
    for (op, direction), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        spec, dims = OPS[op].of(direction), rows.dims_of(op, index)
        flop[index], item_bytes = spec.flop(dims), rows.item_bytes[index]
        moved[index] = spec.read_bytes(dims, item_bytes) + spec.written_bytes(dims, item_bytes)
    return KernelTable(
        device,
        tuple(kind[0] for kind in kinds),
        tuple(OPS[kind[0]].kernel_family for kind in kinds),
        tuple(kind[1] for kind in kinds),
        count[order] / steps,
        flop,
        moved,
        time_us[order] / count[order],
    )
