"""Which operands a table of graphs has no value of full size for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel.ops.rows import Rows
from perfmodel.ops.small_operands import with_small_operands

SCORES = {"op": "bmm", "b": 8, "m": 64, "k": 16, "n": 64}
FULL = {"rows": 512, "cols": 64}


def graph(*ops: dict[str, object]) -> pd.DataFrame:
    """A table of one graph, a node per op that does not name its own."""
    rows = [{"graph": "g", "node_idx": place, "phase": "fw"} | op for place, op in enumerate(ops)]
    return pd.DataFrame(rows)


def found(*ops: dict[str, object]) -> list[str]:
    return list(with_small_operands(graph(*ops))["op"])


def test_scores_are_scaled_and_masked_by_what_is_smaller() -> None:
    scaled = {"op": "div_scalar", **FULL}
    assert found(SCORES, scaled, {"op": "add", **FULL})[-1] == "add_scalar"
    assert found(SCORES, {"op": "div", **FULL})[-1] == "div_scalar"


def test_two_values_of_the_size_may_be_the_two_operands() -> None:
    """The cubic term of a GELU: x + c x^3."""
    cubed = ({"op": "pow_scalar", **FULL}, {"op": "mul_scalar", **FULL})
    assert found(SCORES, *cubed, {"op": "add", **FULL})[-1] == "add"


@pytest.mark.parametrize(
    "other",
    [{"op": "copy", "elements": 512 * 64}, {"op": "linear", "m": 512, "k": 64, "n": 8}],
    ids=["moved by a copy", "read by a product"],
)
def test_a_value_of_a_size_that_is_not_told_may_be_one_of_them(other: dict[str, object]) -> None:
    assert found(other, SCORES, {"op": "add", **FULL})[-1] == "add"


def test_without_any_value_of_the_size_nothing_is_known() -> None:
    assert found({"op": "add", **FULL}) == ["add"]


def test_values_of_another_graph_do_not_count() -> None:
    table = graph(SCORES, SCORES | {"graph": "h"}, {"op": "mul", **FULL, "graph": "h"})
    assert list(with_small_operands(table)["op"])[-1] == "mul_scalar"


def test_the_gradient_of_the_first_operand_reads_the_small_one_again() -> None:
    back = {"op": "div", **FULL, "phase": "bw", "node_idx": 1}
    ops = (SCORES, {"op": "div", **FULL}, back, back)
    assert found(*ops)[1:] == ["div_scalar", "div_scalar", "div"]


def test_a_table_of_single_kernels_stays_as_it_is() -> None:
    table = graph(SCORES, {"op": "add", **FULL}).drop(columns="node_idx")
    assert with_small_operands(table) is table


def test_durations_of_a_graph_read_one_operand() -> None:
    table = graph(SCORES, {"op": "add", "rows": 1 << 9, "cols": 1 << 6})
    inside = perfmodel.durations(table, "v100-pcie-32gb")["duration_us"].iloc[-1]
    one = pd.DataFrame([{"op": "add_scalar", **FULL}])
    alone = perfmodel.durations(one, "v100-pcie-32gb")["duration_us"].iloc[0]
    assert inside == pytest.approx(alone, rel=1e-9)


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


MIXED = (("add", "fp16"), ("mm", "fp32"), ("add", "fp32"), ("mm", "fp16"))
