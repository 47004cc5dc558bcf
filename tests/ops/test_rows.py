"""Rows of the measurement table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfmodel.ops.rows import Rows

MIXED = (("add", "fp16"), ("mm", "fp32"), ("add", "fp32"), ("mm", "fp16"))


def test_a_framework_is_told_by_name_or_by_place() -> None:
    given = ["sglang", 3.0, "mine", 9.0, float("nan")]
    rows = Rows.of([{"op": "linear", "framework": name} for name in given])
    assert rows.in_framework().tolist() == [3.0, 3.0, 0.0, 0.0, 0.0]


def test_dims_of_a_frame_have_one_order_in_every_process() -> None:
    frame = pd.DataFrame([{"op": "linear", "n": 3, "m": 1, "k": 2, "b": 1}])
    assert Rows.from_frame(frame).dims_text() == "b 1, k 2, m 1, n 3"


def test_a_call_of_blas_is_a_product_of_rows_with_operands_exchanged() -> None:
    """Column-major TN of 512 x 16 is a layer of 16 rows and 512 features, its weights as stored."""
    blas = {"op": "bmm", "b": 1, "m": 512, "n": 16, "k": 64, "transpose_a": "T", "transpose_b": "N"}
    own = {"op": "linear", "m": 512, "n": 16, "k": 64}
    dims = Rows.from_frame(pd.DataFrame([blas, own])).dims
    assert dims["m"].tolist() == [16.0, 512.0]
    assert dims["n"].tolist() == [512.0, 16.0]
    assert dims["second_turned"][0] == 1.0
    assert dims["first_turned"][0] == 0.0
    assert np.isnan(dims["second_turned"][1])


def test_rows_are_grouped_in_order_of_first_sight() -> None:
    records = [{"op": op, "m": 8, "rows": 8, "dtype": dtype} for op, dtype in MIXED]
    rows = Rows.of(records)
    found = {key: index.tolist() for key, index in rows.grouped(lambda kind: kind.dtype)}
    assert list(found.items()) == [("fp16", [0, 3]), ("fp32", [1, 2])]
    assert [(op, index.tolist()) for op, index in rows.groups()] == [
        ("add", [0, 2]),
        ("mm", [1, 3]),
    ]
    assert rows.of_kinds(lambda kind: len(kind.op)).tolist() == [3.0, 2.0, 3.0, 2.0]
    assert rows.take(np.array([3, 0])).kinds[0][0].op == "mm", "in the order of the rows taken"
    assert rows.take(np.arange(4)) is rows
    assert [(op, list(index)) for op, index in rows.take(np.array([1])).groups()] == [("mm", [0])]


def test_no_rows_have_no_groups() -> None:
    rows = Rows.of([])
    assert list(rows.groups()) == []
    assert rows.of_kinds(lambda kind: 1.0).shape == (0,)
