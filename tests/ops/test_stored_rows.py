"""Bytes of stored rows: FBGEMM's formulas, by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.durations import durations_of
from perfmodel.errors import ModelError
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, row_bytes

DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "int2")


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (32, {"fp32": 128, "fp16": 64, "fp8": 32, "int8": 48, "int4": 32, "int2": 16}),
        (64, {"fp32": 256, "fp16": 128, "fp8": 64, "int8": 80, "int4": 48, "int2": 32}),
        (128, {"fp32": 512, "fp16": 256, "fp8": 128, "int8": 144, "int4": 80, "int2": 48}),
    ],
)
def test_rows_on_a_gpu_are_multiples_of_16_bytes(dim: int, expected: dict[str, int]) -> None:
    assert {dtype: float(row_bytes(dtype, dim)) for dtype in expected} == expected


def test_rows_on_a_cpu_are_not_padded() -> None:
    assert float(row_bytes("int8", 100, alignment_bytes=1)) == 104
    assert float(row_bytes("int4", 33, alignment_bytes=1)) == 17 + 4


@given(st.integers(1, 4096))
@settings(max_examples=30)
def test_narrower_types_never_take_more(dim: int) -> None:
    sizes = [float(row_bytes(dtype, dim)) for dtype in ("fp32", "fp16", "int8", "int4", "int2")]
    assert all(wide >= narrow or narrow == 16 for wide, narrow in pairwise(sizes))
    assert all(size % 16 == 0 for size in sizes)


@pytest.mark.parametrize(("dtype", "dim"), [("int3", 64), ("int8", 0)])
def test_what_cannot_be_is_refused(dtype: str, dim: int) -> None:
    with pytest.raises(ModelError, match="rows of"):
        row_bytes(dtype, dim)


def looked_up(dtype: str, dim: int, **more: float) -> dict[str, float | str]:
    return {
        "op": "tbe",
        "dtype": dtype,
        "tables": 4,
        "batch": 8192,
        "lookups": 4 * 8192 * 50,
        "dim": dim,
        "hash_size": 5e6,
        "row_bytes": float(row_bytes(dtype, dim)),
        **more,
    }


def test_a_lookup_reads_rows_as_they_are_stored() -> None:
    rows = Rows.of([looked_up("int8", 128), looked_up("int8", 128, row_bytes=0, index_bytes=4)])
    dims = rows.dims_of("tbe", np.arange(2))
    read = OPS["tbe"].read_bytes(dims, rows.item_bytes[np.arange(2)])
    lookups, bags = 4 * 8192 * 50, 4 * 8192
    assert read.tolist() == [
        144 * lookups + 8 * (lookups + bags),
        128 * lookups + 4 * (lookups + bags),
    ]


def test_narrower_rows_are_looked_up_faster_but_not_beyond_their_bytes() -> None:
    rows = Rows.of([looked_up(dtype, 128) for dtype in ("fp32", "fp16", "int8", "int4")])
    found = durations_of(rows, device("a100-sxm-80gb")).duration_us
    gained = found[0] / found
    ratios = [512 / 256, 512 / 144, 512 / 80]
    assert all(1 < speed < ratio for speed, ratio in zip(gained[1:], ratios, strict=True))
