"""Figures of convolutions and of fused attention."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu import attention, convolution
from perfmodel.kernels.gpu.analysis import Analysis
from perfmodel.kernels.learned.columns import Columns, Tiles, alignment, log
from perfmodel.ops.rows import Rows


def convolutions(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of convolutions, forward and backward."""
    dims = ("in_channels", "out_channels", "kernel_size", "stride", "batch", "input_size")
    return _columns(rows, device, convolution.analyse(rows, device), dims)


def attentions(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of fused attention."""
    dims = ("s", "head_dim", "kv_heads", "heads", "b", "window_size")
    return _columns(rows, device, attention.analyse(rows, device), dims)


def _columns(rows: Rows, device: Device, analysis: Analysis, dims: tuple[str, ...]) -> Columns:
    base = analysis.kernel_us
    total = analysis.read_bytes + analysis.written_bytes
    item = rows.item_bytes(np.arange(len(rows)))
    figures = {f"log_{name}": log(_dim(rows, name)) for name in dims}
    figures |= {f"share_{name}": log(each / base) for name, each in analysis.shares.items()}
    figures |= {
        name: log(each / base) if name.endswith("_us") else log(each)
        for name, each in analysis.features.items()
    }
    figures |= {
        "align_0": alignment(_dim(rows, dims[0])),
        "align_1": alignment(_dim(rows, dims[1])),
        "item_bytes": np.log2(item),
        "intensity": log(analysis.flop / total),
        "fill": log(total / device.l2_bytes),
        "base": log(base),
        "bound": log(analysis.bound_us / base),
    }
    ways = np.array(rows.direction)
    figures |= {f"is_{way}": (ways == way).astype(np.float64) for way in ("bwd_data", "bwd_weight")}
    nothing = np.zeros(len(rows))
    return Columns(base, analysis.bound_us, nothing, analysis.flop, figures, nothing)


def _dim(rows: Rows, name: str) -> np.ndarray:
    values = rows.dims.get(name)
    if values is None:
        return np.ones(len(rows))
    return np.where(np.isnan(values) | (values <= 0), 1.0, values)
