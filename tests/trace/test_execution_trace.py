"""Execution traces to columns: what each schema says, small enough to check by hand."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from counting import calls_of
from et_documents import FOUR, A, B, flat, node, read, spellings
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.trace.execution_trace_arguments import parse_type


@pytest.mark.parametrize("document", spellings())
def test_every_schema_says_the_same(document: dict[str, Any]) -> None:
    trace = read(document)
    assert trace.schema == document["schema"]
    assert trace.node_id.tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.names(np.arange(2, 6)) == ["aten::empty", "aten::mm", "aten::view", "aten::add_"]
    assert trace.parent.tolist() == [NONE, 0, 1, 1, 1, 1]
    assert trace.rf_id.tolist() == [0, 0, 1, 2, 3, 4]
    assert trace.scope.tolist() == [7, 7, 0, 0, 0, 1]
    assert trace.thread.tolist() == [0, 1, 1, 1, 1, 1]
    assert trace.inputs.tensors.bounds.tolist() == [0, 0, 0, 0, 2, 3, 5]
    assert trace.inputs.tensors.row.tolist() == [3, 3, 4, 5, 5]
    assert trace.inputs.tensors.argument.tolist() == [0, 1, 0, 0, 1]
    assert trace.inputs.tensors.storage_id.tolist() == [30, 31, 32, 32, 30]
    assert trace.inputs.tensors.elements.tolist() == [8, 16, 24, 24, 8]
    assert trace.input_shapes(3) == [[8], [16]]
    assert trace.input_types(3) == ["Tensor(float)", "Tensor(float)"]
    assert {trace.strings[i] for i in trace.inputs.tensors.dtype.tolist()} == {"float"}
    assert {t: rows.tolist() for t, rows in trace.linkable().items()} == {1: [2, 3, 4, 5]}
    assert not trace.warnings


def test_five_integers_are_a_tensor_only_where_the_type_says_so() -> None:
    one = node(
        2,
        "aten::view",
        1,
        ([20, 30, 0, 8, 4], [1, 2, 3, 4, 5]),
        input_types=["Tensor(float)", "GenericList[Int,Int,Int,Int,Int]"],
        input_shapes=[[8], [[], [], [], [], []]],
    )
    trace = read(flat(one, node(1, "root", 1), schema="1.0.0"))
    assert trace.inputs.tensors.tensor_id.tolist() == [20]
    assert trace.input_values(1) == [[20, 30, 0, 8, 4], [1, 2, 3, 4, 5]]


def test_ops_still_open_at_the_end_are_counted() -> None:
    trace = read(
        flat(
            node(2, "[pytorch|profiler|execution_trace|thread]", 1),
            node(4, "aten::mul", 3),
            node(5, "aten::add", 3),
            node(1, "[pytorch|profiler|execution_trace|process]", 1),
        )
    )
    assert trace.parent.tolist() == [NONE, 0, 1, 1]
    assert trace.warnings == [
        "2 nodes were called by 1 ops that are not in the file (still open when recording stopped)"
    ]


def test_spellings_that_json_forbids_are_repaired_and_counted() -> None:
    fill = node(2, "tab\there", 1, (1.5,), input_types=["Double"], input_shapes=[[]])
    text = json.dumps(flat(fill, node(1, "root", 1)))
    text = text.replace("[1.5]", "[-inf]").replace("\\t", "\t")
    trace = decode_execution_trace(text.encode(), "t.json")
    assert trace.input_values(1) == ["-inf"]
    assert trace.text(1) == "tab\there"
    assert len(trace.warnings) == 1


def test_repr() -> None:
    trace = read(flat(*FOUR))
    assert repr(trace) == (
        "ExecutionTrace('t.json', schema 1.0.1, 6 nodes, 5 + 4 tensors, 0 collectives, 0 warnings)"
    )
    empty = read(flat())
    assert len(empty) == 0
    assert [len(part) for part in empty.data_dependencies()] == [0, 0]
    assert empty.linkable() == {}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("Int", None),
        ("Tensor(float)", "float"),
        ("Tensor(nullptr (uninitialized))", "nullptr (uninitialized)"),
        ("GenericList[]", None),
        ("GenericList[Int,Int]", None),
        ("GenericList[None,Tensor(c10::Half)]", (None, "c10::Half")),
        ("Tuple[GenericList[Tensor(int),Tensor(int)],Int]", (("int", "int"), None)),
    ],
)
def test_types(text: str, shape: Any) -> None:
    assert parse_type(text) == shape


@given(st.text(alphabet="Tensor(float)[],GnicLsI", max_size=40))
def test_types_never_raise_anything_else(text: str) -> None:
    with suppress(ValueError):
        parse_type(f"GenericList[{text}Tensor(float)]")


def test_decoding_takes_work_in_proportion() -> None:
    def calls(nodes: int) -> int:
        chain = [node(i, "aten::relu", 2, (A,), (B,)) for i in range(3, nodes)]
        content = json.dumps(flat(*FOUR[-2:], *chain)).encode()
        return calls_of(lambda: decode_execution_trace(content, "t"))

    calls(50)
    assert calls(800) - calls(400) == pytest.approx(2 * (calls(400) - calls(200)), rel=0.05)
