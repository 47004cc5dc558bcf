"""Execution traces that are refused, and what is no execution trace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from byte_damage import damaged, reads_or_says_in_one_line
from et_documents import FOUR, A, comms, flat, nested, node, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import TraceError
from perfmodel.trace.execution_trace import decode_execution_trace, looks_like_execution_trace


def changed(index: int, **values: Any) -> dict[str, Any]:
    document = flat(*FOUR)
    document["nodes"][index] |= values
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed(1, id=4), r"nodes\[1\].id: id 4 is already that of nodes\[0\]"),
        (changed(0, rf_id=-3), r"nodes\[0\].rf_id: .*>= 0"),
        (changed(0, id="x"), r"nodes\[0\].id: Expected `int`, got `str`"),
        (changed(0, id=4.5), r"nodes\[0\].id: Expected `int`, got `float`"),
        (changed(0, id=float("nan")), r"nodes\[0\].id: .* \(bare nan and inf read as texts\)"),
        (changed(0, id=2**63), r"nodes\[0\].id: "),
        (changed(0, tid=10**30), r"nodes\[0\].tid: "),
        (changed(0, scope=300), r"nodes\[0\].scope: Expected `int` <= 255"),
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
        (
            changed(0, input_types=["Tensor(float", "Int"]),
            r"inputs.types: type 'Tensor\(float' is none",
        ),
        (
            changed(0, input_types=["Tensor(float)x", "Int"]),
            r"inputs.types: type 'Tensor\(float\)x' is none",
        ),
        (
            changed(0, input_types=["L[Tensor(float)", "Int"]),
            r"inputs.types: type '.*' is none of",
        ),
        (
            flat(node(2, "a", 3), node(3, "b", 4), node(4, "c", 2)),
            r"the parents of nodes form a cycle: \d -> \d -> \d -> \d$",
        ),
        (flat(*FOUR) | {"schema": "9.9"}, r"unknown schema '9.9'; the known ones are 1.0.0, 1.0.1"),
        (flat(*FOUR) | {"schema": None}, r"no schema; the known ones are"),
        (flat(*FOUR) | {"nodes": {}}, r"nodes: Expected `array`, got `object`"),
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
    with pytest.raises(TraceError, match=r"nodes\[0\].rf_id: Expected `int`, got `str`"):
        read(document)
    document = nested(*FOUR)
    document["nodes"][0]["attrs"].append({"name": "op_schema", "type": "string", "value": 3})
    with pytest.raises(TraceError, match=r"nodes\[0\].op_schema: Expected `str`, got `int`"):
        read(document)
    types = ["Int", "Int", "Int", "String", "GenericList[]", "GenericList[]"]
    bad = nested(comms(types, [1, 2, 0, "wait", [], []], pg_size="four"), node(1, "root", 1))
    with pytest.raises(
        TraceError,
        match=r"nodes\[0\] \(record_param_comms\): Expected `int`, got `str` in `pg_size`",
    ):
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
    with pytest.raises(TraceError, match=r"expected a list of 1"):
        read(changed(0, input_types=["L[" * 40 + "Tensor(float)" + "]" * 40, "Int"]))
    text = json.dumps(flat(*FOUR)).replace("[[8], [16]]", "[" * 50_000 + "]" * 50_000)
    with pytest.raises(TraceError):
        decode_execution_trace(text.encode(), "t.json")


SEEDS = [
    json.dumps(document).encode()
    for document in (flat(*FOUR), flat(*FOUR, schema="1.0.0"), nested(*FOUR))
]


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_damage_raises_trace_error_only(data: st.DataObject) -> None:
    inserts = (b"9", b"-", b"nan", b'"', b"[", b"e9")
    content = damaged(data, data.draw(st.sampled_from(SEEDS)), inserts)
    looks_like_execution_trace(content)

    def read() -> None:
        trace = decode_execution_trace(content, "damaged")
        trace.data_dependencies()

    reads_or_says_in_one_line(read, "damaged")


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
