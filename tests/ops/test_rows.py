"""Rows of the measurement table."""

from __future__ import annotations

from perfmodel.ops.rows import Rows


def test_a_framework_is_told_by_name_or_by_place() -> None:
    given = ["sglang", 3.0, "mine", 9.0, float("nan")]
    rows = Rows.of([{"op": "linear", "framework": name} for name in given])
    assert rows.in_framework().tolist() == [3.0, 3.0, 0.0, 0.0, 0.0]
