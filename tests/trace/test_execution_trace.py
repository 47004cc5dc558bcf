"""Execution traces: every schema, hand-made and real, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE
from perfmodel.trace.et_depends import subtree_last
from perfmodel.trace.et_types import TypeTextError, parse_type
from perfmodel.trace.execution_trace import (
    NESTED_SCHEMAS,
    ExecutionTrace,
    decode_execution_trace,
    looks_like_execution_trace,
)

ROOT = Path(__file__).parents[2]
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", ROOT / "../shared/data"))

NODES = {
    "execution_graphs/alexnet_et_2023": ("1.0.0", 400),
    "execution_graphs/dlrm_default_1024_et_v1.0.0": ("1.0.0", 528),
    "traces/dlrm_v100x8/et_rank0": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank1": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank2": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank3": ("1.0.1", 1675),
    "traces/et_kineto_pairs/a100_simple_add_et": ("1.0.1", 38),
    "traces/et_kineto_pairs/rtx2080ti_linear_et": ("1.0.1", 931),
    "traces/et_only/pt2_et_1.1.1": ("1.1.1-chakra.0.0.4", 20),
    "traces/et_only/resnet_1gpu_1.1.1-chakra.0.0.4": ("1.1.1-chakra.0.0.4", 14392),
    "traces/et_only/resnet_et_1.1.0-chakra.0.0.4": ("1.1.0-chakra.0.0.4", 14392),
}


def reference(name: str) -> bytes:
    path = REFERENCE / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"reference data not found: {path} (set PERFMODEL_REFERENCE)")
    return gzip.decompress(path.read_bytes())


def tensor(number: int, storage: int, elements: int, offset: int = 0) -> list[Any]:
    return [number, storage, offset, elements, 4, "cuda:0"]


def node(
    node_id: int,
    name: str,
    parent: int,
    inputs: tuple[Any, ...] = (),
    outputs: tuple[Any, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """A node whose arguments are all float tensors of one dimension, in schema-free form."""
    return {
        "id": node_id,
        "name": name,
        "parent": parent,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "rf_id": node_id - 2 if node_id > 2 else 0,
        "tid": 1 if node_id > 1 else 0,
        **more,
    }


def flat(*nodes: dict[str, Any], schema: str = "1.0.1", **more: Any) -> dict[str, Any]:
    written = []
    for one in nodes:
        full = {"fw_parent": 0, "scope": 0, "fw_tid": 0, "op_schema": "", **one}
        if schema == "1.0.1":
            full.setdefault("seq_id", -1)
        for key in ("input", "output"):
            values = full[f"{key}s"]
            if schema == "1.0.0":
                values = full[f"{key}s"] = [value[:5] for value in values]
            if f"{key}_types" not in full:
                full[f"{key}_types"] = ["Tensor(float)"] * len(values)
                full[f"{key}_shapes"] = [[value[3]] for value in values]
        written.append(full)
    return {"schema": schema, "pid": 7, "time": "now", "start_ts": 5, "nodes": written, **more}


def nested(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4") -> dict[str, Any]:
    written = []
    for one in nodes:
        full: dict[str, Any] = {
            "id": one["id"],
            "name": one["name"],
            "ctrl_deps": one["parent"],
            "attrs": [],
        }
        for key in ("inputs", "outputs"):
            values = one[key]
            singular = key[:-1]
            types = one.get(f"{singular}_types", ["Tensor(float)"] * len(values))
            shapes = one.get(f"{singular}_shapes") or [[value[3]] for value in values]
            full[key] = {"values": values, "shapes": shapes, "types": types}
            if schema.startswith("1.1.1"):
                full[key]["strides"] = [[1] for _ in values]
        for key, value in one.items():
            if key not in ("id", "name", "parent") and not key.startswith(("input", "output")):
                kind = "string" if isinstance(value, str) else "uint64"
                full["attrs"].append({"name": key, "type": kind, "value": value})
        written.append(full)
    return {"schema": schema, "pid": 7, "time": "now", "start_ts": 5, "nodes": written}


A, B, C, D = (tensor(20 + i, 30 + i, 8 * (i + 1)) for i in range(4))
NULL = "Tensor(nullptr (uninitialized))"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"

FOUR = (
    node(4, "aten::mm", 2, (A, B), (C,), op_schema="aten::mm(Tensor self, Tensor mat2) -> Tensor"),
    node(3, "aten::empty", 2, (), (A,)),
    node(6, "aten::add_", 2, (C, A), (C,), op_schema=ADD_, scope=1),
    node(5, "aten::view", 2, (C,), (tensor(40, 32, 24),), op_schema=VIEW),
    node(2, "[pytorch|profiler|execution_trace|thread]", 1, scope=7),
    node(1, "[pytorch|profiler|execution_trace|process]", 1, scope=7),
)
"""empty -> A; mm(A, B) -> C; view(C); add_(C, A), in no order; B is written by nobody."""


def read(document: Any) -> ExecutionTrace:
    return decode_execution_trace(json.dumps(document).encode(), "t.json")


def spellings() -> list[Any]:
    return [
        pytest.param(flat(*FOUR, schema="1.0.0"), id="1.0.0"),
        pytest.param(flat(*FOUR), id="1.0.1"),
        *(pytest.param(nested(*FOUR, schema=schema), id=schema) for schema in NESTED_SCHEMAS),
    ]


@pytest.mark.parametrize("document", spellings())
def test_every_schema_says_the_same(document: dict[str, Any]) -> None:
    trace = read(document)
    assert trace.schema == document["schema"]
    assert (trace.pid, trace.recorded, trace.start_ms, trace.finish_ms) == (7, "now", 5, NONE)
    assert trace.node_id.tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.names(np.arange(2, 6)) == ["aten::empty", "aten::mm", "aten::view", "aten::add_"]
    assert trace.parent.tolist() == [NONE, 0, 1, 1, 1, 1]
    assert trace.rf_id.tolist() == [0, 0, 1, 2, 3, 4]
    assert trace.scope.tolist() == [7, 7, 0, 0, 0, 1]
    assert trace.sequence.tolist() == [NONE] * 6
    assert trace.thread.tolist() == [0, 1, 1, 1, 1, 1]
    assert trace.inputs.tensors.bounds.tolist() == [0, 0, 0, 0, 2, 3, 5]
    assert trace.inputs.tensors.row.tolist() == [3, 3, 4, 5, 5]
    assert trace.inputs.tensors.argument.tolist() == [0, 1, 0, 0, 1]
    assert trace.inputs.tensors.storage_id.tolist() == [30, 31, 32, 32, 30]
    assert trace.inputs.tensors.elements.tolist() == [8, 16, 24, 24, 8]
    assert trace.input_shapes(3) == [[8], [16]]
    assert trace.input_types(3) == ["Tensor(float)", "Tensor(float)"]
    assert trace.output_shapes(3) == [[24]]
    device = "" if document["schema"] == "1.0.0" else "cuda:0"
    assert {trace.strings[i] for i in trace.inputs.tensors.device.tolist()} == {device}
    assert {trace.strings[i] for i in trace.inputs.tensors.dtype.tolist()} == {"float"}
    assert {t: rows.tolist() for t, rows in trace.linkable().items()} == {1: [2, 3, 4, 5]}
    assert (trace.row_of(5), trace.row_of(9)) == (4, NONE)
    assert trace.strings[int(trace.node_type[0])] == "METADATA_NODE"
    assert not trace.warnings


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
    assert trace.inputs.tensors.device.tolist() == [NONE]
    assert trace.input_values(1) == [[20, 30, 0, 8, 4], [1, 2, 3, 4, 5]]


def comms(types: list[str], values: list[Any], **more: Any) -> dict[str, Any]:
    shapes = [
        [value[3]] if kind.startswith("Tensor") else []
        for kind, value in zip(types, values, strict=True)
    ]
    return node(
        3, "record_param_comms", 1, tuple(values), input_types=types, input_shapes=shapes, **more
    )


def test_collectives_before_1_1_0() -> None:
    types = ["Tensor(float)", "Int", "Int", "Int", "String"] + ["GenericList[Int,Int]"] * 2
    one = comms(types, [A, 147, 94594108284448, 1, "all_to_allv", [6, 2], [3, 5]])
    trace = read(flat(one, node(1, "root", 1)))
    table = trace.collectives
    assert [trace.strings[int(c[0])] for c in (table.name, table.group, table.dtype)] == [
        "all_to_allv",
        "94594108284448",
        "float",
    ]
    assert (table.row[0], table.sequence[0], table.rank[0], table.group_size[0]) == (1, 147, 1, -1)
    assert (table.in_elements[0], table.out_elements[0]) == (8, NONE)
    assert (table.in_split, table.out_split) == (((6, 2),), ((3, 5),))
    assert trace.strings[int(trace.node_type[1])] == "COMM_COLL_NODE"
    assert trace.group_ranks(0) == ()


@pytest.mark.parametrize("sequence", [(9, "Int"), ([9, False], "Tuple[Int,Bool]")])
def test_collectives_from_1_1_0(sequence: tuple[Any, str]) -> None:
    types = ["Tensor(float)", sequence[1], "Tuple[String,String]", "Int", "String"]
    types += ["GenericList[]"] * 2 + ["Int"] * 3
    values = [A, sequence[0], ["3", "tp"], 0, "allreduce", [], [], 4, 2, 2]
    attributes = {
        "collective_name": "allreduce",
        "dtype": "Float",
        "in_msg_nelems": 8,
        "out_msg_nelems": 8,
        "in_split_size": "[]",
        "out_split_size": "[1, 2, ...]",
        "global_rank_start": 4,
        "global_rank_stride": 2,
        "pg_name": "3",
        "pg_desc": "tp",
        "pg_size": 2,
    }
    trace = read(nested(comms(types, values, **attributes), node(1, "root", 1)))
    table = trace.collectives
    assert trace.strings[int(table.group[0])] == "3"
    assert trace.strings[int(table.group_description[0])] == "tp"
    assert (table.sequence[0], table.group_size[0], table.out_elements[0]) == (9, 2, 8)
    assert trace.group_ranks(0) == (4, 6)
    assert trace.attribute(1, "pg_size") == 2
    assert trace.attribute(1, "nothing") is None


def test_process_groups() -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4},
        {"pg_name": "1", "backend_config": "cuda:nccl", "ranks": [0, 2], "group_size": 2},
    ]
    one = node(
        3,
        "## process_group:init ##",
        1,
        (json.dumps(groups),),
        input_types=["String"],
        input_shapes=[[]],
    )
    trace = read(flat(one, node(1, "root", 1)))
    assert [(g.name, g.ranks, g.size) for g in trace.process_groups] == [
        ("0", (), 4),
        ("1", (0, 2), 2),
    ]
    one["inputs"] = ["[{"]
    assert "process groups" in read(flat(one, node(1, "root", 1))).warnings[0]


def test_times_of_joined_traces() -> None:
    document = nested(*FOUR)
    document["nodes"][0] |= {"ts": 1700000000000001.5, "dur": 2.25}
    document["nodes"][1] |= {"ts": 1700000000000000.0, "dur": 1}
    trace = read(document)
    assert trace.start_us is not None
    assert trace.duration_us is not None
    assert trace.origin_ns == 1700000000000000000
    assert trace.start_us[2:4].tolist() == [0, 1.5]
    assert trace.duration_us[2:4].tolist() == [1, 2.25]
    assert np.isnan(trace.start_us[[0, 1, 4, 5]]).all()
    assert trace.frame()["start_us"].tolist()[2:4] == [0, 1.5]


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


def test_frame_and_repr() -> None:
    trace = read(flat(*FOUR))
    frame = trace.frame()
    assert frame["parent_id"].tolist() == [-1, 1, 2, 2, 2, 2]
    assert frame["input_shapes"][3] == "[[8], [16]]"
    assert repr(trace) == (
        "ExecutionTrace('t.json', schema 1.0.1, 6 nodes, 5 + 4 tensors, 0 collectives, 0 warnings)"
    )
    empty = read(flat())
    assert len(empty) == 0
    assert [len(part) for part in empty.data_dependencies()] == [0, 0]
    assert empty.linkable() == {}
    assert len(empty.frame()) == 0


def changed(index: int, **values: Any) -> dict[str, Any]:
    document = flat(*FOUR)
    document["nodes"][index] |= values
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed(1, id=4), r"nodes\[1\].id: id 4 is already that of nodes\[0\]"),
        (changed(0, parent=99), r"nodes\[0\] \(id 4\): its parent 99 does not exist"),
        (changed(0, rf_id=-3), r"nodes\[0\].rf_id: .*>= 0"),
        (changed(0, id="4"), r"nodes\[0\].id: Expected `int`, got `str`"),
        (changed(0, id=4.5), r"nodes\[0\].id: Expected `int`, got `float`"),
        (changed(0, id=float("nan")), r"nodes\[0\].id: .* \(bare nan and inf read as texts\)"),
        (changed(0, id=2**63), r"nodes\[0\].id: "),
        (changed(0, tid=10**30), r"nodes\[0\].tid: "),
        (changed(0, scope=300), r"nodes\[0\].scope: 300 must be at most 255"),
        (changed(0, seq_id=2**63), r"nodes\[0\].seq_id: "),
        (changed(0, name=None), r"nodes\[0\].name: Expected `str`, got `null`"),
        (changed(0, inputs=[A]), r"nodes\[0\].inputs.values: 1 values for 2 types"),
        (changed(0, input_shapes=[[8]]), r"nodes\[0\].inputs.shapes: 1 shapes for 2 types"),
        (changed(0, input_shapes=[[8], [-1]]), r"nodes\[0\].inputs.shapes: expected sizes, got -1"),
        (changed(0, inputs=[A, [1, 2, 3]]), r"nodes\[0\].inputs.values: expected a tensor"),
        (changed(0, inputs=[A, [1, 2, 3, 4, "x", "y"]]), r"nodes\[0\].inputs.values: .*'x'"),
        (changed(0, inputs=[A, [1, 2, 3, 4, -5, "y"]]), r"nodes\[0\].inputs.values: "),
        (changed(0, inputs=[A, [1, 2, 3, 4, 2.5, "y"]]), r"nodes\[0\].inputs.values: "),
        (changed(0, inputs=[A, [1, 2, 3, 4, True, "y"]]), r"nodes\[0\].inputs.values: "),
        (changed(0, inputs=[A, [1, 2, 3, 4, 5, 6]]), r"nodes\[0\].inputs.values: "),
        (changed(0, inputs={}), r"nodes\[0\].inputs.values: "),
        (changed(0, input_types=["Tensor(float", "Int"]), r"inputs.types: a '\)' is missing"),
        (changed(0, input_types=["Tensor(float)x", "Int"]), r"inputs.types: unexpected 'x'"),
        (changed(0, input_types=["L[Tensor(float)", "Int"]), r"inputs.types: a '\]' is missing"),
        (
            flat(node(2, "a", 3), node(3, "b", 4), node(4, "c", 2)),
            r"the parents of nodes form a cycle: \d -> \d -> \d -> \d$",
        ),
        (flat(*FOUR) | {"schema": "9.9"}, r"unknown schema '9.9'; the known ones are 1.0.0, 1.0.1"),
        (flat(*FOUR) | {"schema": None}, r"no schema; the known ones are"),
        (flat(*FOUR) | {"nodes": {}}, r"nodes: Expected `array`, got `object`"),
        (flat(*FOUR) | {"pid": -1}, r"pid: "),
        ({"schema": "1.0.1"}, r"missing required field `nodes`"),
        ([], r"Expected `object`, got `array`"),
        (comms(["Int"], [1]), r"missing required field `nodes`"),
    ],
)
def test_bad_input_is_refused_in_one_line(document: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(document)
    text = str(caught.value)
    assert text.startswith("t.json: ")
    assert "\n" not in text


def test_bad_attributes_are_refused() -> None:
    document = nested(*FOUR)
    document["nodes"][0]["attrs"].append({"name": "rf_id", "type": "uint64", "value": "x"})
    with pytest.raises(TraceError, match=r"nodes\[0\].rf_id: expected an integer, got 'x'"):
        read(document)
    document = nested(*FOUR)
    document["nodes"][0]["attrs"].append({"name": "op_schema", "type": "string", "value": 3})
    with pytest.raises(TraceError, match=r"nodes\[0\].op_schema: expected a text, got 3"):
        read(document)
    types = ["Int", "Int", "Int", "String", "GenericList[]", "GenericList[]"]
    bad = nested(comms(types, [1, 2, 0, "wait", [], []], pg_size="four"), node(1, "root", 1))
    with pytest.raises(TraceError, match=r"nodes\[0\] \(record_param_comms\): group_size: "):
        read(bad)


def test_cut_json_names_the_byte() -> None:
    content = json.dumps(flat(*FOUR)).encode()
    with pytest.raises(TraceError, match=f"ends early, at byte {len(content) // 2}"):
        decode_execution_trace(content[: len(content) // 2], "t.json")
    with pytest.raises(TraceError, match="byte 3 is not UTF-8"):
        decode_execution_trace(content[:3] + b"\xff" + content[3:], "t.json")
    with pytest.raises(TraceError, match=r"t\.json: "):
        decode_execution_trace(b"[" * 100_000, "t.json")


def test_deep_nesting_is_refused() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(TraceError, match=r"nested deeper|recursion"):
        read(changed(0, input_types=["L[" * 40 + "Tensor(float)" + "]" * 40, "Int"]))
    text = json.dumps(flat(*FOUR)).replace("[[8], [16]]", "[" * 50_000 + "]" * 50_000)
    with pytest.raises(TraceError):
        decode_execution_trace(text.encode(), "t.json")


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
    with suppress(TypeTextError):
        parse_type(f"GenericList[{text}Tensor(float)]")


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


SEEDS = [
    json.dumps(document).encode()
    for document in (flat(*FOUR), flat(*FOUR, schema="1.0.0"), nested(*FOUR))
]


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_damage_raises_trace_error_only(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
        if kind == "flip":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            content[at:at] = data.draw(st.sampled_from([b"9", b"-", b"nan", b'"', b"[", b"e9"]))
        elif kind == "remove":
            del content[at : at + data.draw(st.integers(1, 30))]
        else:
            del content[at:]
        if not content:
            return
    looks_like_execution_trace(bytes(content))
    message = "damaged: "
    try:
        trace = decode_execution_trace(bytes(content), "damaged")
        trace.data_dependencies()
        assert len(trace.frame()) == len(trace)
    except TraceError as error:
        message = str(error)
    assert message.startswith("damaged: ")
    assert "\n" not in message


def test_sniffing() -> None:
    for seed in SEEDS:
        assert looks_like_execution_trace(seed)
    last = {"nodes": flat(*FOUR)["nodes"], "schema": "1.0.1"}
    assert looks_like_execution_trace(json.dumps(last).encode())
    for other in (
        b"",
        b"{}",
        b"[1]",
        b'{"schemaVersion": 1, "traceEvents": []}',
        b'{"schema": "perfmodel.predict/1", "nodes": []}',
        b"\x0a\x05",
    ):
        assert not looks_like_execution_trace(other)


@pytest.mark.parametrize("name", NODES)
def test_reference_files(name: str) -> None:
    content = reference(name)
    assert looks_like_execution_trace(content)
    trace = decode_execution_trace(content, name)
    assert (trace.schema, len(trace)) == NODES[name]
    assert trace.warnings == []
    assert np.count_nonzero(trace.parent == NONE) == 1
    producer, consumer = trace.data_dependencies()
    assert len(producer)
    assert (producer != consumer).all()
    ancestors = trace.parent[consumer]
    assert (producer != ancestors).all()


def test_no_kineto_file_looks_like_an_execution_trace() -> None:
    reference("traces/dlrm_v100x8/et_rank0")
    for path in (REFERENCE / "traces").rglob("*.json.gz"):
        if path.relative_to(REFERENCE).as_posix().removesuffix(".json.gz") not in NODES:
            with gzip.open(path) as file:
                head = file.read(1 << 16)
            assert not looks_like_execution_trace(head), path


@pytest.mark.parametrize("rank", range(4))
def test_dlrm_threads_agree_with_the_golden_linkage(rank: int) -> None:
    golden = REFERENCE / "golden/dlrm_v100x8_linkage_ranks0-3.json"
    trace = decode_execution_trace(reference(f"traces/dlrm_v100x8/et_rank{rank}"), "t")
    expected = json.loads(golden.read_text())["per_rank"][str(rank)]
    counts = {str(t): len(rows) for t, rows in trace.linkable().items()}
    assert counts == expected["et_nodes_per_tid"]
    without = np.flatnonzero(trace.rf_id == 0)
    assert sorted(trace.names(without)) == sorted(expected["et_rfid_zero"])


def test_dlrm_collectives() -> None:
    trace = decode_execution_trace(reference("traces/dlrm_v100x8/et_rank0"), "t")
    table = trace.collectives
    names = [trace.strings[i] for i in table.name.tolist()]
    assert names.count("wait") == 5
    assert names.count("allreduce") == 3
    assert names.count("all_to_all") + names.count("all_to_allv") == 5
    first = names.index("all_to_allv")
    assert table.in_split[first] == (768,) * 8
    assert table.in_elements[first] == 6144


def test_resnet_collectives() -> None:
    trace = decode_execution_trace(reference("traces/et_only/resnet_et_1.1.0-chakra.0.0.4"), "t")
    table = trace.collectives
    names = [trace.strings[i] for i in table.name.tolist()]
    assert {name: names.count(name) for name in names} == {
        "broadcast": 6,
        "allreduce": 15,
        "wait": 6,
    }
    assert trace.process_groups[0].description == "default_pg"
    assert trace.group_ranks(0) == (0,)


def test_triton_kernels_keep_their_backend() -> None:
    trace = decode_execution_trace(reference("traces/et_only/pt2_et_1.1.1"), "t")
    triton = [i for i in range(len(trace)) if trace.strings[int(trace.kernel_backend[i])]]
    assert trace.names(np.array(triton)) == ["triton_poi_fused_add_cos_neg_sin_0"] * 2
    assert trace.attribute(triton[0], "tensor_range") == ""


def test_decoding_is_fast() -> None:
    content = reference("traces/dlrm_v100x8/et_rank0")
    best = min(_seconds(content) for _ in range(5))
    assert best < 0.1, f"{best * 1e3:.0f} ms for {len(content)} bytes"


def _seconds(content: bytes) -> float:
    start = time.perf_counter()
    decode_execution_trace(content, "t")
    return time.perf_counter() - start
