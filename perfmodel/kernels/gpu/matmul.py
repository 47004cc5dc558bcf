"""Physics of matrix products on a GPU."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import Device
from perfmodel.kernels.gpu.analysis import Analysis, merged
from perfmodel.kernels.gpu.machine import (
    COMPUTE_DTYPE,
    matrix_flop_per_us,
    vector_flop_per_us,
)
from perfmodel.kernels.gpu.memory import bound_us, transfer_us
from perfmodel.kernels.gpu.tiles import fastest_of_either
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.storage import item_bytes

QUANTISED = frozenset({"fp8", "fp8_static", "fp8_block", "nvfp4", "int8"})
"""Dtypes whose linear layer first rounds 16-bit activations in a kernel of its own."""
_HALF_ACTIVATIONS = QUANTISED | {"int8_wo", "int4_wo", "int4"}
_ALIGNED_BYTES = 16
_MISALIGNED = 2.2
"""Slowdown on matrix units when rows do not start at multiples of 16 bytes."""
_ASYNCHRONOUS_BYTES = 4
"""The least that one asynchronous copy moves (NVIDIA, PTX ISA, `cp.async`): where rows start at
multiples of less, operands come element by element, and moving slows down as much (assumed; such
products of an H100 trace, 3,137 a side in bf16, take 2.1 to 2.4 times as long as aligned ones). AMD
GPUs have no such copies: there only multiplying slows down."""
_QUANTISE_US = 3.0


def analyse(rows: Rows, device: Device) -> Analysis:
    """Tiles and waves against the peak of the dtype's units, beside the bytes moved."""
    bare = bounds(rows, device)
    parts = [(index, _tiled(rows, op, index, bare, device)) for op, index in rows.groups()]
    return merged(len(rows), parts)


def bounds(rows: Rows, device: Device) -> Analysis:
    """What needs no tiles: at the peak of the dtype's units, or at the memory's usual rate."""
    return merged(len(rows), [(index, _of(rows, op, index, device)) for op, index in rows.groups()])


def _of(rows: Rows, op: str, index: Ints, device: Device) -> Analysis:
    spec, dims = OPS[op], rows.dims_of(op, index)
    dtypes = [rows.dtype[row] for row in index.tolist()]
    stored = item_bytes(dtypes)
    activations = np.where(np.isin(dtypes, list(_HALF_ACTIVATIONS)), 2.0, stored)
    b, m, n, k = (dims[name] for name in ("b", "m", "n", "k"))
    flop = spec.flop(dims)
    bias_bytes = dims["bias"] * n * activations if "bias" in dims else 0.0
    read_bytes = b * m * k * activations + b * n * k * stored + bias_bytes
    written_bytes = b * m * n * activations
    total = read_bytes + written_bytes
    quantised = np.isin(dtypes, list(QUANTISED)) & (activations != stored)
    quantise_us = np.where(
        quantised, _QUANTISE_US + transfer_us(m * k * (activations + stored), device), 0.0
    )
    item, on_units = _multiplied_bytes(dtypes), _on_matrix_units(device, dtypes)
    by_element = ~_aligned(n, k, item, _ASYNCHRONOUS_BYTES) & on_units & (device.target == "cuda")
    memory = transfer_us(total, device) * np.where(by_element, _MISALIGNED, 1.0)
    peak = matrix_flop_per_us(device, dtypes)
    peak_us = flop / peak
    aligned = _aligned(n, k, item, _ALIGNED_BYTES) | ~on_units
    bound = np.maximum(peak_us, bound_us(total, device))
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + quantise_us,
        shares={"compute": peak_us, "memory": memory},
        flop=flop,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        features={
            "peak_us": peak_us,
            "quantise_us": quantise_us,
            "misaligned_factor": np.where(aligned, 1.0, _MISALIGNED),
            "by_element_factor": np.where(by_element, _MISALIGNED, 1.0),
        },
    )


def _tiled(rows: Rows, op: str, index: Ints, bare: Analysis, device: Device) -> Analysis:
    dims, dtypes = rows.dims_of(op, index), [rows.dtype[row] for row in index.tolist()]
    b, m, n, k = (dims[name] for name in ("b", "m", "n", "k"))
    peak = matrix_flop_per_us(device, dtypes)
    is_matrix_unit = _on_matrix_units(device, dtypes)
    reached = np.where(is_matrix_unit, device.gemm_peak_frac, max(device.gemm_peak_frac, 0.85))
    item = _multiplied_bytes(dtypes)
    tiling = fastest_of_either(b, m, n, k, item, peak * reached, device, is_matrix_unit)
    known = {name: each[index] for name, each in bare.features.items()}
    compute = tiling.time_us * known["misaligned_factor"]
    memory, bound = bare.shares["memory"][index], bare.bound_us[index]
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(np.maximum(compute, memory), bound) + known["quantise_us"],
        shares={"compute": compute, "memory": memory, "cache": tiling.l2_us},
        flop=bare.flop[index],
        read_bytes=bare.read_bytes[index],
        written_bytes=bare.written_bytes[index],
        features=known
        | {
            "serial_us": tiling.serial_us,
            "blocks_per_sm": tiling.blocks_per_sm,
            "filled_frac": tiling.filled_frac,
            "wave_frac": tiling.wave_frac,
            "splits": tiling.splits,
        },
    )


def _on_matrix_units(device: Device, dtypes: list[str]) -> NDArray[np.bool_]:
    return np.asarray(matrix_flop_per_us(device, dtypes) > 2.5 * vector_flop_per_us(device))


def _multiplied_bytes(dtypes: list[str]) -> Floats:
    """Bytes of an element as the units multiply it."""
    return item_bytes([COMPUTE_DTYPE.get(each, each).replace("fp4", "nvfp4") for each in dtypes])


def _aligned(n: Floats, k: Floats, item: Floats, to_bytes: int) -> NDArray[np.bool_]:
    return np.asarray(np.mod(k * item, to_bytes) + np.mod(n * item, to_bytes) == 0)
