"""What learned models are given: physics to be multiplied, features without units of rows and
devices.

A device is its description, never its name. One that was made from one of the catalogue by changing
values (half the bandwidth, another clock) is answered for as that one
(`perfmodel.hardware.catalogue`), times what physics makes of the change: measurements hold no such
pairs, and a nearest measured device that changes with a value would make times fall where hardware
gets worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.gpu import attention, convolution, matmul, rates
from perfmodel.cost.gpu.analysis import Analyse, Analysis, Heuristic
from perfmodel.hardware import Device
from perfmodel.ops.rows import FIRST_TURNED, FRAMEWORKS, SECOND_TURNED, Kind, Rows
from perfmodel.ops.vocabulary.matmul import DECODE, decodes, input_area, kernel_area

Description = Mapping[str, float]
SAME = 1e-3
"""The distance below which a device is the one that was measured."""
_USUAL_SHARED_BYTES = 65_536
_ONE_CHIP, _UNRELATED = 0.15, 0.45
"""Distances up to which boards have one chip, and from which devices tell nothing of each other."""
_MIN_BLEND = 0.5
_WATTS_COUNT = 0.5
"""Boards of one chip differ more in their power limits than in how their kernels behave."""


def describe(device: Device) -> dict[str, float]:
    """Logarithms of rates per clock and multiprocessor, of cache, power and limits."""
    clocks = device.sm_count * device.boost_mhz
    return {
        "capability": float(rates.capability_of(device) or "0"),
        "is_rocm": float(device.target == "rocm"),
        "sms": math.log(device.sm_count),
        "flop_per_clock": math.log(device.fp32_tflop_per_s * 1e6 / clocks),
        "bytes_per_clock": math.log(device.hbm_gb_per_s * 1e3 / clocks),
        "l2_per_sm": math.log(device.l2_bytes / device.sm_count),
        "mhz": math.log(device.boost_mhz),
        "w_per_tflop": math.log(device.tdp_w / device.fp32_tflop_per_s),
        "peak_frac": math.log(device.gemm_peak_frac),
        "shared_per_sm": math.log(device.shared_bytes_per_sm or _USUAL_SHARED_BYTES),
        "threads_per_sm": math.log(rates.threads_per_sm(device)),
    }


COLUMNS = (
    *("capability", "is_rocm", "sms", "flop_per_clock", "bytes_per_clock", "l2_per_sm"),
    *("mhz", "w_per_tflop", "peak_frac", "shared_per_sm", "threads_per_sm"),
)
"""What `describe` gives."""


def distance(one: Description, other: Description) -> float:
    """The largest difference of any feature; 0 for the same device."""
    off = {name: abs(one[name] - other[name]) for name in COLUMNS}
    off["w_per_tflop"] *= _WATTS_COUNT
    return max(off.values())


def same_maker(one: Description, other: Description) -> bool:
    """Whether both devices run the libraries of one maker."""
    return one["is_rocm"] == other["is_rocm"]


def similarity(away: float) -> float:
    """How far devices at that distance behave alike: 1 for boards of one chip, 0 for unrelated."""
    return min(1.0, max(0.0, (_UNRELATED - away) / (_UNRELATED - _ONE_CHIP)))


def interval_blend(away: float) -> float:
    """How far an interval is that of a device left out: 0 where the device itself was measured,
    half for boards of one chip (assumed), 1 for unrelated devices."""
    return 0.0 if away < SAME else 1.0 - (1.0 - _MIN_BLEND) * similarity(away)


@dataclass(frozen=True)
class Columns:
    """Per row: what physics says, of which `base_us` is multiplied and `extra_us` added, and the
    features of trees."""

    analysis: Analysis
    work: Floats
    """The size that the range of measurements is kept by (FLOP or bytes)."""
    features: Mapping[str, Floats]
    extra_us: Floats | float = 0.0

    @cached_property
    def base_us(self) -> Floats:
        return self.analysis.kernel_us - self.extra_us

    def matrix(self, names: tuple[str, ...], constants: Description) -> np.ndarray:
        """`[rows, names]` float32: features, else constants of the device, or 0."""
        matrix = np.empty((len(self.base_us), len(names)), np.float32)
        for column, name in enumerate(names):
            matrix[:, column] = self.features.get(name, constants.get(name, 0.0))
        return matrix


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


def _is_one_of(rows: Rows, texts: tuple[str, ...], own: Callable[[Kind], str]) -> dict[str, Floats]:
    """Of each of `texts` a feature that is 1 for rows whose `own` it is, else 0."""
    is_each = rows.of_kinds(lambda kind: [own(kind) == each for each in texts])
    return dict(zip(map("is_{}".format, texts), is_each.T, strict=True))


def _dim(rows: Rows, name: str) -> np.ndarray:
    """The dim of each row; 1 where there is none."""
    values = rows.dims.get(name, np.ones(len(rows)))
    return np.where(np.isnan(values) | (values <= 0), 1.0, values)


_SEEN = (
    *("add", "add_scalar", "mul", "mul_scalar", "div", "div_scalar", "pow", "pow_scalar"),
    *("relu", "gelu", "tanh", "sigmoid", "silu_and_mul", "rotary_embedding"),
    *("softmax", "layer_norm", "rms_norm", "sum", "copy", "cat", "transpose_copy", "embedding"),
)
"""Ops with a feature of their own: kernels of one op are written once for all devices."""
BY_ROW = frozenset(
    {"softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "batch_norm"}
    | {"sum", "mean", "amax", "vector_norm", "sum_rows"}
)
"""Ops whose kernels work row by row; to others a shape is its number of elements."""
_USUAL_COLUMNS = 1024.0
_ROW_STEP, _UNROLL = 512.0, 4.0
"""Columns that the 128 threads of a norm's block take at once, four each; steps of that loop that
are issued together: what is left over runs one by one."""


def streaming_features(rows: Rows, device: Device) -> Columns:
    """Columns of elementwise ops, reductions, norms and movement."""
    analysis = rates.analyse(rows, device)
    total, base = analysis.read_bytes + analysis.written_bytes, analysis.kernel_us
    item, by_row = rows.item_bytes, rows.of_kinds(lambda kind: kind.op in BY_ROW, bool)
    columns = np.where(by_row, _dim(rows, "cols"), _USUAL_COLUMNS)
    down = np.where(by_row, _dim(rows, "rows"), analysis.written_bytes / item / _USUAL_COLUMNS)
    resident = np.zeros(len(rows))
    for op, index in rows.groups():
        if op in rates.ROW_KERNELS:
            dims = rows.dims_of(op, index)
            own = dims["rows"], dims["cols"], item[index], device
            resident[index] = rates.resident_share(op, *own)
    features = {
        "cols": log(columns),
        "align_cols": alignment(columns),
        "row_bytes": log(columns * item),
        "fill": np.clip(log(total / device.l2_bytes), -6.0, 3.0),
        "rows_per_sm": np.clip(log(down / device.sm_count), -6.0, 6.0),
        "flop_per_byte": log(analysis.flop / total),
        "read_share": analysis.read_bytes / total,
        "item_bytes": np.log2(item),
        "compute": share(analysis.shares["compute"], base),
        "row_fill": log(columns / 2.0 ** np.ceil(np.log2(columns))),
        "unrolled": np.where(by_row, np.mod(np.ceil(columns / _ROW_STEP), _UNROLL), 0.0),
        "kept": np.clip(-log(resident), -4.0, 4.0),  # the L2 over rows that are read again
    } | _is_one_of(rows, _SEEN, lambda kind: kind.op)
    if rows.in_framework().any():
        features |= _frameworks(rows)
    return Columns(analysis, total, features)


_BACKWARD = ("bwd_data", "bwd_weight")
FORWARD, WINDOW = "forward", "window"
_FAR = 2.0
"""By how much a kind of rows lies above others, so that what was learned of those tells nothing of
these (`NOT_BELOW`)."""


def convolution_features(rows: Rows, device: Device) -> Columns:
    """Columns of convolutions, forward and backward."""
    analysis = convolution.analyse_convolution(rows, device)
    features = _of_products(rows, device, analysis, ("in_channels", "out_channels", "batch"))
    window, image, step, whole = np.zeros((4, len(rows)))
    for op, index in rows.groups():
        own = rows.dims_of(op, index)
        window[index], image[index] = kernel_area(own), input_area(own)
        step[index], whole[index] = convolution.stride(own), own["groups"] <= 1.0
    is_forward = rows.of_kinds(lambda kind: kind.direction not in _BACKWARD, np.float64)
    features |= {WINDOW: log(window), "image": log(image), "stride": log(step)}
    # Of groups nothing was measured: they lie below all that was.
    features[FORWARD] = _FAR * np.where(whole > 0.0, is_forward, -1.0)
    return Columns(analysis, analysis.flop, features)


def attention_features(rows: Rows, device: Device) -> Columns:
    """Columns of fused attention."""
    analysis = attention.analyse_attention(rows, device)
    dims = ("s", "head_dim", "kv_heads", "heads", "b", "window_size")
    return Columns(analysis, analysis.flop, _of_products(rows, device, analysis, dims))


def experts_features(rows: Rows, device: Device) -> Columns:
    """Columns of layers of experts."""
    analysis = matmul.analyse_experts(rows, device)
    dims = ("hidden", "inter", "experts", "tokens", "topk")
    return Columns(analysis, analysis.flop, _of_products(rows, device, analysis, dims))


def _of_products(
    rows: Rows, device: Device, analysis: Analysis, dims: tuple[str, ...]
) -> dict[str, Floats]:
    base, total = analysis.kernel_us, analysis.read_bytes + analysis.written_bytes
    features = {f"log_{name}": log(_dim(rows, name)) for name in dims}
    features |= {f"share_{name}": log(each / base) for name, each in analysis.shares.items()}
    features |= {
        name: log(each / base) if name.endswith("_us") else log(each)
        for name, each in analysis.features.items()
    }
    features |= {
        "align_0": alignment(_dim(rows, dims[0])),
        "align_1": alignment(_dim(rows, dims[1])),
        "item_bytes": np.log2(rows.item_bytes),
        "intensity": log(analysis.flop / total),
        "fill": log(total / device.l2_bytes),
        "base": log(base),
        "bound": log(analysis.bound_us / base),
    }
    return features | _frameworks(rows) | _is_one_of(rows, _BACKWARD, lambda kind: kind.direction)


def _frameworks(rows: Rows) -> dict[str, Floats]:
    """Whose kernels ran; all zero where that is not known, which some of the rows of a fit are."""
    code = rows.in_framework()
    places = enumerate(FRAMEWORKS, 1)
    return {f"in_{name}": (code == place).astype(np.float64) for place, name in places}


ALIGNED = "align_both"
"""log2 of the elements that the rows of both operands start at multiples of: rows that start within
a sector make every load of a tile take one sector more."""
_MAX_ALIGNED = 4.0
ROUNDING = "rounding"
_KINDS = ("fp8_static", "fp8_block", "nvfp4", "int8", "int8_wo", "int4_wo", "bf16")


def matmul_features(rows: Rows, device: Device) -> Columns:
    """Columns of matrix products of any op and dtype."""
    analysis = matmul.analyse(rows, device)
    own, shares, stored = analysis.features, analysis.shares, rows.item_bytes
    extra = own["quantise_us"]
    base = analysis.kernel_us - extra
    b, m, n, k, _ = matmul.sides(rows)
    is_layer = rows.of_kinds(lambda kind: kind.op == "linear", np.float64)
    # The same product just before tells something in fewer bits than 16 alone: in others programs
    # find what they need in the cache where a step fits there, which no row says.
    is_narrow = rows.of_kinds(lambda kind: kind.dtype in matmul.QUANTISED)
    is_warm = rows.dims.get("warm", np.zeros(len(rows))) > 0.0

    def turned(operand: str, usual: Floats | float) -> Floats:
        """Whether an operand is read transposed, which libraries have other kernels for."""
        values = rows.dims.get(operand, np.full(len(rows), np.nan))
        return np.asarray(np.where(np.isnan(values), usual, values))

    down, across = np.ceil(m / own["tile_rows"]), np.ceil(n / own["tile_columns"])
    per_sm = b * down * across * own["splits"] / device.sm_count
    of_logs = {
        "depth": np.ceil(k / own["splits"]),
        "per_sm": per_sm,
        "wave": np.ceil(per_sm) / per_sm,
        "fill": own["filled_frac"],
        "memory": shares["memory"] / base,
        "compute": shares["compute"] / base,
        "loads": shares["cache"] / base,
        "serial": own["serial_us"] / base,
        "blocks_down": down,
        "blocks_across": across,
        "k_bytes": k * stored,
        "quantise": extra / base,
        "weights_fill": b * n * k * stored / device.l2_bytes,
        "starts": own["starts_us"] / base,
    }
    features = dict(zip(of_logs, log(np.array([*of_logs.values()])), strict=True))
    align_n, align_k = alignment(np.array([n, k]))
    features |= {
        "tile_rows": np.log2(own["tile_rows"]),
        "tile_columns": np.log2(own["tile_columns"]),
        "splits": np.log2(own["splits"]),
        "align_n": align_n,
        "align_k": align_k,
        ALIGNED: np.minimum(align_k, np.minimum(align_n, _MAX_ALIGNED)),
        "is_batched": (b > 1.0).astype(np.float64),
        "is_layer": is_layer,
        FIRST_TURNED: turned(FIRST_TURNED, 0.0),
        SECOND_TURNED: _FAR * turned(SECOND_TURNED, is_layer),
        "item_bytes": np.log2(stored),
        ROUNDING: np.where(extra > 0.0, _FAR, 0.0),
        "warm": np.asarray(is_warm * is_narrow),
    }
    features |= _is_one_of(rows, _KINDS, lambda kind: kind.dtype) | _frameworks(rows)
    return Columns(analysis, analysis.flop, features, extra)


def as_kernels(rows: Rows) -> Rows:
    """`rows` as the ops whose kernels they run: attention of one query over more keys decodes;
    products of two matrices are layers without a bias, in fewer bits than 16 batches of one too."""
    index = np.flatnonzero(rows.of_kinds(lambda kind: kind[::2] == ("attention", "fwd"), bool))
    if len(index):
        dims, ops = rows.dims_of("attention", index), np.array(rows.op, object)
        ops[index[decodes(dims) > 0.0]] = DECODE
        rows = replace(rows, op=tuple(ops.tolist()))

    def is_product(op: str, dtype: str) -> bool:
        return op == "mm" or (op == "bmm" and dtype in matmul.QUANTISED)

    index = np.flatnonzero(rows.of_kinds(lambda kind: is_product(kind.op, kind.dtype), bool))
    batch = rows.dims.get("b", np.full(len(rows), np.nan))
    ops = np.array(rows.op, object)
    for op in set(ops[index]):
        rows.dims_of(op, np.flatnonzero(ops == op))  # errors name the op that was asked about
    index = index[(ops[index] == "mm") | (batch[index] == 1.0)]
    if not len(index):
        return rows
    bias = rows.dims.get("bias", np.full(len(rows), np.nan)).copy()
    ops[index], bias[index] = "linear", 0.0
    return replace(rows, op=tuple(ops.tolist()), dims={**rows.dims, "bias": bias})


_FITTED: dict[str, tuple[Callable[[Rows, Device], Columns], Analyse]] = {
    "matmul": (matmul_features, matmul.analyse),
    "vector": (streaming_features, rates.analyse),
    "convolution": (convolution_features, convolution.analyse_convolution),
    "attention": (attention_features, attention.analyse_attention),
    "experts": (experts_features, matmul.analyse_experts),
}
FEATURES = {family: of for family, (of, _) in _FITTED.items()}
"""Of the families that are fitted."""
PHYSICS = {family: Heuristic(family, analyse) for family, (_, analyse) in _FITTED.items()}
"""What answers for them without measurements."""
WITH_BACKWARD = ("convolution",)
"""Those whose tables hold kernels of the backward pass: of others it is only as far off as physics
of the forward pass."""
FALLING = {"matmul": ("per_sm", "depth")}
"""Features with which the time over its base never rises: more blocks per multiprocessor and a
longer loop over k never lower the share of the peak."""
NOT_BELOW = {
    "matmul": ("depth", "k_bytes", ALIGNED, ROUNDING, SECOND_TURNED),
    "convolution": (WINDOW, FORWARD),
    "attention": ("queries_per_key",),
    "vector": ("cols", "kept"),
}
"""Features below whose least measured value other kernels run or other things decide: loops too
short to fill, operands that start anywhere, rows shorter, or longer than a cache keeps. Above the
largest, sizes go on alike."""
