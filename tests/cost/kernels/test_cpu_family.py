"""CPU kernel models: parameters, terms that can be checked by hand, and physical sanity."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cost.kernels.cpu_machine import MACHINE
from cost.kernels.cpu_machine import calibrated as _with
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.terms import distinct_rows, hit_frac, skew_of
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

FREE = {"first_us": 0.05, "fork_us": 0.1}


def _us(family: str, device: Device, **row: Any) -> float:
    model = KERNELS[f"cpu/{family}/heuristic"]
    return float(model.estimate(Rows.of([row]), device).duration_us[0])


def test_host_work_is_so_many_times_its_cost() -> None:
    device = _with(host={"each_us": 2.0}, host__host_node={"each_us": 3.0})
    assert _us("host", device, op="host_view") == pytest.approx(2)
    assert _us("host", device, op="host_node", count=5) == pytest.approx(15)


def test_an_op_goes_before_its_family_and_that_before_the_default() -> None:
    tiny = {"op": "relu", "rows": 1, "cols": 1}
    family = _with(vector={"floor_us": 7.0})
    own = _with(vector={"floor_us": 7.0}, vector__relu={"floor_us": 9.0})
    assert _us("vector", family, **tiny) == pytest.approx(7, abs=0.05)
    assert _us("vector", own, **tiny) == pytest.approx(9, abs=0.05)


def test_a_large_product_takes_its_flops_on_all_cores() -> None:
    """2 x 2048^3 flop at 200 GFLOP/s are 85.9 ms."""
    sharp = dict.fromkeys(("m_half", "n_half", "k_half", "m_tile", "n_tile"), 0.01)
    device = _with(matmul={**sharp, "core_gflop_per_s": 100.0, "dram_gb_per_s": 500.0})
    found = _us("matmul", device, op="mm", m=2048, n=2048, k=2048)
    assert found == pytest.approx(2 * 2048**3 / 200e3, rel=0.01)


@pytest.mark.parametrize(("dtype", "peak_gflop_per_s"), [("fp32", 300), ("bf16", 600)])
def test_no_kernel_is_faster_than_the_peak(dtype: str, peak_gflop_per_s: float) -> None:
    """Of 0.2 and 0.4 TFLOP/s at 2 GHz, at 3: whatever was fitted to small convolutions."""
    fast = {"core_gflop_per_s": 400.0, "bf16_ratio": 16.0, "blocked_ratio": 0.1}
    device = _with(convolution={**FREE, **fast, "dram_gb_per_s": 600.0, "llc_gb_per_s": 1500.0})
    device = replace(device, base_mhz=2000, bf16_tflop_per_s=0.4)
    row = {"op": "conv2d", "dtype": dtype, "batch": 16, "in_channels": 512, "out_channels": 512}
    row |= {"kernel_size": 3, "input_size": 56, "stride": 1, "padding": 1}
    flop = 2 * 16 * 56**2 * 512**2 * 9
    assert _us("convolution", device, **row) == pytest.approx(flop / peak_gflop_per_s / 1e3)
    (why,) = KERNELS["cpu/convolution/heuristic"].explain(Rows.of([row]), device)
    assert why.utilisation_frac == pytest.approx(1.0)
    assert why.bound_by == "compute"


def test_rows_of_a_larger_table_come_no_faster_and_within_the_memorys_rate() -> None:
    """A row of 2 kB takes one of two threads 0.4 us from L3 at 5 of 10 GB/s, so from memory too; 64
    threads, at 23 GB/s each, have 200 of the memory."""
    values = {**FREE, "near_ns": 1.0, "miss_ns": 1.0, "row_ratio": 1.0, "parallel_frac": 1.0}
    row = {"op": "embedding_bag", "dim": 512, "pooling": 20, "batch": 4096, "zipf_alpha": 0.0}

    def us(hash_size: float, llc_gb_per_s: float, **figures: float) -> float:
        table = {**values, "llc_gb_per_s": llc_gb_per_s, "dram_gb_per_s": 600.0}
        return _us(
            "embedding", replace(_with(embedding=table), **figures), **row, hash_size=hash_size
        )

    held_us, missed_us = us(4_000, 10.0), us(1e9, 10.0)
    assert held_us < missed_us
    assert missed_us > 4096 * 20 * 2048 / 10e3
    assert us(1e9, 1500.0, sm_count=64, hbm_gb_per_s=200) > 4096 * 20 * 2048 / 200e3


def test_small_products_of_a_batch_cost_each_multiply_add() -> None:
    """1000 products of 4 x 4 x 4 at 2 ns a multiply-add on two cores: 64 us."""
    device = _with(matmul={**FREE, "mac_ns": 2.0, "floor_us": 0.05})
    found = _us("matmul", device, op="bmm", b=1000, m=4, n=4, k=4)
    assert found == pytest.approx(64, rel=0.02)


def test_bytes_that_no_cache_holds_come_from_memory() -> None:
    """A copy of 10 MB in a step of 1 TB reads and writes 20 MB: 2 ms at 10 GB/s."""
    free = {**FREE, "floor_us": 0.05, "element_ns": 1e-4, "stream_ratio": 1.0}
    device = _with(vector={**free, "dram_gb_per_s": 10.0, "resident_frac": 0.01})
    found = _us("vector", device, op="copy", elements=5_000_000, step_bytes=1e12)
    assert found == pytest.approx(2000, rel=0.02)


def test_a_result_that_is_mapped_anew_costs_its_pages() -> None:
    """40 MB are 9766 pages; what is added in place touches none anew."""
    cheap, dear = (_with(vector={"page_us": us}) for us in (0.01, 1.01))
    for op, pages in (("relu", 9765.625), ("add_inplace", 0.0)):
        row = {"op": op, "rows": 1, "cols": 10_000_000}
        assert _us("vector", dear, **row) - _us("vector", cheap, **row) == pytest.approx(pages)


@pytest.mark.parametrize(("tables", "share"), [(1, 0.0), (2, 0.0), (2.5, 0.5), (4, 1.0)])
def test_dense_gradients_of_several_tables_are_mapped_anew(tables: float, share: float) -> None:
    """Of 16 MiB each, 4,096 pages: malloc gives back what is freed beyond twice the largest. The
    step writes gradients, and tables once more."""
    row = {"op": "embedding_bag", "direction": "bwd", "dense": 1, "unique_rows": 1}
    row |= {"hash_size": 2**18 - 1, "dim": 16, "pooling": 1, "batch": 1}
    cheap, dear = (_with(embedding={"page_us": us}) for us in (0.01, 1.01))
    asked = {**row, "step_bytes": 2 * tables * 2**24}
    more_us = _us("embedding", dear, **asked) - _us("embedding", cheap, **asked)
    assert more_us == pytest.approx(share * 4096)


def test_the_first_of_its_kind_in_a_step_costs_more() -> None:
    """As far as the step takes its code out of L2: half of it at 2 MB."""
    ratios = ("crowded_ratio", "evicted_ratio", "first_evicted_ratio")
    device = _with(vector={"floor_us": 2.0, "first_us": 30.0, **dict.fromkeys(ratios, 0.001)})
    tiny = {"op": "relu", "rows": 1, "cols": 1, "first_frac": 1}
    assert _us("vector", device, **tiny) == pytest.approx(2, abs=0.1)
    assert _us("vector", device, **tiny, step_bytes=2_000_000) == pytest.approx(17, abs=0.1)


def test_a_step_beyond_the_caches_costs_an_op_more_overhead() -> None:
    """A step of 32 MB beyond 2 MB of L2 and 16 MB of L3: 1 + 32 / 34 + 32 / 48 times."""
    device = _with(vector={"floor_us": 3.0, "crowded_ratio": 1.0, "evicted_ratio": 1.0})
    tiny = {"op": "relu", "rows": 1, "cols": 1}
    alone = _us("vector", device, **tiny)
    assert alone == pytest.approx(3, abs=0.05)
    crowded = _us("vector", device, **tiny, step_bytes=32_000_000)
    assert crowded / alone == pytest.approx(1 + 16 / 17 + 2 / 3, rel=0.02)


def test_many_pairs_are_sorted_by_digits_and_scans_are_not_sorted() -> None:
    """A million keys: 20 comparisons of 3 ns each, or 10 ns for all digits; a scan neither."""
    device = _with(sort={"key_ns": 1.0, "compare_ns": 3.0, "radix_ns": 10.0, "parallel_frac": 0.01})
    row = {"dtype": "int64", "rows": 1, "cols": 2**20}
    scan = _us("sort", device, op="cumsum", **row)
    digits = _us("sort", device, op="sort_pairs", **row) - scan
    comparisons = _us("sort", device, op="sort", **row) - scan
    assert 9_000 < digits < 15_000
    assert 60_000 < comparisons < 70_000


def test_convolutions_work_on_whole_blocks_of_channels() -> None:
    """17 channels into 16 are 32 channels' work backward; forward, 3 channels are read as 3."""
    device = _with(convolution={**FREE, "floor_us": 0.05})
    row = {"op": "conv2d", "batch": 8, "out_channels": 16, "kernel_size": 3, "input_size": 56}
    us = {
        (channels, direction): _us(
            "convolution", device, **row, in_channels=channels, direction=direction
        )
        for channels in (3, 16, 17, 32)
        for direction in ("fwd", "bwd_data")
    }
    assert us[17, "bwd_data"] == pytest.approx(us[32, "bwd_data"], rel=0.1)
    assert us[3, "bwd_data"] > 0.8 * us[16, "bwd_data"]
    assert us[3, "fwd"] < 0.6 * us[16, "fwd"]


def test_convolutions_over_windows_are_laid_out_anew_where_channels_come_first() -> None:
    """A depthwise one moves its image three times, as `blocked_ratio` 2 says; a pixel's never."""
    device = _with(convolution={**FREE, "floor_us": 0.05, "blocked_ratio": 2.0})
    row = {"op": "conv2d", "batch": 4, "in_channels": 64, "out_channels": 64, "groups": 64}
    row |= {"input_size": 14, "padding": 1}
    first, last = (
        _us("convolution", device, **row, kernel_size=3, channels_last=last) for last in (0, 1)
    )
    rest_us = 2 * 4 * 64 * 14**2 * 9 / (200 * 1e3) + 0.1
    assert first - rest_us == pytest.approx(3 * (last - rest_us), rel=0.05)
    pixels = row | {"groups": 1, "padding": 0, "kernel_size": 1}
    first, last = (_us("convolution", device, **pixels, channels_last=each) for each in (0, 1))
    assert first > 1.2 * last
    alone = replace(device, sm_count=1)  # one thread multiplies matrices
    first, last = (_us("convolution", alone, **pixels, channels_last=each) for each in (0, 1))
    assert first == pytest.approx(last)


def test_channels_of_a_group_fill_blocks_of_their_own() -> None:
    """Four of sixteen lanes: four times the work of the FLOP; not where each channel is a group."""
    device = _with(convolution={**FREE, "floor_us": 0.05})
    row = {"op": "conv2d", "batch": 8, "input_size": 14, "kernel_size": 3, "channels_last": 1}
    narrow, wide = (
        _us("convolution", device, **row, in_channels=256, out_channels=256, groups=groups)
        for groups in (64, 16)
    )
    assert narrow == pytest.approx(wide, rel=0.1)
    one, two = (
        _us("convolution", device, **row, in_channels=64, out_channels=channels, groups=64)
        for channels in (64, 128)
    )
    assert two > 4 * one  # a depthwise kernel's outputs are as many as its inputs


def test_two_results_below_what_is_mapped_anew_are_not_one_above() -> None:
    """A loop that writes 2 x 20 MB takes no page fault; one that writes 40 MB takes 9,766."""
    device = _with(vector={**FREE, "floor_us": 0.05, "page_us": 1.0})
    row = {"op": "elementwise", "reads": 1}
    two, one = (
        _us("vector", device, **row, elements=elements, writes=writes)
        for elements, writes in ((5e6, 2), (10e6, 1))
    )
    assert one - two > 9_000


def test_pooling_of_channels_side_by_side_takes_an_eighth() -> None:
    row = {"op": "max_pool", "elements": 1e6, "outputs": 2.5e5, "kernel_size": 3}
    device = _with(vector={**FREE, "floor_us": 0.05, "element_ns": 4.0, "stream_ratio": 0.01})
    first, last = (_us("pooling", device, **row, channels_last=each) for each in (0, 1))
    assert last == pytest.approx(0.12 * first, rel=0.05)
    back = [_us("pooling", device, **row, channels_last=each, direction="bwd") for each in (0, 1)]
    assert back[0] == back[1] > 0  # of which nothing was measured


def test_attention_over_few_keys_is_slow_for_its_work() -> None:
    device = _with(attention={**FREE, "floor_us": 0.05})
    row = {"op": "attention", "heads": 8, "head_dim": 64}
    few, many = (_us("attention", device, **row, b=b, s=s) for b, s in ((1024, 32), (1, 1024)))
    assert few == pytest.approx(many * (1 + 90 / 32) / (1 + 90 / 1024), rel=0.1)
    window = [_us("attention", device, **row, b=1, s=32, window_size=16, past=n) for n in (0, 999)]
    assert window[0] <= window[1]


def test_sums_are_no_faster_than_the_memory_nor_on_more_threads_than_one() -> None:
    rows = {"cols": 1.0, "rows": 1e6, "hash_size": 1e6}
    for op in ("scatter_add", "index_add"):
        one, two = (
            _us("vector", replace(MACHINE, sm_count=cores), op=op, **rows) for cores in (1, 2)
        )
        assert two >= 0.9 * one
    us = _us("vector", MACHINE, op="sum", rows=1, cols=1e9)
    assert us >= (4e9 - MACHINE.llc_bytes) / MACHINE.hbm_gb_per_s / 1e3


def test_small_products_of_bf16_are_loops_larger_ones_a_librarys() -> None:
    device = _with(matmul={**FREE, "floor_us": 0.05, "bf16_us": 20.0, "bf16_mac_ns": 2.0})
    row = {"op": "mm", "dtype": "bf16", "m": 16, "n": 16}
    assert _us("matmul", device, **row, k=16) == pytest.approx(4096 * 2e-3 / 2, rel=0.1)
    assert _us("matmul", device, **row, k=17) > 20


def test_lookups_of_popular_rows_stay_near() -> None:
    """A table beyond the caches: the same lookups cost less when the same rows return."""
    row = {"op": "embedding_bag", "hash_size": 1_000_000, "dim": 64, "batch": 4096, "pooling": 32}
    spread, popular = (_us("embedding", MACHINE, **row, zipf_alpha=alpha) for alpha in (0.0, 1.4))
    assert popular < 0.7 * spread


def test_a_sparse_update_goes_lookup_by_lookup() -> None:
    """100,000 of them at 28 ns and 16 elements of 0.05 ns each, nine tenths of it on two cores."""
    row = {"op": "embedding_bag", "direction": "update", "dim": 16, "batch": 100_000, "pooling": 1}
    even = {**row, "hash_size": 10_000, "unique_rows": 10_000}
    update = {"bag_ns": 0.01, "lookup_ns": 28.0, "element_ns": 0.05, "miss_ns": 100.0}
    device = _with(embedding__embedding_bag_update=update)
    found = _us("embedding", device, **even)
    assert found == pytest.approx(100_000 * 28.8e-3 * (0.1 + 0.9 / 2), rel=0.05)
    wide = replace(device, sm_count=16, l2_bytes=16_000_000)
    assert _us("embedding", wide, **even) < 0.4 * found


def test_the_thread_with_the_popular_rows_does_most_of_an_update() -> None:
    row = {"op": "embedding_bag", "direction": "update", "dim": 16, "batch": 100_000, "pooling": 1}
    wide = replace(MACHINE, sm_count=16, l2_bytes=16_000_000)
    even, skewed = (
        _us("embedding", wide, **row, hash_size=10_000, unique_rows=unique)
        for unique in (10_000, 4_000)
    )
    assert skewed > 2.5 * even


def test_explanations_sum_to_the_estimate() -> None:
    model = KERNELS["cpu/vector/heuristic"]
    rows = Rows.of(
        [{"op": "add", "rows": 1000, "cols": 1000}, {"op": "relu", "rows": 3, "cols": 4}]
    )
    durations = model.estimate(rows, MACHINE).duration_us
    for found, duration in zip(model.explain(rows, MACHINE), durations, strict=True):
        assert sum(found.terms.values()) == pytest.approx(duration)
        assert found.duration_us == pytest.approx(duration)


def test_unknown_and_impossible_parameters_are_named() -> None:
    with pytest.raises(ModelError, match=r"calibration.vector: unknown key flor_us; .*floor_us"):
        _us("vector", _with(vector={"flor_us": 1.0}), op="relu", rows=1, cols=1)
    with pytest.raises(ModelError, match=r"floor_us: expected above 0, at most 1e\+06, got -1"):
        _us("vector", _with(vector={"floor_us": -1.0}), op="relu", rows=1, cols=1)


def test_distinct_rows() -> None:
    """Two draws from two rows: 1.5 distinct; skew leaves fewer; one row is one."""
    rows, draws = np.array([2.0, 1000.0, 1000.0, 1.0]), np.array([2.0, 500.0, 500.0, 9.0])
    found = distinct_rows(rows, draws, np.array([0.0, 0.0, 1.2, 0.0]))
    assert found[0] == pytest.approx(1.5)
    assert found[1] == pytest.approx(1000 * (1 - 0.999**500))
    assert found[2] < 0.6 * found[1]
    assert found[3] == 1


def test_hits_of_the_most_popular_rows() -> None:
    """Uniform: the share of the distinct rows that is held; skewed: more; all held: all."""
    rows, distinct = np.full(3, 1000.0), np.full(3, 400.0)
    found = hit_frac(np.array([100.0, 100.0, 400.0]), rows, distinct, np.array([0.0, 1.1, 0.5]))
    assert found[0] == pytest.approx(0.25, abs=0.01)
    assert found[1] > 0.5
    assert found[2] == pytest.approx(1)


def test_skew_is_found_from_distinct_rows() -> None:
    rows, lookups, alpha = np.full(3, 1e5), np.full(3, 2e4), np.array([0.0, 0.8, 1.2])
    found = skew_of(rows, lookups, distinct_rows(rows, lookups, alpha))
    assert found == pytest.approx(alpha, abs=0.02)


@given(
    st.integers(1, 10_000), st.integers(1, 5_000), st.sampled_from(["add", "relu", "sum", "cat"])
)
def test_more_rows_never_take_less(rows: int, cols: int, op: str) -> None:
    row = {"op": op, "cols": cols, "tensors": 2}
    assert _us("vector", MACHINE, **row, rows=2 * rows) >= _us("vector", MACHINE, **row, rows=rows)


@given(st.integers(1, 5_000), st.integers(1, 200), st.sampled_from(["fwd", "bwd", "update"]))
def test_more_lookups_never_take_less(batch: int, pooling: int, direction: str) -> None:
    row = {"op": "embedding_bag", "hash_size": 100_000, "dim": 64, "batch": batch}
    few = _us("embedding", MACHINE, **row, pooling=pooling, direction=direction)
    assert _us("embedding", MACHINE, **row, pooling=2 * pooling, direction=direction) >= few
