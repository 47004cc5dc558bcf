"""Chakra protobuf traces: bytes by hand, round trips, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_damage import damaged, reads_or_says_in_one_line
from chakra_writer import encode_chakra, framed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import TraceError
from perfmodel.trace.chakra import decode_chakra, looks_like_chakra, messages
from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.trace.execution_trace_arguments import json_list
from perfmodel.trace.execution_trace_columns import ExecutionTrace

ROOT = Path(__file__).parents[2]
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", ROOT / "../shared/data"))
TRACES = (
    "execution_graphs/dlrm_default_1024_et_v1.0.0",
    "traces/dlrm_v100x8/et_rank0",
    "traces/et_kineto_pairs/rtx2080ti_linear_et",
    "traces/et_only/pt2_et_1.1.1",
    "traces/et_only/resnet_1gpu_1.1.1-chakra.0.0.4",
)

BY_HAND = bytes.fromhex(
    # 7 bytes of metadata: version (field 1, 5 bytes) "0.0.4"
    "07 0a05302e302e34"
    # 6 bytes of node: id (1) = 1, name (2) "r", 3 bytes in all; type (3) = METADATA_NODE
    "07 0801 120172 1801"
    # 18 bytes: id = 2, name "op", COMP_NODE, ctrl_deps (4) [1], data_deps (5) [1],
    # start_time_micros (6) = 300, duration_micros (7) = 5
    "13 0802 12026f70 1804 220101 2a0101 30ac02 3805"
)


def metadata(**values: Any) -> Any:
    return messages().metadata(version="0.0.4", **values)


def node(**values: Any) -> Any:
    return messages().node(**values)


def assert_same(left: ExecutionTrace, right: ExecutionTrace) -> None:
    for key in ("schema", "process_groups"):
        assert getattr(left, key) == getattr(right, key), key
    every = np.arange(len(left))
    assert left.names(every) == right.names(every)
    for key in ("parent", "node_id", "rf_id", "scope", "thread"):
        np.testing.assert_array_equal(getattr(left, key), getattr(right, key))
    for one, other in ((left.inputs, right.inputs), (left.outputs, right.outputs)):
        for key in ("values", "shapes", "types", "strides"):
            assert getattr(one, key) == getattr(other, key)
        for key in ("bounds", "argument", "tensor_id", "storage_id", "elements"):
            np.testing.assert_array_equal(getattr(one.tensors, key), getattr(other.tensors, key))
    for row, said in left.collectives.items():
        assert said.in_split == right.collectives[row].in_split
    assert [*left.collectives] == [*right.collectives]
    for ours, theirs in zip(left.data_dependencies(), right.data_dependencies(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bytes_by_hand() -> None:
    assert looks_like_chakra(BY_HAND)
    trace = decode_chakra(BY_HAND, "t.et")
    assert trace.schema == "chakra.0.0.4"
    assert trace.names(np.arange(2)) == ["r", "op"]
    assert trace.parent.tolist() == [NONE, 0]
    assert trace.declared.tolist() == [[0, 1]]
    assert [part.tolist() for part in trace.data_dependencies()] == [[0], [1]]
    assert encode_chakra(trace) == encode_chakra(decode_chakra(encode_chakra(trace), "t"))


def test_arguments_as_chakras_converter_writes_them() -> None:
    arguments = {
        "values": "[[20, 30, 0, 8, 4, 'cuda:0'], False, None, 'it\\'s \"x\"\\x1f', -inf]",
        "shapes": "[[8], [], [], [], []]",
        "types": "['Tensor(float)', 'Bool', 'None', 'String', 'Double']",
    }
    one = node(id=1, name="op", inputs=arguments)
    for name, key, value in (
        ("rf_id", "uint64_val", 5),
        ("seq_id", "int64_val", -1),
        ("is_cpu_op", "bool_val", True),
        ("op_schema", "string_val", "f() -> ()"),
    ):
        one.attr.add(name=name, **{key: value})
    one.attr.add(name="dims").int64_list.values.extend([3, 4])
    one.attr.add(name="empty")
    one.attr.add(name="raw", bytes_val=b"\x01\xff")
    trace = decode_chakra(framed(metadata(), one), "t.et")
    assert trace.input_values(0) == [
        [20, 30, 0, 8, 4, "cuda:0"],
        False,
        None,
        'it\'s "x"\x1f',
        "-inf",
    ]
    assert trace.inputs.tensors.storage_id.tolist() == [30]
    assert trace.rf_id[0] == 5
    assert_same(trace, decode_chakra(encode_chakra(trace), "t.et"))


def test_several_control_dependencies() -> None:
    content = framed(
        metadata(),
        node(id=5, name="a"),
        node(id=6, name="b"),
        node(id=7, name="c", ctrl_deps=[5, 6]),
    )
    trace = decode_chakra(content, "t.et")
    assert trace.parent.tolist() == [NONE, NONE, 0]
    assert trace.declared.tolist() == [[1, 2]]


def test_ids_may_come_in_any_order() -> None:
    content = framed(metadata(), node(id=9, name="a"), node(id=3, name="b", ctrl_deps=[9]))
    trace = decode_chakra(content, "t.et")
    assert trace.names(np.arange(2)) == ["b", "a"]
    assert trace.parent.tolist() == [1, NONE]


def reference(name: str) -> bytes:
    path = REFERENCE / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"reference data not found: {path} (set PERFMODEL_REFERENCE)")
    return gzip.decompress(path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_round_trip_of_real_traces(name: str) -> None:
    trace = decode_execution_trace(reference(name), name)
    content = encode_chakra(trace)
    assert looks_like_chakra(content)
    again = decode_chakra(content, "again")
    assert_same(trace, again)
    assert encode_chakra(again) == content


def test_no_json_looks_like_chakra() -> None:
    assert not looks_like_chakra(b"")
    assert not looks_like_chakra(b"\x00")
    assert not looks_like_chakra(b'{\n  "schema": "1.0.1", "pid": 1, "nodes": []}' * 9)
    assert not looks_like_chakra(b"\x1f\x8b\x08" + b"\x00" * 100)
    assert not looks_like_chakra(b"\x07\x0a\x050.0.4\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
    assert looks_like_chakra(framed(metadata()))
    assert looks_like_chakra(framed(messages().metadata(), node(id=1, name="x")))
    reference(TRACES[0])
    for path in sorted(REFERENCE.rglob("*.json.gz")):
        with gzip.open(path) as file:
            assert not looks_like_chakra(file.read(1 << 16)), path


def attribute(**values: Any) -> Any:
    one = node(id=1, name="op")
    one.attr.add(**values)
    return one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"empty"),
        (BY_HAND[:-1], r"nodes\[1\] at byte 16: .*cut"),
        (b"\xff" * 12, r"the metadata at byte 0: .*cut"),
        (b"\x80", r"the metadata at byte 0: .*cut"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + b"x", r"the metadata at byte 0: .*cut"),
        (b"\x07\x0a\x050.0.4" + b"\x02\x0a\x09", r"nodes\[0\] at byte 8"),
        (b"\x02\x0a\x09", r"the metadata at byte 0"),
        (framed(metadata(), node(id=1), node(id=1)), r"nodes\[1\].id: id 1 is already that"),
        (
            framed(metadata(), node(id=2**63)),
            r"nodes\[0\].id: Expected `int` <= 9223372036854775807",
        ),
        (
            framed(metadata(), node(id=1, ctrl_deps=[2]), node(id=2, ctrl_deps=[1])),
            r"form a cycle: 1 -> 2 -> 1",
        ),
        (
            framed(metadata(), attribute(name="rf_id", string_val="x")),
            r"rf_id: Expected `int`, got `str`",
        ),
        (
            framed(metadata(), attribute(name="rf_id", int64_val=-4)),
            r"rf_id: Expected `int` >= 0",
        ),
        (
            framed(metadata(), attribute(name="op_schema", bool_val=True)),
            r"op_schema: Expected `str`, got `bool`",
        ),
        (framed(metadata(), attribute(name="a", double_val=float("nan"))), r"attr.a: nan is no"),
        (framed(metadata(), attribute(name="input_strides", int64_val=1)), r"inputs.strides: "),
        (framed(metadata(), node(id=1, inputs={"values": "[1"})), r"nodes\[0\].inputs.values: "),
        (
            framed(metadata(), node(id=1, inputs={"values": "__import__('os')"})),
            r"nodes\[0\].inputs.values: ",
        ),
        (
            framed(metadata(), node(id=1, inputs={"values": "[" * 99_999})),
            r"nodes\[0\].inputs.values: ",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        decode_chakra(content, "t.et")
    text = str(caught.value)
    assert text.startswith("t.et: ")
    assert "\n" not in text
    assert len(text) < 400


def seed() -> bytes:
    arguments = {"values": "[[20, 30, 0, 8, 4, 'cpu']]", "shapes": "[[8]]"}
    typed = arguments | {"types": "['Tensor(float)']"}
    return framed(
        metadata(attr=[{"name": "schema", "string_val": "1.0.2"}, {"name": "pid", "int64_val": 7}]),
        node(id=1, name="root"),
        node(id=2, name="op", ctrl_deps=[1], outputs=typed, start_time_micros=5),
        node(
            id=3,
            name="record_param_comms",
            ctrl_deps=[1],
            data_deps=[2],
            inputs=typed,
            attr=[
                {"name": "collective_name", "string_val": "allreduce"},
                {"name": "in_split_size", "string_val": "[1,2]"},
                {"name": "x", "double_val": 2.5},
            ],
        ),
    )


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_damage_raises_trace_error_only(data: st.DataObject) -> None:
    content = damaged(data, seed())
    looks_like_chakra(content)

    def read() -> None:
        trace = decode_chakra(content, "damaged")
        assert len(decode_chakra(encode_chakra(trace), "damaged")) == len(trace)

    reads_or_says_in_one_line(read, "damaged")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)
    )
)
def test_python_lists_become_json(value: Any) -> None:
    text = json.loads(json_list(repr([value])))
    assert text == [value]
