"""Who wrote what an op of an execution trace reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from et_documents import A, B, flat, node, read, spellings, tensor
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.calls import subtree_last
from perfmodel.trace.columns import NONE

NULL = "Tensor(nullptr (uninitialized))"


@pytest.mark.parametrize("document", spellings())
def test_data_dependencies_by_hand(document: dict[str, Any]) -> None:
    trace = read(document)
    producer, consumer = trace.data_dependencies()
    names = list(zip(trace.names(producer), trace.names(consumer), strict=True))
    assert names == [
        ("aten::empty", "aten::mm"),
        ("aten::mm", "aten::view"),
        ("aten::empty", "aten::add_"),
        ("aten::mm", "aten::add_"),  # the view in between wrote nothing
    ]


def test_the_innermost_writer_counts_and_callers_are_no_producers() -> None:
    trace = read(
        flat(
            node(3, "outer", 1, (A,), (B,)),
            node(4, "inner", 3, (A,), (B,)),
            node(5, "later", 1, (B,), ()),
            node(1, "root", 1),
        )
    )
    producer, consumer = trace.data_dependencies()
    assert list(zip(trace.names(producer), trace.names(consumer), strict=True)) == [
        ("inner", "later")
    ]


def test_mutated_arguments_are_writes_and_undefined_or_empty_tensors_are_nothing() -> None:
    foreach = "aten::_foreach_add_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()"
    undefined, empty = [9, 0, 0, 0, 0, ""], tensor(50, 51, 0)
    trace = read(
        flat(
            node(2, "produce", 1, (), (A, empty)),
            node(
                3,
                "aten::_foreach_add_",
                1,
                ([A, B], undefined),
                op_schema=foreach,
                input_types=[
                    "GenericList[Tensor(float),Tensor(float)]",
                    NULL,
                ],
                input_shapes=[[[8], [16]], []],
            ),
            node(4, "undefined", 1, (), (undefined,), output_types=[NULL], output_shapes=[[]]),
            node(5, "read", 1, (B, empty), ()),
            node(1, "root", 1),
        )
    )
    assert trace.inputs.tensors.argument.tolist() == [0, 0, 1, 0, 1]
    producer, consumer = trace.data_dependencies()
    assert list(zip(trace.names(producer), trace.names(consumer), strict=True)) == [
        ("produce", "aten::_foreach_add_"),
        ("aten::_foreach_add_", "read"),
    ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.booleans())
def test_subtree_last(draws: list[int], reverse: bool) -> None:
    size = len(draws)
    parent = np.array([NONE if i == 0 else draw % i for i, draw in enumerate(draws)])
    if reverse:
        parent = np.where(parent[::-1] < 0, NONE, size - 1 - parent[::-1])
    expected = list(range(size))
    for row in range(size):
        up = row
        while up != NONE:
            expected[up] = max(expected[up], row)
            up = int(parent[up])
    assert subtree_last(parent).tolist() == expected
