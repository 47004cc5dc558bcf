"""Figures of ops that stream their operands."""

from __future__ import annotations

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.gpu import streaming
from perfmodel.kernels.gpu.row_passes import ROW_KERNELS, resident_share
from perfmodel.kernels.learned.columns import Columns, Tiles, alignment, log
from perfmodel.ops.rows import Rows

_SEEN = (
    *("add", "add_scalar", "mul", "mul_scalar", "div", "div_scalar", "pow", "pow_scalar"),
    *("relu", "gelu", "tanh", "sigmoid", "silu_and_mul", "rotary_embedding"),
    *("softmax", "layer_norm", "rms_norm", "sum", "copy", "cat", "transpose_copy", "embedding"),
)
"""Ops with a figure of their own: kernels of one op are written once for all devices."""


BY_ROW = frozenset(
    {"softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm"}
    | {"sum", "mean", "amax", "vector_norm", "sum_rows"}
)
"""Ops whose kernels work row by row; to others a shape is its number of elements."""
_USUAL_COLUMNS = 1024.0
_ROW_STEP = 512.0
"""Columns that the 128 threads of a norm's block take at once, four each."""
_UNROLL = 4.0
"""Steps of that loop that are issued together: what is left over runs one by one."""


def build(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of elementwise ops, reductions, norms and movement."""
    analysis = streaming.analyse(rows, device)
    total = analysis.read_bytes + analysis.written_bytes
    item = rows.item_bytes(np.arange(len(rows)))
    ops = np.array(rows.op)
    by_row = np.isin(ops, list(BY_ROW))
    columns = np.where(by_row, _dim(rows, "cols"), _USUAL_COLUMNS)
    down = np.where(by_row, _dim(rows, "rows"), analysis.written_bytes / item / _USUAL_COLUMNS)
    base = analysis.kernel_us
    figures = {
        "cols": log(columns),
        "align_cols": alignment(columns),
        "row_bytes": log(columns * item),
        "fill": np.clip(log(total / device.l2_bytes), -6.0, 3.0),
        "rows_per_sm": np.clip(log(down / device.sm_count), -6.0, 6.0),
        "flop_per_byte": log(analysis.flop / total),
        "read_share": analysis.read_bytes / total,
        "item_bytes": np.log2(item),
        "compute": log(analysis.shares["compute"] / base),
        "row_fill": log(columns / 2.0 ** np.ceil(np.log2(columns))),
        "unrolled": np.where(by_row, np.mod(np.ceil(columns / _ROW_STEP), _UNROLL), 0.0),
        "resident": np.clip(log(_resident(rows, device)), -4.0, 4.0),
    }
    figures |= {f"is_{op}": (ops == op).astype(np.float64) for op in _SEEN}
    nothing = np.zeros(len(rows))
    sizes = {f"log_{name}": log(_dim(rows, name)) for name in ("rows", "cols")}
    return Columns(base, analysis.bound_us, nothing, total, figures, nothing, sizes)


def _resident(rows: Rows, device: Device) -> np.ndarray:
    found = np.zeros(len(rows))
    for op, index in rows.groups():
        if op in ROW_KERNELS:
            dims, item = rows.dims_of(op, index), rows.item_bytes(index)
            found[index] = resident_share(op, dims["rows"], dims["cols"], item, device)
    return found


def _dim(rows: Rows, name: str) -> np.ndarray:
    values = rows.dims.get(name)
    if values is None:
        return np.ones(len(rows))
    return np.where(np.isnan(values), 1.0, np.maximum(values, 1.0))
