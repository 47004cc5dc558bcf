"""Physics of products: where rows of operands start, and which units multiply."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import hardware
from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.cost.gpu import matmul
from perfmodel.cost.gpu.analysis import Analysis
from perfmodel.cost.gpu.rates import hot_us, l2_bytes_per_us, matrix_flop_per_us
from perfmodel.cost.learned.features import matmul_features
from perfmodel.ops.rows import Rows

LONG = {"op": "linear", "dtype": "bf16", "m": 8192, "n": 8192, "k": 8192}
WIDE = {"op": "bmm", "dtype": "bf16", "b": 96, "m": 3136, "n": 3136, "k": 64}
"""Long for what it reads and writes: 1.9 GB."""


def analysed(*rows: dict[str, object], device: str = "h100-sxm") -> Analysis:
    return matmul.analyse(Rows.of(rows), hardware.device(device))


@pytest.mark.parametrize("device", ["h200-sxm", "mi350x"])
def test_more_rows_than_any_measured_take_as_long_each(device: str) -> None:
    rows = [{**LONG, "m": m, "n": 2048, "k": 512} for m in (131_072, 262_144, 2_097_152)]
    found = durations_of(Rows.of(rows), hardware.device(device)).duration_us
    assert found[1] / found[0] == pytest.approx(2.0, rel=0.05)
    assert found[2] / found[1] == pytest.approx(8.0, rel=0.05)


def test_vector_units_sum_in_fp32_at_its_rate() -> None:
    """Products and convolutions of 16 bits, even where fp16 arithmetic is twice as fast."""
    p100, v100 = hardware.device("p100-pcie-16gb"), hardware.device("v100-pcie-32gb")
    assert p100.fp16_tflop_per_s == pytest.approx(2 * p100.fp32_tflop_per_s, rel=0.01)
    fp32_flop_per_us = p100.fp32_tflop_per_s * 1e6
    assert matrix_flop_per_us(p100, ["fp16", "fp32"]).tolist() == [fp32_flop_per_us] * 2
    assert matrix_flop_per_us(v100, ["fp16"])[0] > 4.0 * v100.fp32_tflop_per_s * 1e6


@pytest.mark.parametrize(
    ("dtype", "framework", "read", "written", "rounds"),
    [
        ("int8", "vllm", 2, 2, True),
        ("int8", "trtllm", 1, 2, False),
        ("int8", "torch", 1, 4, False),
        ("fp8", "trtllm", 2, 2, True),
        ("fp8", "torch", 1, 2, False),
        ("int8_wo", "torch", 2, 2, False),
    ],
)
def test_activations_that_come_rounded_are_read_as_they_come(
    dtype: str, framework: str, read: int, written: int, rounds: bool
) -> None:
    """Bytes of an activation and of a result, beside weights of 64 times 128 bytes."""
    row = {"op": "linear", "dtype": dtype, "m": 32, "n": 64, "k": 128, "bias": 0.0}
    found = analysed(row | {"framework": framework})
    assert found.read_bytes.tolist() == [32 * 128 * read + 64 * 128]
    assert found.written_bytes.tolist() == [32 * 64 * written]
    assert (found.features["quantise_us"] > 0.0).tolist() == [rounds]


@pytest.mark.parametrize(
    ("dtype", "k", "misaligned", "by_element"),
    [
        ("bf16", 8192, False, False),
        ("bf16", 8196, True, False),
        ("bf16", 8193, True, True),
        ("tf32", 8196, False, False),
        ("tf32", 8193, True, False),
        ("fp32", 8193, False, False),
    ],
)
def test_rows_start_at_16_bytes_or_at_least_at_an_asynchronous_copy(
    dtype: str, k: int, misaligned: bool, by_element: bool
) -> None:
    even, odd = (analysed(LONG | {"dtype": dtype, "k": each}).shares for each in (8192, k))
    assert (odd["compute"] > 1.5 * even["compute"])[0] == misaligned
    assert (odd["memory"] > 1.5 * even["memory"])[0] == by_element


@pytest.mark.parametrize("row", [LONG, WIDE])
def test_odd_sides_slow_down_multiplying_and_moving_by_as_much(row: dict[str, object]) -> None:
    odd = row | {"n": row["n"] + 1}  # type: ignore[operator]
    even_us, odd_us = analysed(row, odd).kernel_us
    assert odd_us / even_us == pytest.approx(2.2, rel=0.05)
    device = hardware.device("h100-sxm")
    base = matmul_features(Rows.of([row, odd]), device).base_us
    assert base[1] / base[0] == pytest.approx(2.2, rel=0.15)


def test_older_devices_whose_tables_hide_padding_are_told_of_none() -> None:
    odd = LONG | {"dtype": "fp16", "n": 8193}
    base = matmul_features(
        Rows.of([LONG | {"dtype": "fp16"}, odd]), hardware.device("v100-sxm2-32gb")
    )
    assert base.base_us[1] / base.base_us[0] == pytest.approx(1.0, rel=0.05)


def test_tf32_takes_what_16_bits_teach_at_its_own_rate() -> None:
    device = hardware.device("a100-sxm-80gb")
    rows = Rows.of([LONG | {"dtype": dtype} for dtype in ("fp16", "tf32", "fp32")])
    found = durations_of(rows, device)
    half, tf32, single = found.duration_us
    assert found.model[1] == "gpu/matmul/learned"
    assert tf32 / half == pytest.approx(2.0, rel=0.15)
    assert tf32 < single
    assert "learned_factor" in explanations_of(rows, device)[1].terms


def test_tf32_on_a_device_without_it_is_fp32() -> None:
    rows = Rows.of([LONG | {"dtype": dtype} for dtype in ("tf32", "fp32")])
    device = hardware.device("v100-pcie-32gb")
    rates = matrix_flop_per_us(device, rows.dtype)
    assert np.ptp(rates) == 0.0


def test_on_amd_gpus_too_rows_that_start_amid_a_vector_slow_down_multiplying() -> None:
    """There is nothing like `cp.async` there, so nothing is told by its four bytes."""
    device = hardware.device("mi300x")
    rows = Rows.of([LONG | {"k": k} for k in (8192, 8194, 8193)])
    base = matmul_features(rows, device).base_us
    assert base[1] / base[0] == pytest.approx(2.2, rel=0.05)
    assert base[2] == pytest.approx(base[1], rel=0.01)


@pytest.mark.parametrize(
    ("name", "side", "blocks_per_sm", "expected_us"),
    [
        ("mi300x", 128, 1, 0.0),
        ("mi300x", 128, 3, 8.0),
        ("mi300x", 32, 3, 8.0),
        ("h100-sxm", 128, 3, 2.0),
        ("h100-sxm", 64, 8, 1.0),
        ("h100-sxm", 16, 16, 1.0),
        ("h100-sxm", 16, 8, 0.0),
    ],
)
def test_rounds_after_the_first_start_anew(
    name: str, side: int, blocks_per_sm: int, expected_us: float
) -> None:
    found = matmul.starts_us(
        np.array([float(blocks_per_sm)]), np.array([float(side * side)]), hardware.device(name)
    )
    assert found[0] == pytest.approx(expected_us)


def test_multiplying_and_moving_take_between_the_longer_and_their_sum() -> None:
    compute, memory = np.array([1.0, 0.0, 100.0, 8.0]), np.array([1.0, 5.0, 1.0, 4.0])
    together = matmul.overlapped(compute, memory, ["fp32"] * 4, hardware.device("t4"))
    assert together[:2] == pytest.approx([2 ** (2 / 3), 5.0])
    assert (together >= np.maximum(compute, memory)).all()
    assert (together <= compute + memory).all()


def test_many_tiny_products_wait_for_their_blocks() -> None:
    tiny = {"op": "bmm", "dtype": "bf16", "b": 37632, "m": 8, "n": 8, "k": 64}
    found = analysed(tiny, device="mi300x")
    rounds = np.ceil(37632 / 304)
    assert found.features["starts_us"][0] == pytest.approx(4.0 * (rounds - 1))
    assert found.kernel_us[0] > found.features["starts_us"][0] > 50 * found.bound_us[0]


def test_a_product_with_a_vector_is_read_once() -> None:
    dots = {"op": "bmm", "dtype": "fp32", "b": 8192, "m": 1, "n": 1, "k": 400}
    (found,), (tall,) = analysed(dots).kernel_us, analysed({**dots, "n": 2, "m": 2}).kernel_us
    assert found < tall / 5
    rate = 0.45 * l2_bytes_per_us(hardware.device("h100-sxm"))
    assert found > 8192 * 400 * 2 * 4 / rate


def test_of_a_maker_of_whom_none_was_measured_products_are_physics() -> None:
    """No AMD GPU was measured in 16 bits or fewer; in fp32 MI100 was."""
    device = hardware.device("mi300x")
    rows = Rows.of([LONG | {"dtype": dtype} for dtype in ("bf16", "fp8", "fp32")])
    by_physics_us = matmul.analyse(rows, device).kernel_us
    found_us = durations_of(rows, device).duration_us
    assert found_us[:2] == pytest.approx(by_physics_us[:2], rel=1e-6)
    assert found_us[2] != pytest.approx(by_physics_us[2], rel=0.01)


@pytest.mark.parametrize(("name", "start_us"), [("mi300x", 3.6), ("v100-sxm2-16gb", 1.6)])
def test_a_product_takes_as_long_as_the_shortest_kernel_and_its_loop(
    name: str, start_us: float
) -> None:
    tiling = matmul.fastest(
        *(np.array([each]) for each in (1.0, 32.0, 32.0, 32.0, 4.0, 1e7)),
        device=hardware.device(name),
        is_matrix_unit=np.zeros(1, bool),
    )
    assert tiling.time_us[0] == pytest.approx(start_us + tiling.serial_us[0])


@pytest.mark.parametrize(
    ("device", "dtype", "corner"),
    [
        ("h100-sxm", "bf16", 4.5),
        ("h100-sxm", "tf32", 4.5),
        ("h100-sxm", "fp32", 1.5),
        ("h100-sxm", "fp8", 1.5),
        ("a100-sxm-80gb", "fp16", 2.5),
        ("v100-sxm2-16gb", "fp16", 1.5),
        ("mi300x", "bf16", 1.5),
    ],
)
def test_later_kernels_move_beside_multiplying(device: str, dtype: str, corner: float) -> None:
    """As long as one another, both take the corner's root of two times as long as either."""
    own = hardware.device(device)
    both = matmul.overlapped(np.array([10.0, 10.0]), np.array([10.0, 0.0]), [dtype] * 2, own)
    assert both == pytest.approx([10.0 * 2.0 ** (1.0 / corner), 10.0])


def test_a_hot_board_multiplies_at_the_root_of_peak_and_limit() -> None:
    """0.7 TFLOP per joule at full clock: 1,000 W hold the root of 700 times 2,250 TFLOP/s."""
    flop = np.full(3, 1e12)
    found = hot_us(flop, ["bf16", "fp8", "fp32"], hardware.device("b200"))
    assert found == pytest.approx([797.0, 398.5, 0.0], rel=0.01)
    assert hot_us(flop, ["fp16"] * 3, hardware.device("v100-sxm2-16gb")).tolist() == [0.0] * 3


def test_inside_a_program_an_interval_reaches_to_a_hot_board() -> None:
    """Not of a product that moves longer than it multiplies, nor of a replay."""
    shapes = [LONG, {**LONG, "m": 16}]
    rows = Rows.of([*shapes, *({**each, "timing": "cuda_graph_replay"} for each in shapes)])
    b200 = hardware.device("b200")
    found = durations_of(rows, b200)
    hot, *others = (each.terms.get("hot_us", 0.0) for each in explanations_of(rows, b200))
    assert others == [0.0, 0.0, 0.0]
    warmer, *reach = found.high_us / found.duration_us
    assert max(reach) < 1.3
    assert warmer == pytest.approx(hot / found.duration_us[0] * reach[1], rel=0.03)
