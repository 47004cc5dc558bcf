"""Kernels inside a program find nothing in the cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from perfmodel import durations
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import in_program
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows

START_US, STRIDED = coefficients("gpu.streaming").start_us, coefficients("gpu.program").strided
WAIT_US = coefficients("gpu.program").wait_us
MOMENT_CLOCKS = coefficients("gpu.reductions").moment_clocks
H100 = device("h100-sxm")
ADD = {"op": "add", "rows": 2048, "cols": 1024, "dtype": "bf16"}
MOVED_US = 3 * 2048 * 1024 * 2 / (H100.stream_gb_per_s * 1e3)


def _us(**changes: object) -> float:
    return float(durations_of(Rows.of([ADD | changes]), H100).duration_us[0])


def test_operands_move_from_and_to_memory_once() -> None:
    assert _us() == pytest.approx(START_US + MOVED_US)


def test_called_over_and_over_they_stay_in_the_cache() -> None:
    rows = Rows.of([ADD | {"timing": "cuda_graph_replay"}])
    assert durations_of(rows, H100).duration_us[0] < _us()


def test_operands_that_do_not_lie_alike_take_longer() -> None:
    copy = {"op": "copy", "elements": 2 * 2048 * 1024, "dtype": "bf16"}
    plain, strided = (
        float(durations_of(Rows.of([copy | {"strided": flag}]), H100).duration_us[0])
        for flag in (0, 1)
    )
    assert strided - START_US == pytest.approx(STRIDED * (plain - START_US))


def test_additions_to_one_line_come_one_after_another() -> None:
    """60,000 single elements to 50 take 1,875 warps, each of which adds to both of their lines;
    rows that fill lines take one turn each, and how often the most popular comes can be told."""
    scalars = {"op": "scatter_add", "rows": 60_000, "cols": 1, "hash_size": 50}
    wide = {"op": "index_add", "rows": 65_536, "cols": 128, "hash_size": 4}
    a100 = device("a100-sxm-80gb")
    even, flat, popular, large = (
        float(durations_of(Rows.of([row]), a100).duration_us[0])
        for row in (
            scalars,
            wide,
            wide | {"most_repeated": 60_000},
            wide | {"hash_size": 1 << 20},
        )
    )
    begin = START_US + coefficients("gpu.program").wait_us
    assert even == pytest.approx(begin + 1875 * 0.0064, rel=0.1)  # and loads, beside
    assert flat == pytest.approx(begin + 16_384 * 0.0064)
    assert popular == pytest.approx(begin + 60_000 * 0.0064)
    assert large < flat


def test_of_the_short_rows_in_a_line_one_is_the_most_popular() -> None:
    """Eight rows of four elements lie in a line of 128 bytes: of 2 million lookups of 1,000 rows
    200,000 are of one, and of the seven beside it 2,000 each, as of the mean row."""
    rows = {"op": "index_add", "rows": 2_000_000, "cols": 4, "hash_size": 1_000}
    found = durations_of(Rows.of([rows | {"most_repeated": 200_000}]), device("a100-sxm-80gb"))
    begin = START_US + coefficients("gpu.program").wait_us
    assert found.duration_us[0] == pytest.approx(begin + (200_000 + 7 * 2_000) * 0.0064, rel=0.01)


def test_half_of_all_rows_to_one_take_what_was_published() -> None:
    """3.89 of 7.77 million rows of 128 fp32 to one of 1.72 million, on GB200: 18 ms by a kernel
    that is faster than the one of `index_add`, under 2 ms if they went anywhere. `index_add` adds
    element by element, 0.62 per multiprocessor and clock.

    Source: pytorch/pytorch, pull request 182675; traces/h200/sequential.csv.gz.
    """
    rows = {"op": "index_add", "rows": 7_770_000, "cols": 128, "hash_size": 1_720_000}
    found = durations_of(Rows.of([rows | {"most_repeated": 3_890_000}, rows]), device("gb200"))
    assert 18_000 < found.duration_us[0] < 36_000
    gb200 = device("gb200")
    least_us = 7_770_000 * 128 / (0.62 * gb200.sm_count * gb200.boost_mhz)
    assert found.duration_us[1] == pytest.approx(least_us, rel=0.01)


def test_adds_on_an_amd_gpu_take_what_a_size_out_of_the_fit_was_published_to_take() -> None:
    """2.7 million rows of 64 to 1,300 on an MI325X: 2.07 ms (pytorch/pytorch, issue 182525)."""
    row = {"op": "index_add", "rows": 2_700_000, "cols": 64, "hash_size": 1_300}
    found = durations_of(Rows.of([row]), device("mi325x"))
    assert found.duration_us[0] == pytest.approx(2_072.5, rel=0.1)
    assert found.low_us[0] < 2_072.5 < found.high_us[0]


def test_the_interval_moves_along() -> None:
    found = durations_of(Rows.of([ADD]), H100)
    assert found.low_us[0] < found.duration_us[0] < found.high_us[0]


def test_long_streams_of_a_measured_device_take_what_was_measured() -> None:
    v100 = device("v100-pcie-32gb")
    long = {"op": "add", "rows": 1 << 17, "cols": 1024}
    inside, alone = (
        float(durations_of(Rows.of([long | {"timing": timing}]), v100).duration_us[0])
        for timing in ("profiler_kernel", "cuda_graph_replay")
    )
    assert inside == pytest.approx(alone, rel=0.01)


def test_of_what_norms_take_beside_moving_measurements_take_away_their_share() -> None:
    rows = Rows.of([{"op": "layer_norm", "rows": 1 << 15, "cols": 1024}])
    found = Estimate(*np.full((3, 1), 1e-3), "", "")
    none, half, all_ = (
        in_program(rows, H100, replace(found, measured_frac=share)).duration_us[0]
        for share in (0.0, 0.5, 1.0)
    )
    assert half == pytest.approx((none + all_) / 2)
    assert none > all_


def test_each_row_of_a_norm_takes_its_multiprocessor_while_bytes_move() -> None:
    """42,240 rows are 320 for each of an H100's 132 multiprocessors, 300 clocks each."""
    row = {"op": "layer_norm", "dtype": "bf16", "rows": 42_240, "cols": 576}
    moved_us = 2 * 42_240 * 576 * 2 / (H100.stream_gb_per_s * 1e3)
    found_us = durations_of(Rows.of([row]), H100).duration_us[0]
    assert found_us == pytest.approx(START_US + 320 * 300 / H100.boost_mhz + moved_us, rel=0.01)


def test_sums_of_groups_and_of_odd_rows_are_a_kernel_of_their_own() -> None:
    """Of 528 groups an H100 has one block of 512 threads each at once: 1,024 values a thread; rows
    of 577 columns are no whole vectors, those of 576 are."""
    group = {"op": "group_norm", "dtype": "bf16", "rows": 528, "cols": 1024 * 512}
    moved_us = 2 * 528 * 1024 * 512 * 2 / (H100.stream_gb_per_s * 1e3)
    sums_us = 1024 * MOMENT_CLOCKS / H100.boost_mhz
    found_us = durations_of(Rows.of([group]), H100).duration_us[0]
    expected_us = 2 * START_US + 2 * WAIT_US + sums_us + moved_us
    assert found_us == pytest.approx(expected_us, rel=0.01)
    odd_us, even_us = durations_of(
        Rows.of(
            [{"op": "layer_norm", "rows": 4096, "cols": n, "dtype": "bf16"} for n in (577, 576)]
        ),
        H100,
    ).duration_us
    assert odd_us > even_us + START_US


def test_groups_of_few_values_have_a_warp_each() -> None:
    """An H200 holds 32 warps a multiprocessor, as blocks: 4,224 of 524,288 groups of 16 values, one
    a thread. PyTorch's profile (traces/h200/module_kernels.csv.gz): 349 us."""
    h200 = device("h200-sxm")
    group = {"op": "group_norm", "rows": 524_288, "cols": 16}
    found_us = durations_of(Rows.of([group]), h200).duration_us[0]
    turn_us = 2 * WAIT_US + MOMENT_CLOCKS / h200.boost_mhz
    moved_us = 2 * 524_288 * 16 * 4 / (h200.stream_gb_per_s * 1e3)
    assert found_us == pytest.approx(2 * START_US + 524_288 / 4224 * turn_us + moved_us, rel=0.01)
    assert found_us == pytest.approx(349, rel=0.05)


def test_gradients_of_groups_have_a_block_for_each_channel() -> None:
    """Of 64 groups of 16 channels of 4,096 values: 1,024 blocks, 8 values a thread, where a block
    for each group would be half of 128 behind one another."""
    group = {"op": "group_norm", "dtype": "bf16", "rows": 64, "cols": 65_536, "channels": 16}
    rows = [group | {"direction": way} for way in ("bwd", "fwd")]
    backward_us, forward_us = durations_of(Rows.of(rows), H100).duration_us
    assert backward_us < 128 / 2 * MOMENT_CLOCKS / H100.boost_mhz
    assert forward_us > 128 * MOMENT_CLOCKS / H100.boost_mhz


def test_events_behind_work_show_a_kernel_and_its_start() -> None:
    ops = pd.DataFrame({"op": "sum_rows", "rows": [512], "cols": [512], "dtype": "fp32"})
    shown, kernel = (
        durations(ops.assign(timing=timing), hardware="h200-sxm")["duration_us"].item()
        for timing in ("event_behind_work", "profiler_kernel")
    )
    assert shown == pytest.approx(kernel + 1.1)


SOFTMAX = {"op": "softmax", "rows": 4096, "cols": 32_768, "dtype": "fp16"}


def test_a_wall_clock_shows_no_less_than_the_kernel_and_takes_any_host() -> None:
    """Of softmax in fp16 no table tells: what it does beside moving bytes counts however timed."""
    a100 = device("a100-sxm-80gb")
    timings = [SOFTMAX, SOFTMAX | {"timing": "host_wall_sync"}]
    alone, watched = durations_of(Rows.of(timings), a100).duration_us
    assert watched == pytest.approx(alone + 15.0, rel=0.01)
    short = Rows.of([SOFTMAX | {"timing": "host_wall_sync", "cols": 32}])
    found = durations_of(short, a100)
    assert found.low_us[0] < 0.6 * found.duration_us[0]
    assert found.high_us[0] > 1.8 * found.duration_us[0]
