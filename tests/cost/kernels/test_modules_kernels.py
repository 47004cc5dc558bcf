"""Kernels of modules as profiles on an H200 showed them, by answers counted by hand."""

from __future__ import annotations

import pytest

from perfmodel import hardware
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.durations import durations_of
from perfmodel.hardware import Cluster, node_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS

H200 = hardware.device("h200-sxm")
SMS, MHZ = 132, 1830.0
STREAMING, KERNEL = coefficients("gpu.streaming"), coefficients("gpu.kernel")
REDUCTIONS = coefficients("gpu.reductions")


def physics_us(op: str, direction: str = "fwd", dtype: str = "fp32", **dims: float) -> float:
    rows = Rows.of([{"op": op, "dtype": dtype, "direction": direction, **dims}])
    model = KERNELS[f"gpu/{OPS[op].family}/heuristic"]
    return float(model.estimate(rows, H200).duration_us[0])


def test_pooling_counts_outputs_and_windows() -> None:
    def work_us(taps: float, sides: float = 2.0) -> float:
        dims = {"elements": 1e8, "outputs": 1e8, "kernel_size": taps**0.5, "sides": sides}
        return physics_us("avg_pool", **dims) - KERNEL.start_us

    per_output_us = 3.0 * 1e8 / (SMS * MHZ)
    assert work_us(9) == pytest.approx(per_output_us)
    assert work_us(18) == pytest.approx(per_output_us * (0.58 + 0.42 * 2))


def test_sums_along_many_rows_take_clocks_per_element() -> None:
    found = physics_us("cumsum", rows=32_768, cols=32_768)
    assert found == pytest.approx(32_768**2 / (SMS * MHZ), rel=0.01)
    assert physics_us("cumsum", rows=1, cols=32_768) < 10.0


def in_program_us(op: str, direction: str = "fwd", dtype: str = "fp32", **dims: float) -> float:
    row = {"op": op, "dtype": dtype, "timing": "profiler_kernel", "direction": direction, **dims}
    machine = Cluster(name="one", node=node_of(H200), nodes=1)
    return float(durations_of(Rows.of([row]), machine).duration_us[0])


def test_a_block_per_channel_draws_what_it_can() -> None:
    # 64 channels of 100,000 values of 4 bytes on 132 multiprocessors, read twice and written
    assert STREAMING.channel_kept_bytes < 4e5
    expected_us = STREAMING.start_us + STREAMING["channel_block_us"]["cuda"]
    expected_us += 3 * 4e5 / STREAMING["channel_bytes_per_us"]["cuda"]
    assert physics_us("batch_norm", rows=1e5, cols=64) == pytest.approx(expected_us)


def test_warps_of_a_lookup_issue_and_then_wait() -> None:
    # 9,024 bags of 64 rows of 192 columns: six warps each, in seven turns of 8,192
    embedding, rates = coefficients("gpu.embedding"), coefficients("gpu.rates")
    instructions = embedding.own_bag_instructions + embedding.own_row_instructions * 64
    issued_us = 9024 * 6 * instructions * 32 / rates["issued_per_sm_per_clock"]["cuda"]
    issued_us /= SMS * MHZ
    waited_us = 7 * 64 * embedding.own_hit_us
    dims = {"batch": 9024.0, "pooling": 64.0, "dim": 192.0, "hash_size": 1000.0}
    found = in_program_us("embedding_bag", **dims)
    assert found == pytest.approx(KERNEL.start_us + issued_us + waited_us, rel=0.02)
    alone = in_program_us("embedding_bag", batch=1.0, pooling=100.0, dim=32.0, hash_size=1e7)
    assert alone == pytest.approx(KERNEL.start_us + 100 * embedding.own_miss_us, rel=0.02)
    # more bags share more rows, but the unluckiest of them misses no fewer
    shared = {"pooling": 55.0, "dim": 28.0, "hash_size": 33_496.0}
    few, many = (in_program_us("embedding_bag", batch=bags, **shared) for bags in (92.0, 184.0))
    assert few < many < KERNEL.start_us + 55 * embedding.own_miss_us + 1.0


def test_a_block_sorts_what_its_threads_hold() -> None:
    assert in_program_us("sort_pairs", dtype="int64", rows=1.0, cols=2304.0) < 15.0
    assert in_program_us("sort_pairs", dtype="int64", rows=1.0, cols=2305.0) > 60.0
    assert in_program_us("sort_pairs", dtype="int32", rows=1.0, cols=4864.0) < 15.0


def test_broadcast_operands_are_found_by_division() -> None:
    dims = {"elements": 1e8, "reads": 1.0, "broadcast": 1.0}
    waited_us = 1e8 / (STREAMING["indexed_per_sm_per_clock"]["cuda"] * SMS * MHZ)
    assert in_program_us("elementwise", **dims) == pytest.approx(waited_us + STREAMING.start_us)


@pytest.mark.parametrize("way", ["apart", "widened"])
def test_elements_are_loaded_one_by_one(way: str) -> None:
    waited_us = 1e8 / (STREAMING["apart_per_sm_per_clock"]["cuda"] * SMS * MHZ)
    found = in_program_us("elementwise", elements=1e8, reads=0.5, **{way: 1.0})
    assert found == pytest.approx(waited_us + STREAMING.start_us)


def test_a_copy_of_stretches_that_lie_apart_moves_elements_one_by_one() -> None:
    """Its `elements` are those read and those written."""
    waited_us = 1e8 / (STREAMING["apart_per_sm_per_clock"]["cuda"] * SMS * MHZ)
    found = in_program_us("copy", elements=2e8, apart=1.0)
    assert found == pytest.approx(waited_us + STREAMING.start_us)


def test_the_last_block_adds_the_parts_of_a_sum() -> None:
    """128 columns to a block of 32 x 4 threads: of 256 columns 1,056 blocks for each, as many as
    find room; of 2,048 rows of 1,024 columns 32."""
    bytes_us = 336_384 * 256 * 4 / (4.08 * 1e6)
    parts_us = REDUCTIONS.parted_us + REDUCTIONS.part_us * 1056 / 4
    found = in_program_us("sum_rows", rows=336_384, cols=256)
    assert found == pytest.approx(bytes_us + parts_us, rel=0.05)
    assert in_program_us("sum_rows", rows=2048, cols=1024) < 11


def test_softmax_over_channels_waits_for_each_load() -> None:
    last, across = (
        in_program_us("softmax", rows=524_288, cols=64, strided=strided) for strided in (0.0, 1.0)
    )
    step_us = coefficients("gpu.program").strided * REDUCTIONS.softmax_block_us
    waited_us = step_us * 524_288 * 64 / (SMS * 2048)
    assert across > waited_us
    assert across > 2 * last


def test_a_small_convolution_fills_whole_tiles() -> None:
    def layer_us(batch: float) -> float:
        dims = {"in_channels": 256.0, "out_channels": 256.0, "kernel_size": 3.0, "padding": 1.0}
        return physics_us("conv2d", dtype="tf32", batch=batch, input_size=14.0, **dims)

    # two images of 14 x 14 leave most multiprocessors idle: four times as many take less than twice
    assert layer_us(8) < 2 * layer_us(2)
    assert layer_us(256) > 8 * layer_us(8)


IMAGES = {"batch": 64.0, "in_channels": 128.0, "out_channels": 128.0, "input_size": 128.0}


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "tf32"])
def test_images_channels_first_are_laid_out_and_back(dtype: str) -> None:
    """64 x 128 x 128 x 128 values in and out, once more read and written, and two starts."""
    dims = IMAGES | {"kernel_size": 3.0, "padding": 1.0}
    first, last = (
        physics_us("conv2d", dtype=dtype, channels_last=last, **dims) for last in (0.0, 1.0)
    )
    moved_bytes = 2 * 64 * 128**3 * (4 if dtype == "tf32" else 2)
    expected_us = 2 * moved_bytes / (H200.stream_gb_per_s * 1e3) + 2 * KERNEL.start_us
    assert first - last == pytest.approx(expected_us, rel=0.01)


def test_groups_of_few_channels_fill_a_tile_together() -> None:
    """8 groups of 4 channels are one product of 32, as long as one group of 32; 32 of them 4."""
    dims = IMAGES | {"kernel_size": 3.0, "padding": 1.0, "channels_last": 1.0}
    one, grouped = (
        physics_us("conv2d", dtype="fp16", **dims | {"in_channels": n, "out_channels": n} | more)
        for n, more in ((32.0, {}), (32.0, {"groups": 8.0}))
    )
    assert grouped == pytest.approx(one, rel=0.01)


def test_wide_windows_of_single_channels_take_longer_by_their_layout() -> None:
    def clocks(side: float, last: float) -> float:
        dims = IMAGES | {"groups": 128.0, "kernel_size": side, "padding": side // 2}
        us = physics_us("conv2d", dtype="fp16", channels_last=last, **dims) - KERNEL.start_us
        return us * SMS * MHZ / (64 * 128**3)

    assert clocks(7, 0) == pytest.approx(1.45 + 0.094 * 49, rel=0.01)
    assert clocks(9, 0) == pytest.approx(1.45 + 0.18 * 81, rel=0.01)
    assert clocks(9, 1) == pytest.approx(1.45 + 0.54 * 81, rel=0.01)
    assert clocks(7, 1) < 1.5


@pytest.mark.parametrize("name", ["rtx-3090", "l40s", "v100-sxm2-16gb", "h200-sxm"])
def test_no_convolution_on_matrix_units_is_above_the_peak(name: str) -> None:
    dims = IMAGES | {"in_channels": 512.0, "out_channels": 512.0, "kernel_size": 3.0}
    rows = Rows.of([{"op": "conv2d", "dtype": "fp16", "channels_last": 1.0, **dims, "padding": 1}])
    us = durations_of(rows, hardware.device(name)).duration_us[0]
    flop = 2 * 64 * 512 * 128**2 * 512 * 9
    assert flop / us <= hardware.device(name).fp16_tflop_per_s * 1e6


def test_forward_kernels_in_tf32_write_channels_first_themselves() -> None:
    """16 channels are laid out, 256 that are made are not: read and written once more, less than
    what is added where Ampere's instructions are slower, and half of what both take."""
    dims = IMAGES | {"in_channels": 16.0, "out_channels": 256.0, "kernel_size": 3.0, "padding": 1.0}
    first, last = (physics_us("conv2d", dtype="tf32", channels_last=c, **dims) for c in (0.0, 1.0))
    image_us = 64 * 128**2 * 4 / (H200.stream_gb_per_s * 1e3)
    assert 2 * 16 * image_us < first - last < 256 * image_us


def test_few_channels_and_single_pixels_are_taken_as_they_lie() -> None:
    for changed in ({"in_channels": 3.0, "kernel_size": 3.0, "padding": 1.0}, {"kernel_size": 1.0}):
        dims = IMAGES | changed
        moved = 64 * 128**2 * (dims["in_channels"] + dims["out_channels"]) * 4
        once_us = moved / (H200.stream_gb_per_s * 1e3)
        assert physics_us("conv2d", dtype="tf32", **dims) < 2.5 * once_us
