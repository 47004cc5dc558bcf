"""What a kernel takes inside a program, where nothing of its operands waits in the cache, and what
its op does in addition to moving them: blocks that start, threads that wait, lists, reductions.

A benchmark calls one kernel over and over: operands up to the size of the L2 come from there. In
a step the kernels before have filled it, and what is written goes to memory in the end.

Source of reductions: PyTorch, aten/src/ATen/native/cuda: Reduce.cuh (`setReduceConfig`),
Normalization.cuh (`flexible_launch_configs`), layer_norm_kernel.cu, SoftMax.cu.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate
from perfmodel.cost.gpu import rates
from perfmodel.cost.gpu.analysis import (
    TIMINGS,
    Group,
    among_others,
    floors_of,
    groups_of,
    measured_us,
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import MATMUL

STREAMING_FAMILIES = ("vector", "optimizer", "matmul", "pooling")
_C, _R = coefficients("gpu.program"), coefficients("gpu.reductions")
_S, _KERNEL = coefficients("gpu.streaming"), coefficients("gpu.kernel")


class Launch(NamedTuple):
    """How a kernel reduces, one entry per row of a table."""

    values: Floats
    """That a thread adds up, one after another."""
    turns: Floats
    """Blocks over those that the device holds at once."""
    parts: Floats
    """Blocks that share an output."""
    adders: Floats
    """Threads of the last of them, which add what the others left."""


def resident_blocks(threads: Floats | float, device: Device) -> Floats:
    """Blocks of `threads` that the device holds at once."""
    per_sm = rates.threads_per_sm(device) // np.asarray(threads)
    return np.asarray(device.sm_count * np.clip(per_sm, 1.0, _S.most_blocks_per_sm))


def resident_warps(device: Device) -> float:
    """Warps that the device holds at once."""
    return float(device.sm_count * rates.threads_per_sm(device) / rates.LANES[device.target])


def launch(length: Floats, outputs: Floats, device: Device, *, by_columns: bool) -> Launch:
    """How `length` values for each of `outputs` are reduced; `by_columns`: outputs lie side by
    side, and not the values of one."""
    vector, each, across, down = np.ones(len(length)), length, length, outputs
    if by_columns:
        halves = np.where(outputs % 2.0 == 0.0, 2.0, 1.0)
        vector = np.where(outputs % _R.most_vector == 0.0, _R.most_vector, halves)
        across, down = outputs / vector, length
    most = _R.most_threads / vector
    width, height = (
        2.0 ** np.floor(np.log2(np.clip(values, 1.0, most))) for values in (across, down)
    )
    height = np.minimum(height, most / np.minimum(width, rates.LANES["cuda"]))
    width = np.minimum(width, most / height)
    each = length if by_columns else np.ceil(length / width)
    is_split = each >= np.minimum(height * _R.least_values, _R.most_values)
    each = np.where(is_split, np.ceil(each / height), each)
    beside = vector * width if by_columns else 1.0
    grid = np.ceil(outputs / beside / np.where(is_split, 1.0, height))
    resident = resident_blocks(width * height, device)
    least, fewest = np.ceil(each / _R.least_values), np.ceil(each / _R.most_values)
    parts = np.maximum(np.minimum(np.ceil(resident / grid), least), fewest)
    parts = np.where(is_split & (each >= _R.most_values) & (grid <= resident), parts, 1.0)
    adders = height if by_columns else width * height
    return Launch(each / parts, grid * parts / resident, parts, adders)


def load_us(group: Group, device: Device) -> Floats:
    """A turn of loads: from memory, or what fits there from the L2, where the kernel before wrote
    it."""
    missed = np.where(group.flushed, 1.0, rates.missed_share(group.moved_bytes, device))
    return _R.cached_load_us + missed * (_R.load_us - _R.cached_load_us)


def reduced_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Turns of blocks whose threads wait for their values, a few at a time, while bytes move; then
    what adds the parts of an output that several blocks share.

    The first loads are waited for before anything moves, and so are all where few threads ask.
    """
    length, outputs, by_columns = group.dims["cols"], group.dims["rows"], group.op == "sum_rows"
    if by_columns:
        length, outputs = outputs, length
    values, turns, parts, adders = launch(length, outputs, device, by_columns=by_columns)
    loads = np.ceil(values / _R.loads_at_once)
    apart = 1.0 - np.minimum(turns, 1.0) * (1.0 - 1.0 / loads)
    turns = np.maximum(turns, 1.0)
    loads_us, turn_us = load_us(group, device) * loads, moving_us / turns
    turn_us = np.maximum(turn_us, loads_us) + apart * np.minimum(turn_us, loads_us)
    power = _R.together_exponent  # more than the longer, and less than both
    later_us = (turn_us**power + _R.block_us**power) ** (1.0 / power)
    added_us = _R.parted_us + _R.part_us * np.ceil(parts / adders)
    added_us = np.where(parts > 1.0, added_us, 0.0)
    return np.asarray(turn_us + later_us * (turns - 1.0) + added_us)


def softmax_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Threads go through their rows element by element: a row that a warp keeps is loaded at once,
    others in passes, slower where they start amid a vector or lie apart; backward, after a kernel
    that multiplies the result with its gradient."""
    cols, is_second = group.dims["cols"], (group.op, group.direction) == ("softmax", "bwd")
    is_short = cols <= _R.softmax_warp_cols
    passes = np.where(is_short, 1.0, _R.softmax_passes * np.ceil(cols / _R.softmax_pass_cols))
    threads = device.sm_count * rates.threads_per_sm(device)
    is_apart = group.dims["strided"] > 0
    is_odd = ~is_short & (cols * group.item_bytes % _S.vector_bytes != 0)
    step_us = np.where(is_short & ~is_apart, _R.softmax_warp_us, _R.softmax_block_us)
    step_us = np.where(is_odd | is_apart, _C.strided * step_us, step_us)
    steps_us = step_us * group.dims["rows"] * cols / threads
    product_us = _KERNEL.start_us + moving_us if is_second else 0.0
    return np.maximum(moving_us, steps_us) + load_us(group, device) * passes + product_us


WIDENED_ONE_BY_ONE = ("cuda",)
"""Where PyTorch has no kernel of vectors that makes fp32 of 16 bits, but one for any two types.
Source: aten/src/ATen/native/cuda/Copy.cu (`bfloat16tofloat32_copy_kernel_cuda`: ROCm alone)."""


def indexing_us(group: Group, device: Device) -> Floats:
    """Threads that find by divisions where each element of a smaller operand lies, or of one whose
    stretches lie apart, or that load one by one what they widen; 0 for others."""
    dims, none, size = group.dims, np.zeros(len(group.index)), OPS[group.op].size
    if size is None:
        return none
    clocks = size(dims) / (device.sm_count * device.boost_mhz)
    widened = dims.get("widened", none) * (device.target in WIDENED_ONE_BY_ONE)
    each = np.maximum(dims.get("apart", none), widened)
    indexed = dims.get("broadcast", none) / _S["indexed_per_sm_per_clock"][device.target]
    apart = each / _S["apart_per_sm_per_clock"][device.target]
    return np.asarray(clocks * np.maximum(indexed, apart))


def chunks_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """One block for each chunk of a tensor, however few there are: the longest chunk, a load of
    each list after the other."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["elements"])
    turns = np.ceil(np.minimum(largest, _S.chunk_elements) / _S.chunk_turn_elements)
    lists = group.moved_bytes / (dims["elements"] * dims["tensors"] * group.item_bytes)
    return np.maximum(moving_us, _S.chunk_list_us * lists * turns)


def joined_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """As many blocks start for each tensor as the largest takes; or, by elements, few threads for
    the largest tensor, however large."""
    dims = group.dims
    largest = np.where(dims["largest"] > 0, dims["largest"], dims["rows"] * dims["cols"])
    vectors = largest * group.item_bytes / (_S.vector_bytes * _S.block_threads)
    blocks = np.minimum(np.ceil(vectors), _S.most_blocks_per_sm * device.sm_count)
    started_us = dims["tensors"] * blocks / (_S.blocks_per_clock * device.boost_mhz)
    steps = largest / (_S.threads_per_sm * device.sm_count)
    step_us = np.where(dims["strided"] > 0, _S.cat_strided_load_us, _S.cat_load_us)
    by_vectors = joined_by_vectors(group, device)
    return np.maximum(moving_us, np.where(by_vectors, started_us, step_us * steps))


def joined_by_vectors(group: Group, device: Device) -> Mask:
    """Of which calls of `cat` every thread reads a vector, so that each operand moves once.

    Source: aten/src/ATen/native/cuda/Shape.cu (`CatArrayBatchedCopy_vectorized`, PyTorch 2.9; the
    traces at hand on ROCm are of an earlier one).
    """
    by_elements = (group.dims["by_elements"] > 0) | (group.dims["strided"] > 0)
    return ~by_elements & (device.target == "cuda")


def selected_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Rows of whole vectors by a block of threads each, as fast as blocks start; of others each
    thread takes several elements, one after another: finds where one lies, then what is there."""
    rows, cols = group.dims["rows"], group.dims["cols"]
    row_bytes, elements = cols * group.item_bytes, rows * cols
    blocks = rows * np.ceil(row_bytes / _S.select_block_bytes)
    started_us = blocks / (_S.blocks_per_clock * device.boost_mhz)
    each = np.minimum(np.ceil(elements / _S.block_threads), _S.select_turns)
    resident = resident_blocks(_S.block_threads, device)
    waves = np.maximum(elements / (_S.block_threads * _S.select_turns) / resident, 1.0)
    single_us = _S.element_loads * load_us(group, device) * each * waves
    is_by_rows = row_bytes % _S.vector_bytes == 0
    return np.maximum(moving_us, np.where(is_by_rows, started_us, single_us))


def sums_of(group: Group, device: Device) -> tuple[Mask, Floats, Floats]:
    """Of which norms a kernel of its own finds the sums of rows, the values that a thread of it
    adds, and its blocks over those that the device holds at once: of groups, backward of their
    channels, by a warp where values are few; and forward of rows that no whole vectors make.

    Source: aten/src/ATen/native/cuda: group_norm_kernel.cu (`num_threads`,
    `ComputeInternalGradientsCUDAKernel`), layer_norm_kernel.cu (`RowwiseMomentsCUDAKernel`,
    `can_vectorize`).
    """
    rows, cols, is_forward = group.dims["rows"], group.dims["cols"], group.direction == "fwd"
    is_apart, threads = (cols % _R.most_vector > 0) & is_forward, np.asarray(_R.most_threads)
    if "channels" in group.dims:
        channels = np.where(is_forward, 1.0, group.dims["channels"])
        rows, cols, is_apart = rows * channels, cols / channels, np.full(len(rows), True)
        threads = np.where(cols < _R.most_threads, rates.LANES[device.target], _R.most_threads)
    turns = np.maximum(rows / resident_blocks(threads, device), 1.0)
    return is_apart, np.ceil(cols / threads), turns


def sums_wait_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Both sums of a norm in each turn of their blocks, backward in one; or what rows take of their
    multiprocessors, less what longer moving hides."""
    is_apart, _, turns = sums_of(group, device)
    rows_us = group.dims["rows"] * _R.row_clocks / (device.sm_count * device.boost_mhz)
    rows_us = rows_us * np.minimum(rows_us / moving_us, 1.0)
    waited_us = np.where(is_apart, 2.0 * _C.wait_us * turns, np.maximum(rows_us, 2.0 * _C.wait_us))
    return waited_us * (1.0 if group.direction == "fwd" else 1 / 2)


def normalised_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Where sums are apart, threads that wait for one value after another, or what reading all
    takes, before the kernel that moves all."""
    is_apart, values, turns = sums_of(group, device)
    waited_us = turns * values * _R.moment_clocks / device.boost_mhz
    sums_us = np.maximum(waited_us, rates.transfer_us(group.read_bytes, device)) + _S.start_us
    return np.where(is_apart, sums_us, 0.0) + moving_us


def accumulated_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """A warp per row that is added, however short it is."""
    each = np.ceil(group.dims["cols"] / (rates.LANES["cuda"] * _R.most_vector))
    turn_us = rates.of_generation(device, _S["accumulate_us"])
    waited_us: Floats = turn_us * each * group.dims["rows"] / resident_warps(device)
    return np.maximum(moving_us, waited_us)


def added_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Warps that add to the line of a table which most add to, one after another: one per row that
    fills lines, or all that add to the short rows of one line, of which one is the most popular;
    or, unless vectors are added, all elements at the rate at which the L2 adds, each by itself."""
    dims = group.dims
    known = dims["hash_size"] > 0
    mean = np.where(known, dims["rows"] / np.maximum(dims["hash_size"], 1.0), 0.0)
    most = np.where(dims["most_repeated"] > 0, dims["most_repeated"], mean)
    rows_per_line = np.maximum(rates.LINE_BYTES / (group.item_bytes * dims["cols"]), 1.0)
    warps = dims["rows"] * dims["cols"] / rates.LANES[device.target]
    turns = np.minimum(most + mean * (rows_per_line - 1.0), warps)
    queued: Floats = _S["atomic_line_us"][device.target] * turns
    rate = _S["adds_per_sm_per_clock"].get(device.target, np.inf)
    added = np.where(dims["by_vectors"] > 0, 0.0, dims["rows"] * dims["cols"])
    added_us: Floats = added / (rate * device.sm_count * device.boost_mhz)
    return np.maximum(moving_us, np.maximum(queued, added_us))


def programs_us(group: Group, device: Device, moving_us: Floats) -> Floats:
    """Rows by a block of threads each: as fast as blocks start, or as many at once as there is room
    for, each for as long as one lives; or by a few blocks, one after another."""
    rows, resident = group.dims["by_rows"], group.dims["resident"]
    one_us, next_us = _S["program_us"][device.target]
    started = rows / (_S.blocks_per_clock * device.boost_mhz)
    turns = np.maximum(rows / resident_blocks(group.dims["threads"], device), 1.0)
    in_turn = one_us + next_us * rows / (np.maximum(resident, 1.0) * device.sm_count)
    waited_us = np.where(resident > 0, in_turn, np.maximum(started, turns * one_us))
    return np.maximum(moving_us, np.where(rows > 0, waited_us, 0.0))


@dataclass(frozen=True)
class OpBehaviour:
    """What kernels of an op take in addition to moving each operand once."""

    waits: float = 0.0
    """Steps that wait for one another, in `program.wait_us`."""
    waits_us: Callable[[Group, Device, Floats], Floats] | None = None
    """How long these are where its blocks take turns, beside what moves."""
    shortest_waits: float = 1 / 2
    """What the shortest takes of them: half, for a load (assumed); copy engines load nothing."""
    traffic: float = 1.0
    """How often the operands move, or how badly they use what moves."""
    sectors: bool = False
    """Rows of a table lie anywhere: each takes whole sectors of 32 bytes."""
    by_vectors: Callable[[Group, Device], Mask] | None = None
    """Which calls move whole vectors, so that each operand moves once however it lies."""
    whole_us: Callable[[Group, Device, Floats], Floats] | None = None
    """What it takes once started, if moving everything takes so long."""


_REDUCTION, _SOFTMAX = OpBehaviour(2.0, whole_us=reduced_us), OpBehaviour(1.0, whole_us=softmax_us)
_NORM = OpBehaviour(2.0, waits_us=sums_wait_us, whole_us=normalised_us)
_SELECT = OpBehaviour(sectors=True, whole_us=selected_us)
_SCATTER = OpBehaviour(1.0, sectors=True)
_FUSED = tuple(f"optimizer_{name}" for name in ("adagrad", "adam", "adamw", "sgd"))
OP_BEHAVIOUR = {
    **dict.fromkeys(("sum", "mean", "amax", "vector_norm", "sum_rows"), _REDUCTION),
    "copy": OpBehaviour(shortest_waits=0.0),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _NORM),
    "transpose_copy": OpBehaviour(traffic=_C.strided),
    "cat": OpBehaviour(1.0, whole_us=joined_us, by_vectors=joined_by_vectors),
    **dict.fromkeys(("softmax", "log_softmax"), _SOFTMAX),
    **dict.fromkeys(("index_select", "embedding", "gather"), _SELECT),
    **dict.fromkeys(("index_put", "scatter"), _SCATTER),
    **dict.fromkeys(("index_add", "scatter_add"), replace(_SCATTER, whole_us=added_us)),
    **dict.fromkeys(("foreach", *_FUSED), OpBehaviour(whole_us=chunks_us)),
    "elementwise": OpBehaviour(whole_us=programs_us),
    "index_put_accumulate": OpBehaviour(1.0, sectors=True, whole_us=accumulated_us),
}
"""Of ops that do more than stream."""
ROWS_ANYWHERE = frozenset(op for op, own in OP_BEHAVIOUR.items() if own.sectors)
_PLAIN = OpBehaviour()


def in_program(rows: Rows, device: Device, estimate: Estimate, pace: float = 1.0) -> Estimate:
    """`estimate`, raised for kernels behind other work, by a profiler or by events, to what moving
    every operand from and to memory takes once; for kernels called over and over, of which only
    physics tells, to what the op does in addition to moving.

    `pace` is how much longer this device's long streams take than usual ones. As far as
    measurements tell of an op (`measured_frac`), what it does in addition is in `estimate` already.

    Source: kernels of traces on A100, H100 and MI300X: 1.1 to 1.6 times bytes over peak bandwidth
    where operands lie alike, whatever their size, and 2.0 to 2.6 times where they do not.
    """
    known_frac = np.broadcast_to(estimate.measured_frac, len(rows))
    cold_us, is_among = _cold_us(rows, device, pace, known_frac), among_others(rows)
    at = np.flatnonzero((is_among | estimate.by_physics) & (cold_us > 0.0))
    # What products take to start among others, as far as no measurement tells of ones so short:
    # their code is long, and comes from memory like their first tiles.
    is_product = rows.of_kinds(lambda kind: OPS[kind.op].family == MATMUL, bool)
    is_cold = is_among & ~(rows.dims.get("warm", np.zeros(len(rows))) > 0)
    unknown = (is_product & is_cold) * (1.0 - known_frac)
    raised = estimate.duration_us + unknown * _C["product_us"].get(device.target, 0.0)
    raised[at] = np.maximum(raised[at], measured_us(cold_us[at], *floors_of(rows)[:, at]))
    ratio = raised / np.maximum(estimate.duration_us, np.finfo(float).tiny)
    low_us, high_us = estimate.low_us * ratio, estimate.high_us * ratio
    return replace(estimate, duration_us=raised, low_us=low_us, high_us=high_us)


def shortest_kernel_us(launched_us: float) -> float:
    """The `kernel_floor_us` of a device whose smallest call takes so long behind other work."""
    _, offset_us = TIMINGS[BEHIND_WORK]
    return max(launched_us - offset_us, 0.0) / _C.least


def _cold_us(rows: Rows, device: Device, pace: float, measured_frac: Floats) -> Floats:
    cold = np.zeros(len(rows))
    rate = rates.stream_bytes_per_us(device) / pace
    for group in groups_of(rows):
        if OPS[group.op].family not in STREAMING_FAMILIES:
            continue
        own, moved = OP_BEHAVIOUR.get(group.op, _PLAIN), group.moved_bytes
        if own.sectors:  # what lies in the sectors of a table's rows and is not theirs
            dims, row_bytes = group.dims, group.dims["cols"] * group.item_bytes
            whole_bytes = dims["rows"] * row_bytes
            passes = np.clip(moved // whole_bytes - 1.0, 0.0, 2.0)
            table_bytes = np.where(dims["hash_size"] > 0, dims["hash_size"] * row_bytes, np.inf)
            sectors = dims["rows"] * np.maximum(row_bytes, rates.SECTOR_BYTES)
            taken = np.minimum(sectors, np.maximum(table_bytes, whole_bytes))
            moved = moved + passes * (taken - whole_bytes)
        unknown = 1.0 - measured_frac[group.index]
        traffic = 1.0 + unknown * (own.traffic - 1.0)
        if own.by_vectors:
            traffic = np.where(own.by_vectors(group, device), 1.0, traffic)
        elif "strided" in group.dims:
            traffic = traffic * np.where(group.dims["strided"] > 0, _C.strided, 1.0)
        once_us = np.where(group.in_program, moved / rate, rates.transfer_us(moved, device))
        moving_us = np.maximum(traffic * once_us, indexing_us(group, device))
        waits_us: Floats | float = own.waits * _C.wait_us
        if own.waits_us:
            waits_us = own.waits_us(group, device, moving_us)
        if own.whole_us:
            moving_us = own.whole_us(group, device, moving_us)
        wait_us, start_us = unknown * _C.wait_us, _S.start_us
        # AMD's shortest kernels wait as well.
        loads = max(own.waits, own.shortest_waits) * (device.target == "cuda")
        shortest_us = _C.least * device.kernel_floor_us + loads * wait_us
        cold[group.index] = np.maximum(start_us + unknown * waits_us + moving_us, shortest_us)
    return cold
