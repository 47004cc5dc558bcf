"""Kernels that reduce, by launches that profiles on an H200 and an H100 showed or by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import hardware
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import launch
from perfmodel.ops.rows import Rows

H200, SMS = hardware.device("h200-sxm"), 132
REDUCTIONS = coefficients("gpu.reductions")


@pytest.mark.parametrize(
    ("length", "outputs", "by_columns", "values", "blocks", "threads", "parts", "adders"),
    [
        (49, 19_200, False, 2, 1200, 512, 1, 512),  # a warp per row, 16 of them to a block
        (64_516, 8192, False, 127, 8192, 512, 1, 512),  # 16 warps to a row
        (16_384, 1, False, 32, 1, 512, 1, 512),
        (8, 1_982_464, False, 1, 30_976, 512, 1, 512),  # 8 lanes, 64 rows to a block
        (512, 512, True, 128, 4, 128, 1, 4),  # 128 columns to a block of 32 x 4 threads
        (97, 44, True, 97, 1, 128, 1, 16),  # too few rows for 16 threads: outputs instead
        (960, 11, True, 15, 2, 512, 1, 64),  # columns one by one
        (2048, 1024, True, 16, 8 * 32, 128, 32, 4),  # 32 blocks for the same columns
    ],
)
def test_threads_share_values_as_pytorch_has_them(
    length: int,
    outputs: int,
    by_columns: bool,
    values: float,
    blocks: int,
    threads: int,
    parts: int,
    adders: int,
) -> None:
    one = np.ones(1)
    found = launch(length * one, outputs * one, H200, by_columns=by_columns)
    assert (found.values, found.parts, found.adders) == (values, parts, adders)
    assert found.turns == pytest.approx(blocks / (SMS * 2048 / threads))


def timed_us(op: str, rows: float, cols: float, **told: str | float) -> float:
    row = {"op": op, "rows": rows, "cols": cols, "timing": "event_behind_work", **told}
    return float(durations_of(Rows.of([row]), H200).duration_us[0])


def test_threads_wait_longer_for_memory_than_for_a_cache() -> None:
    cold, warm = (timed_us("sum_rows", 512, 512, **{way: 1.0}) for way in ("cold", "warm"))
    assert cold - warm == pytest.approx(32 * (REDUCTIONS.load_us - REDUCTIONS.cached_load_us), 0.1)
    assert cold == pytest.approx(19.2, rel=0.15)  # traces/h200/memory.csv.gz
    assert warm == pytest.approx(9.3, rel=0.15)


def test_a_gradient_of_softmax_is_two_kernels() -> None:
    forward, back = (
        timed_us("softmax", 1 << 17, 512, direction=way, cold=1.0) for way in ("fwd", "bwd")
    )
    logs = timed_us("log_softmax", 1 << 17, 512, direction="bwd", cold=1.0)
    assert back == pytest.approx(2 * logs, rel=0.05)
    assert back > 2.5 * forward
