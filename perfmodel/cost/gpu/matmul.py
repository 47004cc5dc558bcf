"""Physics of matrix products: thread blocks, rounds that start anew, the loop over k, split-k;
grouped products of layers of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu import rates
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, TORCH, Rows, framework_code
from perfmodel.ops.spec import Dims, item_bytes

_C, _KERNEL = coefficients("gpu.matmul"), coefficients("gpu.kernel")
_SPLITS = np.array([1, 2, 4, 8, 16])[:, None]
_K_STEP = 32
_JOINED_BYTES = 2.0 * item_bytes("fp32")
"""Per output and part of a split k: written and read again in fp32."""
_MIN_DEPTH = {False: _K_STEP, True: 4 * _K_STEP}
"""Of k per block, without and with a split: a shorter k does not make a split cheaper."""
_AT_ONCE = 256
"""Rows whose candidates are compared at once: few enough for a processor's cache."""


class Tiling(NamedTuple):
    """Per row, of the fastest tile: its time, and how the work falls on the multiprocessors."""

    time_us: Floats
    l2_us: Floats
    tile_rows: Floats
    tile_columns: Floats
    blocks_per_sm: Floats
    filled_frac: Floats
    """Useful outputs over those computed: tiles hang over the edges."""
    wave_frac: Floats
    """Blocks over the places for blocks in the waves that they take."""
    splits: Floats
    serial_us: Floats
    """One block's loop over k alone on its multiprocessor."""
    starts_us: Floats
    """Starts of the rounds of blocks after the first, beside which nothing is multiplied."""


def fastest(
    b: Floats,
    m: Floats,
    n: Floats,
    k: Floats,
    item_bytes: Floats,
    rate_flop_per_us: Floats,
    device: Device,
    is_matrix_unit: Mask,
    most_splits: float = np.inf,
) -> Tiling:
    """The tile and split of k that take least time, per row, as a library would choose, on matrix
    units or on vector units."""
    sizes = np.array([b, m, n, k, item_bytes, rate_flop_per_us / device.sm_count])
    whole, splits = np.zeros((len(Tiling._fields), len(m))), _SPLITS[_SPLITS[:, 0] <= most_splits]
    for unit, is_own in (("vector", ~is_matrix_unit), ("matrix", is_matrix_unit)):
        index = np.flatnonzero(is_own)
        for begin in range(0, len(index), _AT_ONCE):
            own = index[begin : begin + _AT_ONCE]
            whole[:, own] = _fastest(sizes[:, own], device, unit, splits)
    return Tiling(*whole)


@cache
def _tiles(unit: str) -> Floats:
    """The usual tiles' rows, columns and shares of the peak, `[3, tiles, 1, 1]`."""
    rows, columns = np.meshgrid(_C.tile_sides, _C.tile_sides)
    most = 2.0 * _C.full_block_outputs
    usual = (rows * columns <= most) & (abs(np.log2(rows / columns)) <= 1.0)
    rows, columns = rows[usual], columns[usual]
    side = rows * columns / (rows + columns)
    reached = side / (side + _C["tile_half_side"][unit])
    return np.array([rows, columns, reached / reached.max()])[:, :, None, None]


def _fastest(sizes: Floats, device: Device, unit: str, splits: NDArray[np.int_]) -> Floats:
    """The columns of `Tiling` `[columns, n]`, from all candidates `[tiles, splits, n]`."""
    b, m, n, k, item_bytes, per_sm = sizes
    rows, columns, frac = _tiles(unit)
    sms, l2 = float(device.sm_count), rates.l2_bytes_per_us(device)
    across = np.ceil(m / rows) * np.ceil(n / columns) * b
    step_us = 2.0 * rows * columns / (per_sm * frac)
    is_split = splits > 1.0
    least = np.where(is_split, _MIN_DEPTH[True], _MIN_DEPTH[False])
    depth = np.maximum(np.ceil(k / (splits * _K_STEP)) * _K_STEP, least)
    rounds = np.ceil(across * splits / sms)
    serial = depth * step_us / _C["alone_frac"][unit]
    starts = starts_us(rounds, rows * columns, device)
    compute = np.maximum(serial, rounds * depth * step_us) + starts
    loads = across * splits * depth * (rows + columns) * item_bytes / l2
    start = max(_C.prologue_us, device.kernel_floor_us)
    joining = np.where(is_split, _KERNEL.start_us + _JOINED_BYTES * splits * b * m * n / l2, 0.0)
    time = np.maximum(compute, loads) + start + joining
    at = np.arange(len(m))
    tile, place = np.divmod(time.reshape(-1, len(m)).argmin(axis=0), len(splits))
    best = tile, place, at
    chosen, wide, tall = across[tile, 0, at], columns[tile, 0, 0], rows[tile, 0, 0]
    split, waves = splits[place, 0], rounds[best]
    return np.array(
        [
            time[best],
            loads[best],
            tall,
            wide,
            waves,
            b * m * n / (chosen * tall * wide),
            chosen * split / (waves * sms),
            split,
            serial[best],
            starts[best],
        ]
    )


def starts_us(rounds: Floats, block_outputs: Floats, device: Device) -> Floats:
    """What rounds of blocks after the first take to start; small blocks start several at once."""
    most, round_us = _C["blocks_at_once"][device.target], _C["round_us"][device.target]
    at_once = np.clip(_C.full_block_outputs / block_outputs, 1.0, most)
    return np.asarray(np.maximum(rounds / at_once - 1.0, 0.0) * round_us)


def by_vector_us(
    b: Floats, m: Floats, n: Floats, k: Floats, item: Floats, device: Device
) -> Floats:
    """Products with one vector each, which are read once, a block per output; else infinite."""
    read_bytes = b * k * (m + n) * item
    rate = _C.vector_l2_frac * rates.l2_bytes_per_us(device)
    read_us = read_bytes / rate + k * item / _C.vector_bytes_per_us
    return np.asarray(np.where((m == 1.0) | (n == 1.0), read_us, np.inf))


_AS_HALF = ("fp16", "bf16", "tf32")
"""Types of the matrix units whose operands come as they are multiplied."""


def overlapped(
    compute_us: Floats, memory_us: Floats, dtypes: Sequence[str], device: Device
) -> Floats:
    """The time of both, between the longer one and their sum, `[n]` of rows of `dtypes`.

    Multiplying and moving overlap as far as the kernels of the chip's generation load the next
    operands, and store the last outputs, beside multiplying these.
    """
    corner = rates.of_dtypes(dtypes, lambda dtype: _corner(dtype, device))
    return np.asarray((compute_us**corner + memory_us**corner) ** (1.0 / corner))


@lru_cache(maxsize=1024)
def _corner(dtype: str, device: Device) -> float:
    corners: dict[str, float] = _C["corner"]
    is_half = rates.COMPUTE_DTYPE.get(dtype, dtype) in _AS_HALF
    if not (is_half and rates.has_matrix_units(device, [dtype])[0]):
        return corners[rates.USUAL]
    return rates.of_generation(device, corners)


QUANTISED = frozenset({"fp8", "fp8_static", "fp8_block", "nvfp4", "int8"})
"""Dtypes whose linear layer first rounds 16-bit activations in a kernel of its own."""
_HALF_ACTIVATIONS = QUANTISED | {"int8_wo", "int4_wo", "int4"}
_COME_ROUNDED = {TORCH: QUANTISED, "trtllm": frozenset({"int8"})}
"""By framework, dtypes of products whose activations come rounded: PyTorch rounds by an op of its
own, TensorRT-LLM's SmoothQuant in the layer before (NVIDIA/TensorRT-LLM)."""
_SUMS = {"int8": "int32"}
"""What PyTorch's products return, where it is not of 16 bits (`_int_mm`)."""
_ALIGNED_BYTES = 16
"""The most that one load or asynchronous copy of a thread moves: 128 bits."""
_ASYNCHRONOUS_BYTES = 4
"""The least that one asynchronous copy moves (NVIDIA, PTX ISA, `cp.async`): where rows start at
multiples of less, operands come element by element, and moving slows down as much (assumed; such
products of an H100 trace, 3,137 a side in bf16, take 2.1 to 2.4 times as long as aligned ones). AMD
GPUs have no such copies: there only multiplying slows down."""
_TELLS_FROM = "8.0"
"""Compute capability from which tiles come by such copies. Of older devices only products are known
that were padded before they were timed (baidu-research/DeepBench), which rows do not say."""
_REPLAYED = "cuda_graph_replay"


def sides(rows: Rows) -> Floats:
    """b, m, n, k, and whether there is a bias, `[5, rows]`."""
    sizes = np.zeros((5, len(rows)))
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        sizes[:4, index] = [dims[name] for name in ("b", "m", "n", "k")]
        sizes[4, index] = dims.get("bias", 0.0)
    return sizes


def analyse(rows: Rows, device: Device) -> Analysis:
    """Tiles at the peak of the dtype's units, rounds of which start anew; bytes move beside. All
    at what the power limit leaves of the peak. Raises `ModelError` for types without units."""
    b, m, n, k, bias = sides(rows)
    stored, dtypes = rows.item_bytes, rows.dtype
    activations, results, quantised = _beside_weights(rows)
    flop, weights_bytes = 2.0 * b * m * n * k, b * n * k * stored
    read_bytes = b * m * k * activations + weights_bytes + bias * n * results
    written_bytes = b * m * n * results
    total = read_bytes + written_bytes
    rounding_us = _KERNEL.start_us + rates.transfer_us(m * k * (activations + stored), device)
    quantise_us = np.where(quantised, rounding_us, 0.0)
    # PyTorch copies a layer's bias before a product with a vector.
    beside_us = np.where((n == 1.0) & (bias > 0.0), _C.bias_copy_us, 0.0)

    # Of an element as the units multiply it.
    item = rates.of_dtypes(
        dtypes, lambda of: item_bytes(rates.COMPUTE_DTYPE.get(of, of).replace("fp4", "nvfp4"))
    )
    on_units = rates.has_matrix_units(device, dtypes)
    is_cuda, tells = device.target == "cuda", on_units & (not rates.is_older(device, _TELLS_FROM))
    is_odd, by_element = (
        tells & (np.mod(k * item, least) + np.mod(n * item, least) > 0)
        for least in (_ALIGNED_BYTES, _ASYNCHRONOUS_BYTES)
    )
    replayed_us = _weights_us(weights_bytes, device)
    replayed_us = replayed_us + rates.transfer_us(total - weights_bytes, device)
    is_replayed = rows.of_kinds(lambda kind: kind.timing == _REPLAYED, bool)
    moving_us = np.where(is_replayed, replayed_us, rates.transfer_us(total, device))
    memory = moving_us * np.where(by_element & is_cuda, _C.misaligned, 1.0)

    peak = rates.matrix_flop_per_us(device, dtypes)
    known = _C["vector_reached_frac"]
    by_vectors = known.get(rates.capability_of(device), known[rates.USUAL])
    reached = np.where(on_units, device.gemm_peak_frac, by_vectors)
    tiling = fastest(b, m, n, k, item, peak * reached, device, on_units)
    shortest_us = max(_C.prologue_us, device.kernel_floor_us)
    by_vector = shortest_us + by_vector_us(b, m, n, k, item, device)
    compute = np.minimum(tiling.time_us, by_vector) * np.where(is_odd, _C.misaligned, 1.0)
    bound = np.maximum(flop / peak, rates.bound_us(total, device))
    limited = np.maximum(bound, flop / rates.sustained_flop_per_us(device, dtypes, peak))
    busy = np.maximum(overlapped(compute, memory, dtypes, device), limited)
    own = {n: each for n, each in tiling._asdict().items() if n not in ("time_us", "l2_us")}
    return Analysis(
        bound_us=bound,
        kernel_us=busy + quantise_us + beside_us,
        shares={"compute": compute, "memory": memory, "cache": tiling.l2_us},
        flop=flop,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        features=own | {"peak_us": flop / peak, "quantise_us": quantise_us, "beside_us": beside_us},
    )


def _weights_us(weights_bytes: Floats, device: Device) -> Floats:
    """Of graphs that are replayed, with several copies of the weights in turn: from memory, but
    where all of them lie in the L2."""
    missed = rates.missed_share(_C.weight_copies * weights_bytes, device)
    from_cache = weights_bytes / (_C.few_blocks_frac * rates.l2_bytes_per_us(device))
    return np.maximum(missed * weights_bytes / rates.stream_bytes_per_us(device), from_cache)


def _beside_weights(rows: Rows) -> tuple[Floats, Floats, Mask]:
    """(bytes of an activation, of a result, whether a kernel of its own rounds activations)."""
    stored, is_half = rows.item_bytes, _among(rows.dtype, _HALF_ACTIVATIONS)
    if not is_half.any():
        return stored, stored, is_half
    framework = rows.in_framework()
    rounded = np.zeros(len(rows), bool)
    for name, dtypes in _COME_ROUNDED.items():
        rounded |= (framework == framework_code(name)) & _among(rows.dtype, dtypes)
    activations = np.where(is_half & ~rounded, 2.0, stored)
    sums = rates.of_dtypes(rows.dtype, lambda dtype: item_bytes(_SUMS.get(dtype, "bf16")))
    results = np.where(framework == framework_code(TORCH), sums, 2.0)
    results = np.where(is_half, results, stored)
    return activations, results, _among(rows.dtype, QUANTISED) & ~rounded


def _among(dtypes: Sequence[str], some: frozenset[str]) -> Mask:
    return rates.of_dtypes(dtypes, some.__contains__)


_EXPERTS = coefficients("gpu.experts")
_POINTS = 32
_RANKS = (np.arange(_POINTS)[:, None] + 0.5) / _POINTS
"""Of experts by their load, as shares: a few, evenly spaced, stand for all."""


@analyse_by_group
def analyse_experts(group: Group, device: Device) -> Analysis:
    """Two batched products over the experts that are hit, each of which is read once; then what
    sorts, gathers, gates and adds up."""
    dims, item, count = group.dims, group.item_bytes, len(group.index)
    hidden, inter, routed = dims["hidden"], dims["inter"], dims["tokens"] * dims["topk"]
    hit, most = expert_loads(dims)
    each = routed / hit
    texts = (("bmm",) * count, tuple(group.dtypes), ("fwd",) * count, (KERNEL,) * count)
    first, second = (
        analyse(Rows(*texts, {"b": hit, "m": each, "n": n, "k": k}), device)
        for n, k in ((2.0 * inter, hidden), (hidden, inter))
    )
    beside = rates.transfer_us(item * routed * (inter + 2.0 * (inter + hidden)), device)
    weights = item * hit * hidden * (2.0 * inter + inter)
    peak_us = group.flop / rates.matrix_flop_per_us(device, group.dtypes)
    bound = np.maximum(peak_us, rates.bound_us(group.written_bytes + weights, device))
    busy = np.maximum(first.kernel_us + second.kernel_us, bound)
    weights_us = rates.transfer_us(weights, device)
    group = replace(group, read_bytes=item * dims["tokens"] * hidden + weights)
    return group.analysis(
        bound_us=bound,
        kernel_us=busy + beside + _EXPERTS.launches * _KERNEL.start_us,
        shares={name: own + second.shares[name] for name, own in first.shares.items()},
        features={"peak_us": peak_us, "hit": hit, "each": each, "uneven": most / each}
        | {"columns": second.features["tile_columns"], "weights_us": weights_us},
    )


def expert_loads(dims: Dims) -> tuple[Floats, Floats]:
    """(experts that are hit, tokens of the most loaded one), as expected, `[n]` each.

    All alike, tokens are dealt out in turn; else the load of the expert of rank r falls as
    r**-skew, and who is hit is drawn.
    """
    experts, skew = dims["experts"], dims["skew"]
    routed = dims["tokens"] * dims["topk"]
    falls = np.maximum(experts * _RANKS, 1.0) ** -skew
    expected = routed * falls / (experts * falls.mean(axis=0))
    expected = np.minimum(expected, dims["tokens"])
    drawn = experts * -np.expm1(-expected).mean(axis=0)
    drawn = np.maximum(drawn, np.minimum(dims["topk"], experts))  # those of a token are distinct
    hit = np.where(skew > 0.0, drawn, np.minimum(experts, routed))
    return np.maximum(hit, 1.0), np.maximum(expected[0], routed / np.maximum(hit, 1.0))
