"""What a GPU reached in its measurements: best matrix product, fastest streams, shortest kernel."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfmodel.fit.device import DeviceFit
from perfmodel.fit.device_data import DeviceData, Measured
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS, Floats

MATMUL, VECTOR = "matmul", "vector"
HIGH, LOW = 0.99, 0.01
WITHOUT_FLOOR = ("profiler_kernel", "cuda_graph_replay")
"""Ways of timing that show what a kernel itself takes at least."""
LARGE_US = 100.0
MIN_ROWS = 20


def fit_gpu_device(data: DeviceData, base: Device, *, stem: str) -> DeviceFit:
    """`base` with the figures that the tables show; what they do not show stays as it was.

    No half is held out: each figure is a quantile of what was reached, not a fit.
    """
    measured = data.all
    found: dict[str, float] = {}
    notes = []
    share = _best_product_frac(measured, base)
    if share is None:
        notes.append("no large matrix product: gemm_peak_frac is the catalogue's")
    else:
        found["gemm_peak_frac"] = share
    kernels = np.array([timing in WITHOUT_FLOOR for timing in measured.rows.timing])
    if kernels.sum() >= MIN_ROWS:
        found["kernel_floor_us"] = float(np.quantile(measured.duration_us[kernels], LOW))
    else:
        notes.append("no kernel timed inside a program: kernel_floor_us is the catalogue's")
    reached = _best_gb_per_s(measured)
    if reached is None:
        notes.append("no long memory-bound op: stream_peak_frac is the catalogue's")
    else:
        found["stream_peak_frac"] = float(np.clip(reached / base.hbm_gb_per_s, 0.01, 1.0))
        notes.append(f"memory-bound ops reach {reached:.0f} GB/s")
    sources = {**base.sources, **dict.fromkeys(found, f"measured: {data.device}")}
    fitted = replace(base, name=stem, aliases=(), sources=MappingProxyType(sources), **found)  # type: ignore[arg-type]
    return DeviceFit(fitted, (), None, 0, tuple(notes))


def _best_product_frac(measured: Measured, base: Device) -> float | None:
    """Highest share of the peak that large matrix products of any type reached."""
    shares = []
    for row, rate in _rates(measured, MATMUL, "flop"):
        peak = base.matrix_tflop_per_s(_known(measured.rows.dtype[row]))
        shares.append(rate / (peak * 1e6))
    if len(shares) < MIN_ROWS:
        return None
    return float(np.clip(np.quantile(shares, HIGH), 0.01, 1.0))


def _best_gb_per_s(measured: Measured) -> float | None:
    rates = [rate for _, rate in _rates(measured, VECTOR, "bytes")]
    return float(np.quantile(rates, HIGH)) / 1e3 if len(rates) >= MIN_ROWS else None


def _rates(measured: Measured, family: str, what: str) -> list[tuple[int, float]]:
    """(row, flop or bytes per microsecond) of the long rows of a family."""
    found: list[tuple[int, float]] = []
    for op, index in measured.rows.groups():
        spec = OPS[op]
        if spec.family != family:
            continue
        dims, item = measured.rows.dims_of(op, index), measured.rows.item_bytes(index)
        work: Floats = spec.flop(dims)
        if what == "bytes":
            work = spec.read_bytes(dims, item) + spec.written_bytes(dims, item)
        for place, row in enumerate(index.tolist()):
            if measured.duration_us[row] >= LARGE_US:
                found.append((row, float(work[place] / measured.duration_us[row])))
    return found


def _known(dtype: str) -> str | None:
    return dtype if dtype in ("fp32", "tf32", "fp16", "bf16", "fp8", "int8") else None
