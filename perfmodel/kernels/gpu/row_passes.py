"""Kernels that pass over their rows more than once: what the L2 still holds of the pass before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import Device
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class RowKernel:
    """How often a row is read again, and by how many threads: those decide how many rows at once.

    Source: PyTorch 2.1, `vectorized_layer_norm_kernel` (128 threads) and `cunn_SoftMaxForward`
    (cols / 4, at most 1024; up to 1024 columns a warp keeps its row in registers).
    """

    again: float
    least_threads: float
    most_threads: float
    register_cols: float = 0.0
    """Longest row that is never read again."""


_NORM = RowKernel(again=1.0, least_threads=128.0, most_threads=128.0)
_SOFTMAX = RowKernel(again=2.0, least_threads=32.0, most_threads=1024.0, register_cols=1024.0)
_RMS_NORM = RowKernel(again=1.0, least_threads=128.0, most_threads=1024.0)
ROW_KERNELS = {
    "layer_norm": _NORM,
    "rms_norm": _RMS_NORM,
    "softmax": _SOFTMAX,
    "log_softmax": _SOFTMAX,
}
_COLS_PER_THREAD = 4.0
_USUAL_THREADS_PER_SM = 2048.0
_HELD_UP_TO = 0.1
_GONE_FROM = 1.2
"""Bytes of all rows that are worked on at once over the L2's: up to the first the second pass finds
all of its row there, from the second on nothing. Source: fp32 layer_norm and softmax on P4 to A100
and MI100 (sitar-lab/NeuSight@6945927d), rows up to 1500 and 2500 columns told those beyond."""


def resident_share(op: str, rows: Floats, cols: Floats, item: Floats, device: Device) -> Floats:
    """Bytes of the rows that are worked on at once over the L2's; 0 where one pass is enough."""
    kernel = ROW_KERNELS[op]
    threads = np.clip(cols / _COLS_PER_THREAD, kernel.least_threads, kernel.most_threads)
    per_sm = (device.max_threads_per_sm or _USUAL_THREADS_PER_SM) / threads
    at_once = np.minimum(rows, device.sm_count * np.maximum(per_sm, 1.0))
    found = at_once * cols * item / device.l2_bytes
    return np.where(cols > kernel.register_cols, found, 0.0)


def read_again(op: str, resident: Floats) -> tuple[Floats, Floats]:
    """Passes over the row after the first: (all of them, those that go to memory), per row."""
    kernel = ROW_KERNELS[op]
    missed = np.clip((resident - _HELD_UP_TO) / (_GONE_FROM - _HELD_UP_TO), 0.0, 1.0)
    return np.where(resident > 0.0, kernel.again, 0.0), kernel.again * missed
