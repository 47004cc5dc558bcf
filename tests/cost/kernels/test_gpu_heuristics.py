"""Physical sanity of the heuristics for GPUs: bounds, monotony, launch floors, explanations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.cost.contract import KERNELS, KernelModel
from perfmodel.cost.gpu.embedding import missed_lookups
from perfmodel.cost.gpu.matmul import expert_loads
from perfmodel.cost.gpu.rates import (
    bound_us,
    has_matrix_units,
    matrix_flop_per_us,
    special_per_us,
    sustained_flop_per_us,
    transfer_us,
)
from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS

V100 = hardware.device("v100-sxm2-16gb")
H100 = hardware.device("h100-sxm")
DIMS = {
    "rows": 4096, "cols": 1024, "b": 4, "m": 1024, "n": 1024, "k": 512, "elements": 1e7,
    "tensors": 1, "batch": 64, "in_channels": 64, "out_channels": 64, "kernel_size": 3,
    "input_size": 56, "padding": 1, "hash_size": 1e6, "dim": 64, "pooling": 20, "tables": 8,
    "lookups": 8 * 64 * 20, "segments": 1e5, "boundaries": 100, "s": 2048, "heads": 16,
    "head_dim": 64, "outputs": 2.5e6, "recorded_us": 7,
    "tokens": 64 * 2048, "pairs": 64 * 2048 * 1024, "value_dim": 64,
    "steps": 50, "hidden": 64, "gates": 3, "inter": 256, "topk": 2, "experts": 8,
}  # fmt: skip


def model_of(rows: Rows) -> KernelModel:
    return KERNELS[f"gpu/{OPS[rows.op[0]].family}/heuristic"]


def time_us(
    op: str,
    device: hardware.Device = V100,
    dtype: str = "fp32",
    direction: str = "fwd",
    **dims: float,
) -> float:
    rows = Rows.of([{"op": op, "dtype": dtype, "direction": direction, **dims}])
    return float(model_of(rows).estimate(rows, device).duration_us[0])


def every_op() -> list[tuple[str, str]]:
    known = [
        (op, way)
        for op in OPS
        for way in OPS[op].directions
        if f"gpu/{OPS[op].family}/heuristic" in KERNELS
    ]
    assert len(known) > 60
    return known


@pytest.mark.parametrize(("op", "direction"), every_op())
def test_every_op_has_a_duration_an_interval_and_reasons(op: str, direction: str) -> None:
    spec = OPS[op]
    usual = {name: DIMS[name] for name in spec.dims}
    usual |= {name: DIMS[name] for name in ("kernel_size", "input_size") if name in spec.defaults}
    rows = Rows.of([{"op": op, "direction": direction, **usual}])
    for device in (V100, H100, hardware.device("mi300x"), hardware.device("p4")):
        found = model_of(rows).estimate(rows, device)
        assert 0 < found.low_us[0] <= found.duration_us[0] <= found.high_us[0] < 1e7
        why = model_of(rows).explain(rows, device)[0]
        assert why.duration_us == pytest.approx(found.duration_us[0], rel=1e-9)
        # What was recorded in a trace has no bound.
        assert why.duration_us >= why.terms.get("bound_us", 0.0)
        assert 0 <= why.utilisation_frac <= 1


@pytest.mark.parametrize(
    ("name", "per_clock"), [("p100-pcie-16gb", 16.0), ("p4", 32.0), ("l4", 16.0)]
)
def test_large_multiprocessors_of_pascal_have_twice_the_special_units(
    name: str, per_clock: float
) -> None:
    device = hardware.device(name)
    assert special_per_us(device) == per_clock * device.sm_count * device.boost_mhz


def test_jagged_attention_follows_pairs_and_the_kernels_language() -> None:
    dims = {"tokens": 1e5, "heads": 4.0, "head_dim": 128.0, "value_dim": 128.0}
    once, twice = (time_us("jagged_attention", H100, "bf16", pairs=n, **dims) for n in (1e9, 2e9))
    assert twice / once == pytest.approx(2.0, rel=0.01)
    overlapped = time_us("jagged_attention", H100, "bf16", pairs=1e9, cutlass=1.0, **dims)
    assert overlapped < once


def test_blocks_on_the_diagonal_are_computed_whole() -> None:
    """With blocks of 64, 64 positions of a sequence add 32 pairs each to half their square; as many
    again where the last block of a sequence is not full. Each block of a head starts a program."""
    dims = {"heads": 4.0, "head_dim": 128.0, "value_dim": 128.0, "tokens": 1e6}
    starts_us = 1.96 * 1e6 / 64 * 4 / 132

    def scores_us(length: float, more_blocks: float = 0.0, **more: float) -> float:
        taken = time_us("jagged_attention", H100, "bf16", pairs=1e6 * length / 2, **dims, **more)
        return taken - 2.0 - starts_us * (1.0 + more_blocks)

    short, long = scores_us(1024.0), scores_us(2048.0)
    assert long / short == pytest.approx((2048 + 64) / (1024 + 64), rel=1e-6)
    ragged = scores_us(1024.0, sequences=1000.0, more_blocks=1000 * 32 / 1e6)
    assert ragged / short == pytest.approx((1024 + 128) / (1024 + 64), rel=1e-6)


def test_decoding_reads_the_cache_once_for_all_heads_that_share_it() -> None:
    """32 sequences, 8 heads of 128 over 32,768 keys: 4.3 GB at 2.93 TB/s; heads that share keys
    cost nothing; a window and a narrower type read less; one sequence is shared out."""
    dims = {"b": 32.0, "s": 1.0, "s_kv": 32768.0, "kv_heads": 8.0, "head_dim": 128.0}
    whole = time_us("decode_attention", H100, "bf16", heads=8.0, **dims)
    assert whole == pytest.approx(2 * 2 * 32 * 32768 * 8 * 128 / H100.stream_gb_per_s / 1e3, 0.01)
    shared = time_us("decode_attention", H100, "bf16", heads=32.0, **dims)
    assert shared == pytest.approx(whole, rel=0.01)
    narrow = time_us("decode_attention", H100, "fp8", heads=8.0, **dims)
    assert narrow == pytest.approx(whole / 2, rel=0.01)
    window = time_us("decode_attention", H100, "bf16", heads=8.0, window_size=4096.0, **dims)
    assert window == pytest.approx(whole / 8, rel=0.05)
    one = time_us("decode_attention", H100, "bf16", heads=8.0, **{**dims, "b": 1.0})
    assert one < whole / 16


def test_experts_that_are_hit_are_read_once() -> None:
    """One token reads two of eight experts, three matrices of 4,096 x 14,336 in bf16 each; many
    tokens multiply; loads that fall fast hit fewer."""
    dims = {"hidden": 4096.0, "inter": 14336.0, "topk": 2.0}
    few = time_us("moe", H100, "bf16", tokens=1.0, experts=8.0, **dims)
    read_us = 2 * 3 * 2 * 4096 * 14336 / H100.stream_gb_per_s / 1e3
    assert few == pytest.approx(read_us, rel=0.2)
    many = time_us("moe", H100, "bf16", tokens=16384.0, experts=8.0, **dims)
    assert many > 6 * 2 * 16384 * 4096 * 14336 / H100.bf16_tflop_per_s / 1e6
    alike, skewed = (
        expert_loads({name: np.array([value]) for name, value in (*sizes.items(), ("skew", skew))})
        for sizes in ({"tokens": 16.0, "topk": 8.0, "experts": 128.0},)
        for skew in (0.0, 1.2)
    )
    assert alike == pytest.approx((128.0, 1.0))
    assert skewed[0] < 100.0
    assert skewed[1] > 8.0


@given(st.floats(1e2, 1e10), st.floats(1.0, 1.5))
def test_transfers_are_continuous_and_monotone_in_bytes(size: float, factor: float) -> None:
    sizes = np.array([size, size * (1 + 1e-9), size * factor])
    for device in (V100, H100):
        for curve in (transfer_us, bound_us):
            first, next_to_it, larger = curve(sizes, device)
            assert next_to_it == pytest.approx(first, rel=1e-6)
            assert larger >= first * (1 - 1e-9)


@given(
    st.sampled_from(["bmm", "mm", "linear"]),
    st.sampled_from(["b", "m", "n", "k"]),
    *(st.integers(1, 4096) for _ in range(3)),
    st.integers(1, 3),
)
def test_products_do_not_get_faster_with_size(
    op: str, name: str, m: int, n: int, k: int, times: int
) -> None:
    dims = {"b": 1, "m": m * 8, "n": n * 8, "k": k * 8}
    larger = dims | {name: dims[name] * times}
    assert time_us(op, **larger) >= time_us(op, **dims) * (1 - 1e-9)


@given(st.integers(1, 1 << 20), st.integers(1, 1 << 14), st.integers(2, 4))
def test_streams_do_not_get_faster_with_size(rows: int, cols: int, times: int) -> None:
    for op in ("add", "softmax", "cat" if cols > 1 else "relu"):
        extra = {"tensors": 2} if op == "cat" else {}
        small = time_us(op, rows=rows, cols=cols, **extra) * (1 - 1e-9)
        assert time_us(op, rows=rows * times, cols=cols, **extra) >= small
        assert time_us(op, rows=rows, cols=cols * times, **extra) >= small


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 512))
def test_half_precision_is_never_slower_for_aligned_products(m: int, n: int, k: int) -> None:
    dims = {"m": m * 8.0, "n": n * 8.0, "k": k * 8.0}
    rows = Rows.of([{"op": "mm", "dtype": dtype, **dims} for dtype in ("fp16", "fp32")])
    for device in (V100, H100):
        half, single = model_of(rows).estimate(rows, device).duration_us
        assert half <= single * (1 + 1e-9)


@given(
    st.sampled_from(["mm", "add", "softmax", "tbe", "conv2d", "sort", "attention"]),
    st.sampled_from(["hbm_gb_per_s", "fp32_tflop_per_s", "boost_mhz"]),
    st.floats(1.0, 3.0),
)
def test_a_device_better_in_one_figure_is_not_slower(op: str, figure: str, factor: float) -> None:
    dims = {name: DIMS[name] for name in OPS[op].dims}
    dims |= {name: DIMS[name] for name in ("kernel_size", "input_size") if name in OPS[op].defaults}
    better = replace(V100, **{figure: getattr(V100, figure) * factor})
    assert time_us(op, better, **dims) <= time_us(op, V100, **dims) * (1 + 1e-9)


@given(st.sampled_from(["add", "copy", "softmax", "cat", "mm"]), st.floats(0.9, 1.0))
def test_a_memory_that_reaches_more_of_its_peak_is_not_slower(op: str, share: float) -> None:
    dims = {name: DIMS[name] for name in OPS[op].dims}
    better = replace(V100, stream_peak_frac=share)
    assert time_us(op, better, **dims) <= time_us(op, V100, **dims) * (1 + 1e-9)


def test_a_launch_floor_is_apart_from_the_kernel() -> None:
    rows = Rows.of(
        [
            {"op": "add", "rows": 8, "cols": 8, "timing": timing}
            for timing in ("profiler_kernel", "event_single_call")
        ]
    )
    inside, alone = model_of(rows).estimate(rows, V100).duration_us
    assert inside == pytest.approx(V100.kernel_floor_us, rel=0.05)
    assert 25 < alone < 35


def test_the_shortest_kernels_have_an_interval_too() -> None:
    rows = Rows.of([{"op": "fill", "rows": 1, "cols": 1, "timing": "profiler_repeated"}])
    found = model_of(rows).estimate(rows, replace(V100, kernel_floor_us=9.0))
    ends = (found.low_us[0], found.duration_us[0], found.high_us[0])
    assert ends == pytest.approx((0.8 * 9.0, 9.0, 2.0 * 9.0))


def test_an_unknown_timing_is_an_error_that_lists_them() -> None:
    rows = Rows.of([{"op": "add", "rows": 8, "cols": 8, "timing": "stopwatch"}])
    with pytest.raises(ModelError, match="unknown timing 'stopwatch'; one of cuda_graph_replay"):
        model_of(rows).estimate(rows, V100)


def test_one_block_loops_over_all_of_k() -> None:
    short, long = (time_us("bmm", b=1, m=8, n=8, k=k) for k in (4096, 65536))
    assert long > 8 * short


def test_uniform_reuse_matches_the_closed_form() -> None:
    lookups, rows = np.array([2048.0 * 20]), np.array([1e5])
    expected = rows * (1 - (1 - 1 / rows) ** lookups)
    _, found = missed_lookups(lookups, rows, rows, np.zeros(1))
    assert found == pytest.approx(expected, rel=1e-3)


@given(st.floats(0.0, 2.0), st.floats(0.0, 1.0))
def test_more_cache_and_more_skew_miss_less(alpha: float, share: float) -> None:
    lookups, rows = np.full(2, 1e5), np.full(2, 1e6)
    cached = np.array([share * 5e5, share * 5e5 + 1e5])
    (little, more), _ = missed_lookups(lookups, rows, cached, np.full(2, alpha))
    assert more <= little * (1 + 1e-9)
    (even, skewed), _ = missed_lookups(
        lookups, rows, cached[1:].repeat(2), np.array([alpha, alpha + 0.5])
    )
    assert skewed <= even * (1 + 1e-9)


def test_lookups_called_over_and_over_find_their_rows_in_the_cache() -> None:
    dims = {"tables": 32, "batch": 128, "lookups": 32 * 128 * 8, "hash_size": 1000}
    rows = Rows.of(
        [
            {"op": "tbe", "dim": dim, "timing": timing, **dims}
            for dim in (32, 512)
            for timing in ("profiler_kernel", "profiler_repeated")
        ]
    )
    short, again, long, long_again = (
        why.terms["hit_frac"] for why in model_of(rows).explain(rows, V100)
    )
    assert short < again == 1
    assert long == long_again


@pytest.mark.parametrize(
    ("dtype", "stored", "compiled"),
    [
        ("int8", (80, 256, 272), (33.1, 58.1, 102.4)),
        ("int4", (80, 144), (44.1, 84.3)),
    ],
)
def test_quantised_rows_take_the_instructions_of_their_passes(
    dtype: str, stored: tuple[int, ...], compiled: tuple[float, ...]
) -> None:
    """A warp's, per row, as compiled for sm_80; four warps issue at a time."""
    device = hardware.device("a100-sxm-80gb")
    lookups, issued_per_us = 2.0**22, 108 * 4 * 1410
    dims = {"tables": 4, "batch": 16_384, "lookups": lookups, "hash_size": 5e6, "dim": 64}
    rows = Rows.of([{"op": "tbe", "dtype": dtype, "row_bytes": size, **dims} for size in stored])
    taken = [why.terms["dequantise_us"] for why in model_of(rows).explain(rows, device)]
    assert taken == pytest.approx([lookups * each / issued_per_us for each in compiled], rel=0.05)


def test_8_bits_before_matrix_units_are_multiplied_by_vector_units() -> None:
    """Pascal's DP4A: four times the rate of fp32, in its tiles, rounds and splits."""
    pascal, turing = (hardware.device(name) for name in ("gtx-1080-ti", "t4"))
    assert has_matrix_units(turing, ["int8", "fp32"]).tolist() == [True, False]
    assert not has_matrix_units(pascal, ["int8"]).any()
    geforce = hardware.device("rtx-3090")  # which sums fp32 at half of the rate
    assert has_matrix_units(geforce, ["fp16", "tf32", "fp32"]).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("name", "measured"),
    [("l4", 70), ("l40s", 266), ("rtx-a6000", 122), ("a40", 121), ("h100-pcie", 477), ("t4", 42.5)],
)
def test_boards_hold_the_root_of_peak_and_watts(name: str, measured: float) -> None:
    """TFLOP/s of long products in 16 bits (zzc0721/torch-performance-test-data)."""
    board = hardware.device(name)
    held = sustained_flop_per_us(board, ["bf16"], matrix_flop_per_us(board, ["fp16"]))[0] / 1e6
    assert held == pytest.approx(measured, rel=0.03)
    geforce = hardware.device("rtx-4090")
    peak = matrix_flop_per_us(geforce, ["fp16"])
    assert sustained_flop_per_us(geforce, ["fp16"], peak) == peak


def lookups_us(device: hardware.Device, **dims: float | str) -> float:
    """Of 8 tables of a million rows, 256 bags of 20 lookups each, unless told otherwise."""
    usual = {"op": "tbe", "timing": "profiler_kernel", "tables": 8, "batch": 256, "dim": 64}
    row = {**usual, "lookups": 8 * 256 * 20, "hash_size": 1e6, **dims}
    rows = Rows.of([row])
    return float(model_of(rows).estimate(rows, device).duration_us[0])


LOOKUPS = st.fixed_dictionaries(
    {
        "direction": st.sampled_from(["fwd", "bwd", "bwd_indice_weights"]),
        "dtype": st.sampled_from(["fp32", "fp16", "int8"]),
        "timing": st.sampled_from(["profiler_kernel", "profiler_repeated"]),
        "tables": st.sampled_from([1.0, 4.0, 32.0]),
        "batch": st.integers(4, 16).map(lambda bits: 2.0**bits),
        "pooling": st.sampled_from([0.25, 1.0, 8.0, 64.0]),
        "dim": st.integers(3, 9).map(lambda bits: 2.0**bits),
        "hash_size": st.integers(6, 23).map(lambda bits: 2.0**bits),
        "zipf_alpha": st.sampled_from([0.0, 0.8, 1.05]),
        "state_bytes": st.sampled_from([0.0, 4.0, 1024.0]),
    }
)


@given(LOOKUPS, st.sampled_from(["v100-sxm2-16gb", "t4", "a100-sxm-80gb", "h100-sxm", "mi300x"]))
def test_more_lookups_on_less_of_a_device_take_no_less(drawn: dict[str, float], name: str) -> None:
    """A larger table may make a backward shorter: fewer lookups of one row stand in line."""
    device = hardware.device(name)
    dims = {key: value for key, value in drawn.items() if key != "pooling"}
    dims["lookups"] = max(drawn["tables"] * drawn["batch"] * drawn["pooling"], 1.0)
    taken = lookups_us(device, **dims) * 0.999
    for figure in ("hbm_gb_per_s", "boost_mhz"):
        slower = replace(device, **{figure: getattr(device, figure) / 2})
        assert lookups_us(slower, **dims) >= taken
    grown = [("dim",), ("lookups",), ("batch", "lookups"), ("tables", "lookups")]
    grown += [("hash_size",)] if drawn["direction"] != "bwd" else []
    for names in grown:
        assert lookups_us(device, **dims) <= 1.001 * lookups_us(
            device, **{**dims, **{each: 2.0 * dims[each] for each in names}}
        )


def test_bags_that_are_almost_empty_take_their_warps_time() -> None:
    """As in a trace of 16 ranks on A100: 34,741 lookups in 393,216 bags take 84 to 92 us."""
    a100 = hardware.device("a100-sxm-80gb")
    dims = {"tables": 6, "batch": 65_536, "lookups": 34_741, "hash_size": 66_817}
    many, few = lookups_us(a100, **dims), lookups_us(a100, **{**dims, "batch": 8_192})
    assert 80 < many < 96
    assert few < many / 4


def test_gradients_of_long_runs_wait_for_their_blocks() -> None:
    """As many lookups and rows in all, spread evenly or not: blocks add up long runs alone."""
    bwd = {"direction": "bwd", "lookups": 1e6, "batch": 4096}
    short, long = (lookups_us(H100, **bwd, unique_rows=rows) for rows in (8e5, 8e3))
    read_once = 1e6 * 4 * 64 / 3.35e6
    assert long > 2 * read_once
    assert short < long + 2 * 8e5 * 2 * 256 / 3.35e6
    assert lookups_us(H100, **bwd, unique_rows=8e3, output_bytes=2) < 0.7 * long


def test_volta_reads_rows_of_the_cache_at_half_of_later_rates() -> None:
    """Per multiprocessor and clock; as in traces: 1.0 TB/s on V100, 2.0 on A100."""
    dims = {"tables": 64, "batch": 4096, "lookups": 64 * 4096 * 16, "hash_size": 1000, "dim": 64}
    moved = 64 * 4096 * (16 * 256 + 256)
    found = [
        moved / lookups_us(hardware.device(name), **dims) / 1e6
        for name in ("v100-sxm2-16gb", "a100-sxm-40gb")
    ]
    assert found == pytest.approx([1.05, 1.95], rel=0.08)


def test_random_numbers_are_work_of_their_own() -> None:
    """A million calls of 256 FLOP beside a million elements; the numbers hide the bytes."""
    dims = {"elements": 1e9, "flop_per_element": 44.0}
    drawn = time_us("elementwise", H100, "bf16", random=1.0, **dims)
    assert drawn - 2.0 == pytest.approx(1e9 * 300.0 / (H100.fp32_tflop_per_s * 1e6), rel=0.01)
    assert time_us("elementwise", H100, "bf16", **dims) < drawn / 3
