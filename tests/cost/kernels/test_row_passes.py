"""Rows that are read more than once: from the L2 while they fit together, from memory beyond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.cost.gpu.rates import (
    ROW_KERNELS,
    analyse,
    repeated_passes,
    resident_share,
)
from perfmodel.ops.rows import Rows

V100 = hardware.device("v100-sxm2-16gb")
FP32 = np.array([4.0])


def resident(op: str, rows: float, cols: float) -> float:
    return float(resident_share(op, np.array([rows]), np.array([cols]), FP32, V100)[0])


def test_short_softmax_rows_stay_in_registers() -> None:
    assert resident("softmax", 1e6, 1024) == 0
    assert resident("softmax", 1e6, 1025) > 0


def test_the_rows_of_all_blocks_at_once_share_the_cache() -> None:
    at_once = V100.sm_count * 2048 / 128
    assert resident("layer_norm", 1e6, 512) == pytest.approx(at_once * 2048 / V100.l2_bytes)
    assert resident("layer_norm", 10, 512) == pytest.approx(10 * 2048 / V100.l2_bytes)


@pytest.mark.parametrize("op", sorted(ROW_KERNELS))
def test_no_pass_goes_to_memory_for_few_rows_and_every_one_for_long_ones(op: str) -> None:
    again = 2.0 if "softmax" in op else 1.0
    passes, missed = repeated_passes(op, np.array([0.05, 5.0]))
    assert passes.tolist() == [again, again]
    assert missed.tolist() == [0.0, again]


@given(
    st.sampled_from(sorted(ROW_KERNELS)),
    st.integers(1, 1 << 18),
    st.integers(1, 1 << 15),
    st.integers(2, 8),
)
def test_more_rows_and_longer_ones_never_take_less(op: str, rows: int, cols: int, by: int) -> None:
    shapes = ((rows, cols), (rows * by, cols), (rows, cols * by))
    table = Rows.of([{"op": op, "rows": r, "cols": c} for r, c in shapes])
    small, more_rows, longer = analyse(table, V100).kernel_us
    assert small <= more_rows * (1 + 1e-9)
    assert small <= longer * (1 + 1e-9)
