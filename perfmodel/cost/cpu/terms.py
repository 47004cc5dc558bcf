"""What operators take on a CPU, term by term: products, elementwise, sorts, host, lookups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.cpu.family import Call, bound_terms, overlapped_us
from perfmodel.cost.cpu.parameters import Scale, by_vectors, peak_tflop_per_s
from perfmodel.embedding.popularity import touched_rows, zipf_classes
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS, item_bytes
from perfmodel.ops.vocabulary.embedding import stored_row_bytes
from perfmodel.ops.vocabulary.matmul import kernel_area, pairs
from perfmodel.ops.vocabulary.streaming import BUCKET, VIEWS

_C, _CALL = coefficients("cpu.matmul"), coefficients("cpu.call")
_VECTOR, _MEMORY = coefficients("cpu.vector"), coefficients("tiers.host_memory")
_CONVOLUTION, _ATTENTION = coefficients("cpu.convolution"), coefficients("cpu.attention")
_FP32_BYTES = item_bytes("fp32")


def bf16_ratio(device: Device, reached: float) -> float:
    """Rate of bf16 over that of fp32: all that vectors multiply more, `reached` of matrix units."""
    ratio = (device.bf16_tflop_per_s or device.fp32_tflop_per_s) / device.fp32_tflop_per_s
    return max(min(ratio, _FP32_BYTES / 2.0), reached * ratio)


def _core_rate(tflop_per_s: Callable[[Device], float]) -> Scale:
    return lambda device, share: (
        share * device.gemm_peak_frac * tflop_per_s(device) * 1e3 / device.sm_count
    )


RATES: Mapping[str, Scale] = {
    "core_gflop_per_s": _core_rate(lambda device: device.fp32_tflop_per_s),
    "bf16_ratio": bf16_ratio,
}
OF_CONVOLUTIONS: Mapping[str, Scale] = {
    **RATES,
    "core_gflop_per_s": _core_rate(lambda device: peak_tflop_per_s(device, "fp32")),
}
"""An EPYC of Zen 5 and a Xeon both reach 0.7 to 0.85 of the peak at the clock they boost to."""
VECTORS: Mapping[str, Scale] = {"element_ns": by_vectors}


def matmul_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, flop = call.values, call.dims, call.work.flop
    is_int8, device = call.item_bytes == 1.0, call.device
    # FBGEMM has no int8 kernels for matrix units: four products a lane (VNNI), else 16-bit sums.
    # Source: Deng et al. 2021 and FBGEMM, recalled; 3.1 to 4.2 on one Xeon with AMX.
    int8_ratio = (device.int8_tflop_per_s or 0.0) / device.fp32_tflop_per_s
    int8_ratio = min(int8_ratio, _FP32_BYTES) or _C.int8_without_units
    ratio = np.where(is_int8, int8_ratio, 1.0)
    ratio = np.where(call.is_bf16, values["bf16_ratio"], ratio)
    # The share of a core's rate that the dims reach, whole tiles of the output being computed.
    reached, halves = np.ones(len(call)), call.by_dtype(values["bf16_half_ratio"])
    for dim in ("m", "n", "k"):
        reached = reached / (1 + halves * values[f"{dim}_half"] / dims[dim])
    for dim, tile in (("m", _C.tile_rows), ("n", _VECTOR.vector_elements)):
        padded = np.ceil(dims[dim] / tile) * tile
        reached = reached * (dims[dim] / padded) ** values[f"{dim}_tile"]
    serial_us = flop / (values["core_gflop_per_s"] * ratio * reached * 1e3)
    serial_us = serial_us + np.where(dims["b"] > 1, dims["b"], 0.0) * values["matrix_us"]
    is_small = (dims["b"] > 1) & (dims["m"] * dims["n"] * dims["k"] < _C.small_product)
    serial_us = np.where(is_small, 5e-4 * flop * values["mac_ns"], serial_us)
    of_vector = (dims["b"] == 1) & (np.minimum(dims["m"], dims["n"]) == 1)
    serial_us = np.where(of_vector, 5e-4 * flop * values["vector_mac_ns"] / ratio, serial_us)
    is_simple = call.is_bf16 & (flop <= 2 * _C.smallest_library_product)
    serial_us = np.where(is_simple, 5e-4 * flop * values["bf16_mac_ns"], serial_us)
    library_us = np.where(call.is_bf16 & ~is_simple, values["bf16_us"], 0.0)
    cores = call.all_cores
    parallel_us = values["fork_us"] + serial_us / cores
    compute_us = np.minimum(serial_us, parallel_us) if device.sm_count > 1 else serial_us
    rounded_bytes = _FP32_BYTES * dims["b"] * dims["m"] * (dims["k"] + dims["n"])
    moved_bytes = call.moved_bytes + np.where(is_int8, rounded_bytes, 0.0)
    memory_us = call.moving_us(moved_bytes, moved_bytes, cores)
    return {
        "library": library_us,
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(call.work.written_bytes),
    }


def attention_terms(call: Call) -> Mapping[str, Floats]:
    cores, moved = call.all_cores, call.moved_bytes
    rate = call.values["core_gflop_per_s"] * call.by_dtype(call.values["bf16_ratio"])
    keys = pairs(call.dims) / call.dims["s"]  # of each query, in the mean
    rate = rate / (1 + _ATTENTION.keys_half / keys)
    memory_us = call.moving_us(moved, moved, cores)
    compute_us = call.work.flop / (rate * cores * 1e3)
    return {"fork": call.fork_us(cores), "compute": overlapped_us(compute_us, memory_us)}


def convolution_terms(call: Call) -> Mapping[str, Floats]:
    """Work on channels padded to whole blocks, and operands changed to that layout and back: not
    with channels last, which kernels read as they are, nor where one thread does a few images'
    windows of a pixel, which are a product. Source: `use_mkldnn`, ATen/native/Convolution.cpp;
    oneDNN, "Understanding Memory Formats".
    """
    values, dims, written = call.values, call.dims, call.work.written_bytes
    block, groups = _VECTOR.vector_elements, dims["groups"]
    is_depthwise = (groups == dims["in_channels"]) & (groups == dims["out_channels"])
    more_in, more_out = (
        np.where(is_depthwise, 1.0, np.ceil(each / block) * block / each)
        for each in (dims["in_channels"] / groups, dims["out_channels"] / groups)
    )
    # Forward kernels read an input of few channels as it is.
    is_read = (call.direction == "fwd") & (dims["in_channels"] / groups <= block)
    more_in = np.where(is_read, 1.0, more_in)
    cores, ratio = call.all_cores, call.by_dtype(values["bf16_ratio"])
    rate = values["core_gflop_per_s"] * ratio * cores * 1e3
    is_product = (kernel_area(dims) == 1) & (dims["batch"] < _CONVOLUTION.product_images)
    is_blocked = (dims["channels_last"] == 0) & ~(is_product & (call.device.sm_count == 1))
    moved = call.moved_bytes * (1.0 + is_blocked * values["blocked_ratio"])
    return {
        "fork": call.fork_us(cores),
        "compute": call.work.flop * more_in * more_out / rate,
        "memory": call.moving_us(moved, moved, cores),
        "faults": call.faults_us(written) * (1.0 + is_blocked),
    }


IN_PLACE = ("add_inplace", "foreach")
"""Ops that write into a tensor that is there."""
BY_SLICES = ("index_add",)
"""Ops that add slice by slice, where one has more than an element."""
ONE_THREAD = (*BY_SLICES, "scatter_add", "index_put_accumulate")
"""Sums into places that may be the same. Source: `index_add_cpu_`, TensorAdvancedIndexing.cpp;
`scatter_add` and `index_put`, cpu/ScatterGatherKernel.cpp and IndexKernel.cpp of ATen/native.
"""


def streaming_terms(call: Call) -> Mapping[str, Floats]:
    """Elements and rows on their threads, against the bytes; first touches of a large result."""
    values, dims = call.values, call.dims
    spec = OPS[call.op]
    assert spec.size is not None
    elements = spec.size(dims)
    threads = np.ones(len(call)) if call.op in ONE_THREAD else call.threads(elements)
    speed_up = call.speed_up(1 / threads)
    tensors = dims.get("tensors", np.ones(len(call)))
    cols = dims.get("cols", np.zeros(len(call)))
    chunks = dims.get("rows", np.zeros(len(call))) * tensors
    chunks = np.where((call.op in BY_SLICES) & (cols == 1), 0.0, chunks)
    tails = chunks * (cols % _VECTOR.vector_elements > 0)
    walks = np.zeros(len(call))
    if "hash_size" in dims and "rows" in dims:
        # Rows at random places of a table, of which more pages are touched than a core remembers.
        table_bytes = dims["hash_size"] * dims["cols"] * call.item_bytes
        pages = np.minimum(dims["rows"], np.ceil(table_bytes / _CALL.page_bytes))
        walks = dims["rows"] * np.maximum(1 - _VECTOR.known_pages / np.maximum(pages, 1.0), 0.0)
    is_last = dims.get("channels_last", np.zeros(len(call))) > 0  # images, pooled forward
    is_last = is_last & (call.direction == "fwd")
    element_ns = values["element_ns"] * np.where(is_last, _VECTOR.pooled_last, 1.0)
    serial_us = 1e-3 * (
        elements * element_ns * call.by_dtype(values["bf16_ratio"])
        + chunks * values["chunk_ns"]
        + tails * values["tail_ns"]
        + walks * values["walk_ns"]
    )
    written = spec.written_bytes(dims, call.item_bytes)
    moved = spec.read_bytes(dims, call.item_bytes) + written
    made = np.maximum(dims.get("writes", np.ones(len(call))), 1.0)  # tensors
    compute_us = serial_us / speed_up
    memory_us = values["stream_ratio"] * call.moving_us(moved, moved, speed_up)
    beyond_bytes = np.maximum(moved - call.device.last_cache_bytes, 0.0)
    memory_us = np.maximum(memory_us, beyond_bytes / call.device.hbm_gb_per_s / 1e3)
    return {
        "tensors": (tensors - 1) * values["tensor_us"],
        "fork": call.fork_us(threads),
        **bound_terms(compute_us, memory_us),
        "faults": (call.op not in IN_PLACE) * made * call.faults_us(written / made),
    }


WITHOUT_TEMPORARIES = ("optimizer_sgd",)
"""All others hold a tensor of a parameter's size, the root of its state.

Source: torch/optim/{sgd,adagrad,adam}.py.
"""


def optimizer_terms(call: Call) -> Mapping[str, Floats]:
    """A loop over tensors, as PyTorch does on a CPU: later passes find a tensor where it fits."""
    values, dims, moved = call.values, call.dims, call.moved_bytes
    threads, passes = call.threads(dims["elements"]), values["passes_ratio"]
    speed_up = call.speed_up(1 / threads)
    compute_us = 1e-3 * dims["elements"] * dims["tensors"] * values["element_ns"] / speed_up
    memory_us = call.moving_us(moved, moved, speed_up)
    again_us = call.moving_us(moved, moved / dims["tensors"], speed_up)
    temporaries = dims["tensors"] * (call.op not in WITHOUT_TEMPORARIES)
    return {
        "tensors": dims["tensors"] * values["tensor_us"],
        "fork": dims["tensors"] * passes * call.fork_us(threads),
        "memory": overlapped_us(compute_us, memory_us + (passes - 1) * again_us),
        "faults": temporaries * call.faults_us(dims["elements"] * call.item_bytes),
    }


RADIX = ("unique", "sort_pairs")
"""Ops that sort many keys by their digits, and all of them at once.

Source: `unique_cpu_sorted_template`, aten/src/ATen/native/Unique.cpp; `batched_csr2csc` of FBGEMM.
"""
LINEAR = ("topk", "cumsum", "run_length_encode")
"""Ops that pass over their keys without sorting them."""


def sort_terms(call: Call) -> Mapping[str, Floats]:
    values, dims, moved = call.values, call.dims, call.moved_bytes
    keys, cores = dims["rows"] * dims["cols"], float(call.device.sm_count)
    is_large = keys >= _CALL.grain_elements
    is_radix = is_large & (call.op in RADIX)
    among = keys if call.op in RADIX else dims.get("boundaries", dims["cols"])
    doublings = 0.0 if call.op in LINEAR else np.log2(np.maximum(among, 2.0))
    compare_ns = values["compare_ns"] * doublings
    key_ns = values["key_ns"] + np.where(is_radix, values["radix_ns"], compare_ns)
    threads = np.where(is_large, np.minimum(dims["rows"], cores), 1.0)
    longest = np.ceil(dims["rows"] / threads) / dims["rows"]
    split = np.where(is_radix, 1 / cores, longest)
    return {
        "fork": call.fork_us(np.where(is_radix, cores, threads)),
        "compute": 1e-3 * keys * key_ns / call.speed_up(split),
        "memory": call.moving_us(moved, moved, np.ones(len(call))),
        "faults": call.faults_us(call.work.written_bytes),
    }


def collective_terms(call: Call) -> Mapping[str, Floats]:
    """Calls, and copies through sockets: Gloo over loopback among processes of one CPU."""
    values, dims = call.values, call.dims
    held = coefficients("cpu.collective").copies * dims["size_bytes"]
    memory_us = call.moving_us(call.work.written_bytes, held, call.all_cores)
    return {
        "ranks": np.maximum(dims["ranks"] - 1, 0) * values["rank_us"],
        "memory": values["copies_ratio"] * memory_us,
    }


def host_terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["bucket_us" if call.op == BUCKET else "each_us"]
    first_us = call.first_us() if call.op in VIEWS else 0.0
    return {"host": host_us * call.crowding() + first_us}


MAX_ALPHA = 3.0
_HALVINGS = 12


def distinct_rows(rows: Floats, lookups: Floats, zipf_alpha: Floats) -> Floats:
    """Expected distinct rows of `lookups` drawn from `rows`, popularity rank r by `r ** -alpha`.

    `alpha` 0 is uniform. Rank r stands for the interval from r to r + 1, as for generators that
    invert the integral; all arguments have one value per table.
    """
    counts, share = zipf_classes(rows, zipf_alpha, smooth=True)
    touched = touched_rows(counts, share / np.maximum(counts, 1e-300), lookups)
    return np.asarray(np.minimum(touched, np.minimum(rows, lookups)))


def hit_frac(held: Floats, rows: Floats, distinct: Floats, alpha: Floats) -> Floats:
    """Share of lookups among the `held` most popular rows of which `distinct` occur.

    That of the popularity (`alpha`), and of the lookups of rows too rare to count on, evenly.
    """
    share = np.minimum(held / np.maximum(distinct, 1.0), 1.0)
    known = popular_frac(np.minimum(held, distinct), rows, alpha)
    return known + (1 - popular_frac(distinct, rows, alpha)) * share


def skew_of(rows: Floats, lookups: Floats, distinct: Floats) -> Floats:
    """The Zipf exponent at which `lookups` of `rows` touch about `distinct` of them."""
    told = zip(rows.tolist(), lookups.tolist(), distinct.tolist(), strict=True)
    return np.array([_skew(*each) for each in told])


@lru_cache(maxsize=1 << 14)
def _skew(rows: float, lookups: float, distinct: float) -> float:
    one, many, low, high = np.array([rows]), np.array([lookups]), 0.0, MAX_ALPHA
    if rows < 2 or distinct >= distinct_rows(one, many, np.zeros(1))[0]:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if distinct_rows(one, many, np.array([middle]))[0] > distinct:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def popular_frac(top: Floats, rows: Floats, alpha: Floats) -> Floats:
    """Share of lookups of the `top` most popular rows: the integral that a generator inverts."""
    power = np.where(np.abs(1 - alpha) < 1e-9, 1e-9, 1 - alpha)
    frac: Floats = np.expm1(power * np.log1p(top)) / np.expm1(power * np.log1p(rows))
    return np.minimum(frac, 1.0)


def embedding_terms(call: Call) -> Mapping[str, Floats]:
    """Rows by the cache level that their popularity keeps them in; all other bytes streamed."""
    values, dims, device = call.values, call.dims, call.device
    lookups = dims["batch"] * dims["pooling"] if "pooling" in dims else dims["lookups"]
    tables = dims.get("tables", np.ones(len(call)))
    row_bytes = stored_row_bytes(dims, call.item_bytes)
    distinct = tables * distinct_rows(dims["hash_size"], lookups / tables, dims["zipf_alpha"])
    distinct = np.where(dims["unique_rows"] > 0, dims["unique_rows"], distinct)
    threads = np.minimum(float(device.sm_count), np.maximum(dims["batch"], 1.0))
    split = 1 / threads
    if call.direction == "update":
        # PyTorch adds a sparse gradient lookup by lookup. Threads have equal parts of the table and
        # go through all indices for their own; popular rows lie side by side, as in tables numbered
        # by first appearance (assumed), so that one of them does most. Source:
        # `add_dense_sparse_worker_non_coalesced_cpu`, ATen/native/sparse/SparseTensorMath.cpp.
        part = np.maximum(dims["hash_size"] / threads, 1.0)
        alpha = skew_of(dims["hash_size"], lookups, distinct)
        split = popular_frac(part, dims["hash_size"], alpha)
    speed_up = call.speed_up(split)
    per_lookup = values["lookup_ns"] + dims["dim"] * values["element_ns"]
    compute_us = 1e-3 * (dims["batch"] * tables * values["bag_ns"] + lookups * per_lookup)
    compute_us = compute_us / speed_up

    written, streamed = call.work.written_bytes, call.moved_bytes
    rows_us, held = np.zeros(len(call)), streamed
    if call.direction != "bwd":
        fetched_us, missed_us = _rows_us(call, lookups, tables, distinct, row_bytes)
        rows_us = np.maximum(fetched_us / speed_up, missed_us)
        passes = 2.0 if call.direction == "update" else 0.0
        streamed = np.maximum(streamed - (lookups + passes * distinct) * row_bytes, 0.0)
        streamed = streamed + (passes > 0) * lookups * row_bytes
        held = streamed + distinct * row_bytes
    memory_us = rows_us + call.moving_us(streamed, held, speed_up)
    # A dense gradient is as large as its table; an optimizer writes the table once more.
    gradients_bytes = (call.flag("dense") > 0) * call.flag("step_bytes") / 2
    return {
        "fork": call.fork_us(threads),
        **bound_terms(compute_us, memory_us),
        "faults": call.faults_us(written, gradients_bytes),
    }


def _rows_us(
    call: Call, lookups: Floats, tables: Floats, distinct: Floats, row_bytes: Floats
) -> tuple[Floats, Floats]:
    """Fetching the rows by one thread, and the least: those from memory at its peak."""
    values, device = call.values, call.device
    rows = call.dims["hash_size"]
    alpha = skew_of(rows, lookups / tables, distinct / tables)
    line_bytes = np.maximum(row_bytes, _MEMORY.line_bytes) * tables
    levels = (device.l2_bytes / device.sm_count, device.last_cache_bytes)
    l2, llc = (hit_frac(level / line_bytes, rows, distinct / tables, alpha) for level in levels)
    first = np.minimum(distinct / lookups, 1.0)
    # Of the first touches, the last-level cache holds as much as of all that the step touches.
    held = np.maximum(call.flag("step_bytes"), np.maximum(tables * rows * row_bytes, 1.0))
    beyond = first * np.maximum(1 - values["reuse_ratio"] * device.last_cache_bytes / held, 0.0)
    again = 1 - first
    missing = beyond + again * (1 - llc)
    near = first - beyond + again * (llc - l2)
    moved_bytes = values["row_ratio"] * row_bytes
    near_ns = values["near_ns"] + moved_bytes * device.sm_count / values["llc_gb_per_s"]
    # One thread draws from memory no faster than from the cache before it.
    miss_ns = np.maximum(values["miss_ns"] + moved_bytes / values["dram_gb_per_s"], near_ns)
    l2_ns = moved_bytes * device.sm_count / values["l2_gb_per_s"]
    ns_each = missing * miss_ns + near * near_ns + again * l2 * l2_ns
    least_ns = missing * row_bytes / device.hbm_gb_per_s
    return 1e-3 * lookups * ns_each, 1e-3 * lookups * least_ns
