"""A device's rates as kernels meet them: compute under a power limit, memory and cache by size.

Physics of kernels that stream operands: bytes, caches, passes over rows, waiting threads. What a
GPU draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.hardware.catalogue import nearest_known, original
from perfmodel.ops.spec import item_bytes

USUAL = "usual"
_C = coefficients("gpu.rates")
SECTOR_BYTES, LANES = _C.sector_bytes, _C["lanes"]
LINE_BYTES = 4 * SECTOR_BYTES
"""Of a GPU's caches, and the most that a warp asks for at once."""


def of_dtypes(dtypes: Sequence[str], value: Callable[[str], Any]) -> NDArray[Any]:
    """`value` of each row's dtype `[n]`, asked once for all that are equal."""
    known = {dtype: value(dtype) for dtype in set(dtypes)}
    if len(known) == 1:
        return np.full(len(dtypes), *known.values())
    return np.array([known[dtype] for dtype in dtypes])


_KERNELS_OF = {"12.0": "8.9", "12.1": "8.9"}
"""Compute capabilities that run another's kernels. Workstation and GeForce Blackwell have neither
products of warp groups nor tensor memory (NVIDIA, PTX ISA: `wgmma` is of sm_90a, `tcgen05` of
sm_100a and sm_103a), and the shared memory and threads of Ada's multiprocessors."""


def capability_of(device: Device) -> str:
    """The compute capability that the device's multiprocessors are like; empty if not NVIDIA's."""
    own = device.compute_capability or ""
    return _KERNELS_OF.get(own, own)


def sustained_flop_per_us(device: Device, dtypes: Sequence[str], peak: Floats) -> Floats:
    """`peak` `[n]` (FLOP per microsecond), or what the power limit leaves of it for a second."""
    usual = _C.usual_fp32_tflop_per_s_per_w
    fp32 = of_generation(device, _C["fp32_tflop_per_s_per_w"], usual) * device.tdp_w * 1e6
    known = _C["cool_flop_per_j"].get(capability_of(device), np.inf)
    is_fp32 = of_dtypes(dtypes, lambda dtype: dtype == "fp32")
    return np.minimum(peak, np.where(is_fp32, fp32, _held_frac(device, known) * peak))


def hot_us(flop: Floats, dtypes: Sequence[str], device: Device) -> Floats:
    """Microseconds `[n]` that `flop` of matrix products in fewer bits than 32 take on a board that
    has long been at its power limit; nothing in fp32, and where no such board was seen."""
    held = _held_frac(device, of_generation(device, _C["flop_per_j"], np.inf))
    usual = of_dtypes(dtypes, lambda dtype: np.inf if dtype == "fp32" else held)
    peak = of_dtypes(dtypes, lambda dtype: _matrix_rate(dtype, device))
    return np.asarray(flop / (usual * peak))


def _held_frac(device: Device, flop_per_j: float) -> float:
    """Share of the peak in fewer bits than 32 that a board holds at its power limit.

    A lower clock takes less voltage, so energy per FLOP falls with the rate: here in proportion,
    between not at all (at the least voltage) and with its square. Then the limit goes with the
    square of the rate, and the share of the peak that it leaves is one for all types.
    """
    return math.sqrt(flop_per_j * device.tdp_w / (device.matrix_tflop_per_s("fp16") * 1e12))


def of_generation(device: Device, known: Mapping[str, float], usual: float | None = None) -> float:
    """The figure of the device's generation, or of one that it is like; else the usual one, which
    stands among them unless it is given."""
    nearest = nearest_known(device.architecture, known)
    return usual if nearest is None and usual is not None else known[nearest or USUAL]


COMPUTE_DTYPE = {
    "fp8_static": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "int8_wo": "fp16",
    "int4_wo": "fp16",
    "int4": "fp16",
}
"""The type that the matrix units multiply in, where it is not the one that is stored."""


def matrix_flop_per_us(device: Device, dtypes: Sequence[str]) -> Floats:
    """Peak of matrix products per row, FLOP per microsecond; `ModelError` where there are none."""
    for dtype in sorted(set(dtypes)):
        if not device.multiplies(COMPUTE_DTYPE.get(dtype, dtype)):
            raise ModelError(f"{device.name}: no units for products in {dtype}")
    return of_dtypes(dtypes, lambda dtype: _matrix_rate(dtype, device))


@lru_cache(maxsize=1024)
def _matrix_rate(dtype: str, device: Device) -> float:
    computed = COMPUTE_DTYPE.get(dtype, dtype)
    if computed == "fp64":
        return float(fp64_flop_per_us(device)[1])
    if computed in _SUMMED_IN_FP32 and is_older(device, _UNITS_FROM):
        return device.fp32_tflop_per_s * 1e6
    return device.matrix_tflop_per_s(computed) * 1e6


def fp64_flop_per_us(device: Device) -> Floats:
    """Peak of fp64 multiply-adds on the vector units, FLOP per microsecond, and that of matrix
    products `[2]`."""
    known = _C["fp64_per_sm_per_clock"]
    own = known.get(capability_of(device) or device.target, known[USUAL])
    return 2.0 * device.sm_count * device.boost_mhz * np.array(own)


_UNITS_FROM = "7.0"
"""Before it 8-bit products of four elements (DP4A, from 6.1) run on the vector units (NVIDIA, CUDA
C++ Programming Guide)."""
_SUMMED_IN_FP32 = ("fp16", "bf16", "fp8")
"""Types whose products libraries sum in fp32 (PyTorch asks for `CUBLAS_COMPUTE_32F`), which vector
units do no faster than fp32: a P100, which doubles fp16, reaches 9.1 of 9.5, not of 19 TFLOP/s."""


def is_older(device: Device, capability: str) -> bool:
    """Whether the chip is one of NVIDIA's before that compute capability: as the catalogue's device
    is from which `device` was made, since another rate is not another chip."""
    own = original(device).compute_capability
    return device.target == "cuda" and own is not None and float(own) < float(capability)


def has_matrix_units(device: Device, dtypes: Sequence[str]) -> NDArray[np.bool_]:
    """Per row, whether the chip has matrix units for the dtype, whatever was changed of it."""
    return of_dtypes(dtypes, lambda dtype: _has_units(dtype, device))


@lru_cache(maxsize=1024)
def _has_units(dtype: str, device: Device) -> bool:
    if is_older(device, _UNITS_FROM):
        return False
    chip = original(device)
    if dtype == "tf32" and chip.tf32_tflop_per_s and chip.target == "cuda":
        return True  # of GeForce boards no faster than fp32
    least = _C["matrix_units_from"][chip.target] * chip.fp32_tflop_per_s * 1e6
    return bool(_matrix_rate(dtype, chip) > least)


def special_per_us(device: Device) -> float:
    """Exponentials, roots and divisions per microsecond."""
    known = _C["special_per_sm_per_clock"]
    per_clock: float = known.get(capability_of(device), known[USUAL])
    return device.sm_count * per_clock * device.boost_mhz


def issued_per_us(device: Device) -> float:
    """Instructions of a lane that are issued per microsecond, whatever they do."""
    per_clock: float = _C["issued_per_sm_per_clock"][device.target]
    return device.sm_count * per_clock * device.boost_mhz


def hbm_bytes_per_us(device: Device) -> float:
    """Peak of the device memory, bytes per microsecond."""
    return device.hbm_gb_per_s * 1e3


def stream_bytes_per_us(device: Device) -> float:
    """What long streams of reads and writes reach of it, bytes per microsecond."""
    return device.stream_gb_per_s * 1e3


def l2_bytes_per_us(device: Device) -> float:
    """What the L2 delivers, bytes per microsecond; at least twice the memory's peak."""
    designed = device.sm_count * _C.l2_bytes_per_clock_per_sm * device.boost_mhz
    return max(designed, 2.0 * hbm_bytes_per_us(device))


def missed_share(working_set_bytes: Floats, device: Device) -> Floats:
    """Share of the bytes that the cache does not hold from their last use, 0 to 1."""
    fill = working_set_bytes / device.last_cache_bytes
    up_to = _C.resident_up_to
    return np.clip((fill - up_to) / (_C.gone_from - up_to), 0.0, 1.0)


def bound_us(total_bytes: Floats, device: Device) -> Floats:
    """The least time in which `total_bytes` can move: at the memory's peak, or the L2's where
    they fit in the cache."""
    missed = missed_share(total_bytes, device)
    at_l2 = total_bytes / (2.0 * l2_bytes_per_us(device))
    return np.maximum(at_l2, missed * total_bytes / hbm_bytes_per_us(device))


def transfer_us(total_bytes: Floats, device: Device) -> Floats:
    """What moving `total_bytes` once usually takes, without a kernel's fixed cost."""
    missed = missed_share(total_bytes, device) * total_bytes
    return np.maximum(total_bytes / l2_bytes_per_us(device), missed / stream_bytes_per_us(device))


_STREAM, _VECTOR = coefficients("gpu.streaming"), coefficients("gpu.reductions").most_vector
_AS = {"rms_norm": "layer_norm", "log_softmax": "softmax"}
"""Ops whose kernels go over their rows as another's."""
ROW_KERNELS = frozenset(_STREAM["row_kernels"]) | frozenset(_AS)


def threads_per_sm(device: Device) -> float:
    """That a multiprocessor holds at once."""
    return float(device.max_threads_per_sm or _STREAM.usual_threads_per_sm)


def resident_share(op: str, rows: Floats, cols: Floats, item: Floats, device: Device) -> Floats:
    """Bytes of the rows that are worked on at once over the L2's; 0 where one pass is enough."""
    _, least_threads, most_threads, register_cols = _STREAM["row_kernels"][_AS.get(op, op)]
    threads = np.clip(cols / _VECTOR, least_threads, most_threads)
    per_sm = threads_per_sm(device) / threads
    at_once = np.minimum(rows, device.sm_count * np.maximum(per_sm, 1.0))
    share = at_once * cols * item / device.l2_bytes
    return np.where(cols > register_cols, share, 0.0)


def repeated_passes(op: str, resident: Floats) -> tuple[Floats, Floats]:
    """Passes over the row after the first: (all of them, those that go to memory), per row."""
    again, *_ = _STREAM["row_kernels"][_AS.get(op, op)]
    missed = np.clip(
        (resident - _STREAM.held_up_to) / (_STREAM.gone_from - _STREAM.held_up_to), 0.0, 1.0
    )
    return np.where(resident > 0.0, again, 0.0), again * missed


@analyse_by_group
def analyse_channels(group: Group, device: Device) -> Analysis:
    """Passes over the channels at the memory's rate, or what the blocks of threads draw that are
    at work: one per channel. A channel that its block keeps on chip is read once per pass less."""
    rate = stream_bytes_per_us(device)
    has_statistics = group.dims["statistics"] > 0
    reads, writes, kept_reads = _STREAM["passes"][group.direction]
    channel_bytes, channels = group.dims["rows"] * group.item_bytes, group.dims["cols"]
    is_kept = kept_reads * channel_bytes <= _STREAM.channel_kept_bytes
    at_once = np.minimum(channels, _STREAM.channel_blocks_per_sm * device.sm_count)
    together = np.where(is_kept, 1.0, _STREAM.channel_stream_frac) * rate
    drawn = np.minimum(together, at_once * _STREAM["channel_bytes_per_us"][device.target])
    passes = writes + np.where(is_kept, kept_reads, reads)
    memory = passes * channel_bytes * channels / drawn
    memory = np.where(has_statistics, memory, group.moved_bytes / rate)
    blocks_us = np.where(has_statistics, _STREAM["channel_block_us"][device.target], 0.0)
    latency = _STREAM.start_us + blocks_us * np.ceil(channels / at_once)
    bound = bound_us(group.moved_bytes, device)
    return group.analysis(
        bound_us=bound,
        kernel_us=np.maximum(memory, bound) + latency,
        shares={"memory": memory, "latency": latency},
    )


@analyse_by_group
def analyse_transfers(group: Group, device: Device) -> Analysis:
    """Bytes over PCIe or the link to the host or to a peer; `ranks` share the way to the host."""
    written, to_peer = group.written_bytes, group.op == "copy_p2p"
    peak = device.peer_gb_per_s if to_peer else device.host_gb_per_s
    through_buffer = (group.dims["pinned"] == 0) & (not to_peer)
    reached = _STREAM.achieved_frac * peak
    shared = 1.0 if to_peer else np.maximum(group.dims["ranks"], 1.0)
    rate = np.minimum(np.where(through_buffer, _STREAM.pageable_gb_per_s, np.inf), reached / shared)
    rate = rate * 1e3
    bound = np.maximum(written * shared / (peak * 1e3), written / hbm_bytes_per_us(device))
    link = written / rate
    return group.analysis(
        bound_us=bound,
        kernel_us=_STREAM.transfer_start_us + link,
        shares={"link": link, "latency": np.full(len(written), _STREAM.transfer_start_us)},
    )


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Bytes at the memory's or the cache's rate, beside the vector units'; a row's loop."""
    total = group.read_bytes + group.written_bytes
    passes, missed = np.zeros((2, len(group.index)))
    if group.op in ROW_KERNELS:
        own = group.dims["rows"], group.dims["cols"], group.item_bytes, device
        passes, missed = repeated_passes(group.op, resident_share(group.op, *own))
    memory = transfer_us(total, device) + (
        missed * group.read_bytes * missed_share(total, device)
    ) / stream_bytes_per_us(device)
    cache = (total + passes * group.read_bytes) / l2_bytes_per_us(device)
    elements = group.written_bytes / item_bytes("fp32")
    known = _STREAM["special_per_element"]
    op = group.op.removesuffix("_scalar")
    each = known.get(f"{device.target}_{op}", known.get(op, 0.0))
    special = each * elements / special_per_us(device)
    random = group.dims.get("random", 0.0) * _STREAM["random_flop"][device.target]
    flop = group.flop + random * group.dims.get("elements", 0.0)
    is_wide = of_dtypes(group.dtypes, "fp64".__eq__)
    rate = np.where(is_wide, fp64_flop_per_us(device)[0], device.fp32_tflop_per_s * 1e6)
    compute = np.maximum(flop / rate, special)
    bound = np.maximum(bound_us(total, device), group.flop / (2.0 * rate))
    busy, latency = np.maximum.reduce([memory, cache, compute, bound]), np.zeros(len(total))
    if device.target == "cuda" and group.op in _STREAM["row_clocks"]:
        step_cols, step_clocks = _STREAM["row_clocks"][group.op]  # the least of a row's block
        latency = np.ceil(group.dims["cols"] / step_cols) * step_clocks / device.boost_mhz
    return group.analysis(
        bound_us=np.maximum(bound, latency),
        kernel_us=_STREAM.start_us + busy,
        shares={"compute": compute, "memory": memory, "cache": cache, "latency": latency},
    )


_POWER = coefficients("gpu.power")
LEAST_CLOCK: float = _POWER.least_clock
IDLE_FRAC: float = _POWER.idle_frac


def idle_w(device: Device) -> float:
    return IDLE_FRAC * original(device).tdp_w


def working_w(device: Device) -> float:
    """Watts in addition of one that works all the time, at its clock: the board that it was made
    from draws as much as its limit allows at the clock that it is sold with."""
    stock = original(device)
    power: float = (device.boost_mhz / stock.boost_mhz) ** _POWER.clock_exponent
    return (1.0 - IDLE_FRAC) * stock.tdp_w * power
