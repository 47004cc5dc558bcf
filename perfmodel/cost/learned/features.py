"""What learned models are given per row: a physical scale, its bound, features without units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Floats, clipped
from perfmodel.cost.gpu import attention, convolution, matmul, streaming
from perfmodel.cost.gpu.analysis import Analysis
from perfmodel.cost.gpu.convolution import stride
from perfmodel.cost.gpu.rates import (
    l2_bytes_per_us,
    matrix_flop_per_us,
    missed_share,
    stream_bytes_per_us,
    sustained_flop_per_us,
    transfer_us,
)
from perfmodel.cost.gpu.streaming import ROW_KERNELS, resident_share
from perfmodel.cost.learned.tiles import Tiles, fastest_tiles, tile_key
from perfmodel.hardware import Device
from perfmodel.ops.rows import FIRST_TURNED, FRAMEWORKS, SECOND_TURNED, Kind, Rows
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area


@dataclass(frozen=True)
class Columns:
    """Per row: `base_us` to be multiplied, `bound_us` not to be passed, `extra_us` to be added.

    `work` is the size that the domain of training is told by (FLOP or bytes).
    """

    base_us: Floats
    bound_us: Floats
    extra_us: Floats
    work: Floats
    features: Mapping[str, Floats]
    power_log: Floats
    """Logarithm by which a power limit lengthens the base: measured devices show it in their
    times, and where physics answers alone it is added."""
    analysis: Analysis
    """What physics says before anything is learned."""
    on_chip_frac: Floats | float = 1.0
    """Of the base, what a chip takes however fast its memory is; 1: carried as a multiple of it."""

    def matrix(self, names: tuple[str, ...], constants: Mapping[str, float]) -> np.ndarray:
        """`[rows, names]` float32: features, else constants of the device, or 0."""
        matrix = np.empty((len(self.base_us), len(names)), np.float32)
        for column, name in enumerate(names):
            matrix[:, column] = self.features.get(name, constants.get(name, 0.0))
        return matrix


Build = Callable[[Rows, Device, Tiles], Columns]


def log(values: Floats) -> Floats:
    """Natural logarithm, of at least 1e-9."""
    return np.log(np.maximum(values, 1e-9))


_MIN_SHARE = 0.25
"""Of the time a term takes, below which it decides nothing, and its size tells the device apart
from others instead (assumed)."""


def share(part_us: Floats, whole_us: Floats) -> Floats:
    """Natural logarithm of the share that a term takes, where it may decide the time."""
    return np.log(np.maximum(part_us / whole_us, _MIN_SHARE))


def alignment(values: Floats, most: int = 64) -> Floats:
    """log2 of the largest power of two, up to `most`, that divides each value."""
    whole = np.maximum(values, 1.0).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, most).astype(np.float64)))


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


def streaming_features(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of elementwise ops, reductions, norms and movement."""
    analysis = streaming.analyse(rows, device)
    total = analysis.read_bytes + analysis.written_bytes
    item = rows.item_bytes
    by_row = rows.of_kinds(lambda kind: kind.op in BY_ROW, bool)
    columns = np.where(by_row, _dim(rows, "cols"), _USUAL_COLUMNS)
    down = np.where(by_row, _dim(rows, "rows"), analysis.written_bytes / item / _USUAL_COLUMNS)
    base = analysis.kernel_us
    features = {
        "cols": log(columns),
        "align_cols": alignment(columns),
        "row_bytes": log(columns * item),
        "fill": clipped(log(total / device.l2_bytes), -6.0, 3.0),
        "rows_per_sm": clipped(log(down / device.sm_count), -6.0, 6.0),
        "flop_per_byte": log(analysis.flop / total),
        "read_share": analysis.read_bytes / total,
        "item_bytes": np.log2(item),
        "compute": share(analysis.shares["compute"], base),
        "row_fill": log(columns / 2.0 ** np.ceil(np.log2(columns))),
        "unrolled": np.where(by_row, np.mod(np.ceil(columns / _ROW_STEP), _UNROLL), 0.0),
        "resident": clipped(log(_resident(rows, device)), -4.0, 4.0),
    }
    features |= _is_one_of(rows, _SEEN, lambda kind: kind.op)
    nothing = np.zeros(len(rows))
    on_chip = np.maximum(analysis.shares["compute"], analysis.shares["cache"]) / base
    return Columns(base, analysis.bound_us, nothing, total, features, nothing, analysis, on_chip)


def _is_one_of(rows: Rows, texts: tuple[str, ...], own: Callable[[Kind], str]) -> dict[str, Floats]:
    """Of each of `texts` a figure that is 1 for rows whose `own` it is, else 0."""
    is_each = rows.of_kinds(lambda kind: [own(kind) == each for each in texts])
    return dict(zip(map("is_{}".format, texts), is_each.T, strict=True))


def _resident(rows: Rows, device: Device) -> np.ndarray:
    share = np.zeros(len(rows))
    for op, index in rows.groups():
        if op in ROW_KERNELS:
            dims, item = rows.dims_of(op, index), rows.item_bytes[index]
            share[index] = resident_share(op, dims["rows"], dims["cols"], item, device)
    return share


def convolutions(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of convolutions, forward and backward."""
    dims = ("in_channels", "out_channels", "batch")
    columns = _columns(rows, device, convolution.analyse_convolution(rows, device), dims)
    window, image, step = np.zeros((3, len(rows)))
    for op, index in rows.groups():
        own = rows.dims_of(op, index)
        window[index], image[index], step[index] = kernel_area(own), input_area(own), stride(own)
    is_forward = rows.of_kinds(lambda kind: kind.direction not in _BACKWARD, np.float64)
    sides = {WINDOW: log(window), "image": log(image), "stride": log(step)}
    return replace(columns, features={**columns.features, **sides, FORWARD: _FAR * is_forward})


def attentions(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of fused attention."""
    dims = ("s", "head_dim", "kv_heads", "heads", "b", "window_size")
    return _columns(rows, device, attention.analyse_attention(rows, device), dims)


_BACKWARD = ("bwd_data", "bwd_weight")
FORWARD, WINDOW = "forward", "window"


def _columns(rows: Rows, device: Device, analysis: Analysis, dims: tuple[str, ...]) -> Columns:
    base = analysis.kernel_us
    total = analysis.read_bytes + analysis.written_bytes
    item = rows.item_bytes
    features = {f"log_{name}": log(_dim(rows, name)) for name in dims}
    features |= {f"share_{name}": log(each / base) for name, each in analysis.shares.items()}
    features |= {
        name: log(each / base) if name.endswith("_us") else log(each)
        for name, each in analysis.features.items()
    }
    features |= {
        "align_0": alignment(_dim(rows, dims[0])),
        "align_1": alignment(_dim(rows, dims[1])),
        "item_bytes": np.log2(item),
        "intensity": log(analysis.flop / total),
        "fill": log(total / device.l2_bytes),
        "base": log(base),
        "bound": log(analysis.bound_us / base),
    }
    features |= _frameworks(rows)
    features |= _is_one_of(rows, _BACKWARD, lambda kind: kind.direction)
    nothing = np.zeros(len(rows))
    return Columns(base, analysis.bound_us, nothing, analysis.flop, features, nothing, analysis)


def _dim(rows: Rows, name: str) -> np.ndarray:
    """The dim of each row; 1 where there is none."""
    values = rows.dims.get(name, np.ones(len(rows)))
    return np.where(np.isnan(values) | (values <= 0), 1.0, values)


_CORNER = 8.0
_REPLAYED = "cuda_graph_replay"
_WEIGHT_COPIES = 5.0
"""Graphs that are replayed multiply with several copies of the weights in turn, which together may
lie in the L2. Source: the column `weight_copies` of ai-dynamo/aiconfigurator@095f58a51c, 4 to 6."""
_FEW_BLOCKS_FRAC = 0.5
"""Share of what the L2 delivers that the blocks of few rows ask for (assumed: as scattered reads
do, 0.54 on an A100)."""
_START_CYCLES = 4500.0
"""Clock cycles from a product's launch to its first tile and from its last one to its end."""

_TELLS_FROM = 8.0
"""Compute capability from which tiles come by asynchronous copies, of 16 bytes or fewer at a time
(NVIDIA, PTX ISA, `cp.async`). Of older devices only products are known that were padded before
they were timed (baidu-research/DeepBench, `PAD_KERNELS`), which rows do not say."""

ALIGNED = "align_both"
"""log2 of the elements that the rows of both operands start at multiples of: rows that start within
a sector make every load of a tile take one sector more."""
MAX_ALIGNED = 4.0
ROUNDING, _FAR = "rounding", 2.0
"""Of layers that round their activations first, above products alone by so much that what was
learned of those tells nothing of these."""
MATMUL_FALLING = ("per_sm", "depth")
"""More blocks per multiprocessor and a longer loop over k never lower the share of the peak."""
_KINDS = ("fp8_static", "fp8_block", "nvfp4", "int8", "int8_wo", "int4_wo", "bf16")


MAX_SIDE = 65536.0
"""The longest side of measured products, but for 128 rows of DeepBench whose k reaches 500,000. One
more block of rows is then as the block before it: features of longer ones, in fits too, are those
of as many, at which their share of the base stays."""


def matmul_features(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    """Columns of matrix products of any op and dtype."""
    columns = _matmul_columns(rows, device, tiles)
    sides = {name: rows.dims[name] for name in ("m", "n", "k")}
    if not any(np.any(side > MAX_SIDE) for side in sides.values()):
        return columns
    measured = {name: np.minimum(side, MAX_SIDE) for name, side in sides.items()}
    shorter = replace(rows, dims={**rows.dims, **measured})
    return replace(columns, features=_matmul_columns(shorter, device, tiles).features)


def _matmul_columns(rows: Rows, device: Device, tiles: Tiles) -> Columns:
    analysis = matmul.bounds(rows, device)
    b, m, n, k = _sizes(rows)
    peak = matrix_flop_per_us(device, rows.dtype)
    stored = rows.item_bytes
    rate = peak * device.gemm_peak_frac
    sms = float(device.sm_count)
    tile_rows, tile_columns, splits, compute = np.zeros((4, len(rows)))
    for key, index in rows.grouped(lambda kind: tile_key(kind.op, kind.dtype, device)):
        sizes = np.array([b, m, n, k])[:, index]
        chosen = fastest_tiles(sizes, rate[index], device, key, tiles)
        tile_rows[index], tile_columns[index], splits[index], compute[index] = chosen
    down, across = np.ceil(m / tile_rows), np.ceil(n / tile_columns)
    blocks = b * down * across * splits
    per_sm = blocks / sms
    depth = np.ceil(k / splits)
    loads = blocks * depth * (tile_rows + tile_columns) * stored / l2_bytes_per_us(device)
    weights_bytes = b * n * k * stored
    others = transfer_us(analysis.read_bytes + analysis.written_bytes - weights_bytes, device)
    slower, slower_moved = _misaligned(analysis, device)
    memory = slower_moved * (_weights_us(weights_bytes, rows, device) + others)
    start = _START_CYCLES / device.boost_mhz
    power = analysis.flop / sustained_flop_per_us(device, rows.dtype, peak)
    quantise = analysis.features["quantise_us"]
    alone = matmul.by_vector_us(b, m, n, k, stored, device)
    compute = slower * np.minimum(compute, alone)
    busy = matmul.overlapped(compute, memory, rows.dtype, device)
    before = start + analysis.features["beside_us"]
    base = before + busy
    limited = before + (busy**_CORNER + power**_CORNER) ** (1.0 / _CORNER)
    is_layer = rows.of_kinds(lambda kind: kind.op == "linear", np.float64)
    of_logs = {
        "depth": depth,
        "per_sm": per_sm,
        "wave": np.ceil(per_sm) / per_sm,
        "fill": blocks / splits * tile_rows * tile_columns / (b * m * n),
        "memory": memory / base,
        "compute": compute / base,
        "loads": loads / base,
        "blocks_down": down,
        "blocks_across": across,
        "k_bytes": k * stored,
        "quantise": quantise / base,
        "weights_fill": weights_bytes / device.l2_bytes,
        "start": before / base,
    }
    features = dict(zip(of_logs, log(np.array([*of_logs.values()])), strict=True))
    align_n, align_k = alignment(np.array([n, k]))
    features |= {
        "tile_rows": np.log2(tile_rows),
        "tile_columns": np.log2(tile_columns),
        "splits": np.log2(splits),
        "align_n": align_n,
        "align_k": align_k,
        ALIGNED: np.minimum(align_k, np.minimum(align_n, MAX_ALIGNED)),
        "is_batched": (b > 1.0).astype(np.float64),
        "is_layer": is_layer,
        FIRST_TURNED: _turned(rows, FIRST_TURNED, 0.0),
        SECOND_TURNED: _FAR * _turned(rows, SECOND_TURNED, is_layer),
        "item_bytes": np.log2(stored),
        ROUNDING: np.where(quantise > 0.0, _FAR, 0.0),
        "warm": _found_in_cache(rows),
    }
    features |= _is_one_of(rows, _KINDS, lambda kind: kind.dtype)
    features |= _frameworks(rows)
    power_log = log(limited / base)
    return Columns(base, analysis.bound_us, quantise, analysis.flop, features, power_log, analysis)


def _frameworks(rows: Rows) -> dict[str, Floats]:
    """Whose kernels ran; all zero where that is not known, which some of the rows of a fit are."""
    code = rows.in_framework()
    places = enumerate(FRAMEWORKS, 1)
    return {f"in_{name}": (code == place).astype(np.float64) for place, name in places}


def _turned(rows: Rows, operand: str, usual: Floats | float) -> Floats:
    """Whether an operand is read transposed, which libraries have other kernels for: as the row
    says, else as its op does."""
    turned = rows.dims.get(operand, np.full(len(rows), np.nan))
    return np.asarray(np.where(np.isnan(turned), usual, turned))


def _found_in_cache(rows: Rows) -> Floats:
    """Whether the same product came just before, in fewer bits than 16. In others what programs ask
    about is as warm rows where a step fits the L2, as flushed ones where not, which no row says."""
    is_warm = rows.dims.get("warm", np.zeros(len(rows))) > 0.0
    is_narrow = rows.of_kinds(lambda kind: kind.dtype in matmul.QUANTISED)
    return np.asarray(is_warm * is_narrow)


def _misaligned(analysis: Analysis, device: Device) -> tuple[Floats, Floats]:
    """Factors of multiplying and of moving, where rows of operands start amid a vector."""
    names = ("misaligned_factor", "by_element_factor")
    tells = device.target != "cuda" or float(device.compute_capability or 0.0) >= _TELLS_FROM
    multiplying, moving = (analysis.features[name] if tells else 1.0 for name in names)
    return np.asarray(multiplying), np.asarray(moving)


def _weights_us(weights_bytes: Floats, rows: Rows, device: Device) -> Floats:
    """From memory, but for replayed graphs whose weights all lie in the L2."""
    replayed = rows.of_kinds(lambda kind: kind.timing == _REPLAYED, bool)
    missed = np.where(replayed, missed_share(_WEIGHT_COPIES * weights_bytes, device), 1.0)
    from_memory = missed * weights_bytes / stream_bytes_per_us(device)
    from_cache = weights_bytes / (_FEW_BLOCKS_FRAC * l2_bytes_per_us(device))
    return np.asarray(np.where(replayed, np.maximum(from_memory, from_cache), from_memory))


def _sizes(rows: Rows) -> tuple[Floats, Floats, Floats, Floats]:
    sizes = np.ones((4, len(rows)))
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        sizes[:, index] = [dims[name] for name in ("b", "m", "n", "k")]
    return sizes[0], sizes[1], sizes[2], sizes[3]


BUILDS: dict[str, Build] = {
    "matmul": matmul_features,
    "stream": streaming_features,
    "convolution": convolutions,
    "attention": attentions,
}
BUILD_OF_FAMILY = {
    "matmul": "matmul",
    "vector": "stream",
    "convolution": "convolution",
    "attention": "attention",
}

FALLING = {"matmul": MATMUL_FALLING}
"""Per build, features in which the time over its base never rises."""

NOT_BELOW = {
    "matmul": ("depth", "k_bytes", ALIGNED, ROUNDING, SECOND_TURNED),
    "convolution": (WINDOW, FORWARD),
}
"""Per build, features below whose least measured value other kernels run or other things decide:
loops too short to fill, operands that start anywhere. Above the largest, sizes go on alike."""
