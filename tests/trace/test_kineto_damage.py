"""Kineto files that are damaged, and what is no trace at all."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_documents import NEW, document, error_of, event

from perfmodel.errors import TraceError
from perfmodel.trace import kineto_json
from perfmodel.trace.kineto import decode_kineto


def test_nothing_and_other_things() -> None:
    assert error_of(b"") == "the file is empty"
    assert (
        error_of(b"<!DOCTYPE html>")
        == "damaged trace: JSON is malformed: invalid character (byte 0)"
    )
    assert error_of(b"{}") == "no Kineto trace: it has no traceEvents"
    assert "traceEvents" in error_of(b'{"a": {"traceEvents": []}}')
    assert "Expected object, got array" in error_of(b"[]")
    assert "Expected array, got null" in error_of(b'{"traceEvents": null}')
    assert "trailing characters (byte " in error_of(b'{"traceEvents": []} x')
    assert "occurs twice" in error_of(b'{"traceEvents": [{"ph": "i"}], "traceEvents": []}')


def test_categories_that_are_not_known_are_said() -> None:
    known = event("PyTorch Profiler (0)", "Trace", 0, 9)
    events = [event("mm", "cpu_op", 0, 1), event("x", "new_op", 1, 1), event("x", "new_op", 2, 1)]
    said = "events of 1 categories that are not known are left out: 'new_op'"
    assert decode_kineto(document(known, *events), "file").warnings == [said]
    assert decode_kineto(document(known), "file").warnings == []


def test_events_whose_end_is_another_are_counted() -> None:
    apart = [{"ph": ph, "cat": "cpu_op", "name": "mm", "ts": 1, "pid": 1, "tid": 1} for ph in "BE"]
    said = "1 events are left out: their ends are events of their own (ph B, E)"
    assert decode_kineto(document(event("add", "cpu_op", 0, 1), *apart), "f").warnings == [said]


def test_cut_anywhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    content = document(*NEW)
    monkeypatch.setattr(kineto_json, "_BLOCK_BYTES", 300)
    for end in range(1, len(content), 7):
        assert f"it ends early, at byte {end}: the file was cut" in error_of(content[:end])


AT = 700
EVENT = event("k", "kernel", 10, 5, id=3, args={"correlation": 3, "stream": 7, "External id": 1})
FLOW = {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 4}


def damaged(old: str, new: str, base: dict[str, Any] = EVENT) -> bytes:
    """Many events, the one at `AT` with `old` replaced by `new` in its text."""
    good, text = json.dumps(EVENT), json.dumps(base)
    assert old in text
    events = [good] * (2 * AT)
    events[AT] = text.replace(old, new)
    return f'{{"traceEvents": [{", ".join(events)}]}}'.encode()


@pytest.fixture(params=[2_000, 10**9], ids=["blocks", "whole"])
def _block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_json, "_BLOCK_BYTES", request.param)


WRONG = ("null", "[]", "[2]", "{}", "true", '"x y"', "1e400", "9" * 40, "NaN", "-Infinity")


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize("new", WRONG)
@pytest.mark.parametrize(
    ("key", "old", "base"),
    [
        ("ts", "10", EVENT),
        ("dur", "5", EVENT),
        ("id", "3", EVENT),
        ("correlation", "3", EVENT),
        ("ts", "4", FLOW),
        ("id", "3", FLOW),
    ],
)
def test_wrong_type_names_event_and_field(
    key: str, old: str, base: dict[str, Any], new: str
) -> None:
    content = damaged(f'"{key}": {old}', f'"{key}": {new}', base)
    if (key, new) == ("id", '"x y"') or (base is FLOW and (key, new) == ("ts", "9" * 40)):
        decode_kineto(content, "here.json")  # a text is an id, and no flow's time is used
        return
    message = error_of(content)
    if new in ("NaN", "-Infinity"):
        where = content.index(new.encode())
        assert f"(byte {where})" in message or f"(byte {where + 1})" in message
    else:
        path = f"args.{key}" if key == "correlation" else key
        assert f"traceEvents[{AT}].{path}" in message


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"dur": 5', '"dur": -5', f"traceEvents[{AT}].dur: -5 us is negative"),
        ('"dur": 5', '"dur": -0.001', f"traceEvents[{AT}].dur: -0.001 us is negative"),
        ('"ts": 10, ', "", f"missing required field ts - at traceEvents[{AT}]"),
        ('"dur": 5', '"was": 5', f"missing required field dur - at traceEvents[{AT}]"),
        ('"ph": "X"', '"ph": "?"', f"Invalid value '?' - at traceEvents[{AT}].ph"),
        ('"ph": "X", ', "", f"missing required field ph - at traceEvents[{AT}]"),
        ('"args": {', '"args": 5, "x": {', f"at traceEvents[{AT}].args"),
        ('"tid": 1', '"tid": 1.5', f"at traceEvents[{AT}].tid"),
        ('"correlation": 3', '"correlation": 9223372036854775808', f"traceEvents[{AT}].args.corr"),
        ('"name": "k"', '"name": ["k"]', f"at traceEvents[{AT}].name"),
    ],
)
def test_damage_names_the_event(old: str, new: str, message: str) -> None:
    assert message in error_of(damaged(old, new))


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize("new", ['"name" "k"', '"name": \x01', '"name": "\\q"', '"name": 01'])
def test_damaged_syntax_names_the_byte(new: str) -> None:
    content = damaged('"name": "k"', new)
    start = content.index(new.encode())
    at = int(error_of(content).rsplit("(byte ", 1)[1].rstrip(")"))
    assert start < at < start + len(new)


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize("key", ["name", "what nobody reads"])
def test_bytes_that_are_no_text(key: str) -> None:
    content = damaged('"name": "k"', f'"{key}": "ab?"').replace(b"ab?", b"ab\xff")
    assert error_of(content) == f"damaged trace: not UTF-8 (byte {content.index(0xFF)})"


@pytest.mark.usefixtures("_block_bytes")
def test_half_a_surrogate_pair_is_an_error() -> None:
    error_of(damaged('"name": "k"', '"name": "\\ud800"'))


@pytest.mark.usefixtures("_block_bytes")
@pytest.mark.parametrize("tail", ["", "]" * 100_000])
def test_deep_nesting_is_an_error_and_no_crash(tail: str) -> None:
    assert "nested too deeply" in error_of(damaged('"name": "k"', '"x": ' + "[" * 100_000 + tail))


def test_other_keys_of_the_document() -> None:
    assert "at deviceProperties[1].totalGlobalMem" in error_of(
        document(deviceProperties=[{}, {"totalGlobalMem": "many"}])
    )
    assert "at distributedInfo.rank" in error_of(document(distributedInfo={"rank": "x"}))
    for base in (2**63, 10**30, 1.5, "x"):
        assert "baseTimeNanoseconds" in error_of(document(baseTimeNanoseconds=base))
    assert "baseTimeNanoseconds" in error_of(document(EVENT, baseTimeNanoseconds=2**63 - 1))


CONTENT = document(*NEW * 3, distributedInfo={"rank": 0})
JUNK = [b"", *b'[]{},:"\\-0e\xff\x00 ', b"null", b"1e400", b"NaN", b"9" * 20, b'"x"', b"\\ud800"]


mutations = st.lists(
    st.tuples(
        st.integers(0, len(CONTENT) - 1),
        st.sampled_from([0, 1, 2, 30, len(CONTENT)]),
        st.sampled_from([bytes([j]) if isinstance(j, int) else j for j in JUNK]),
    ),
    min_size=1,
    max_size=3,
)


@given(mutations, st.sampled_from([50, 1000, 10**9]))
def test_any_damage_is_a_trace_error_or_a_document(
    damage: list[tuple[int, int, bytes]], block_bytes: int
) -> None:
    content = CONTENT
    for at, length, junk in damage:
        content = content[:at] + junk + content[at + length :]
    try:
        json.loads(content.decode("utf-8", "replace"))
        is_json = True
    except ValueError:
        is_json = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_json, "_BLOCK_BYTES", block_bytes)
        if is_json:
            with contextlib.suppress(TraceError):
                decode_kineto(content, "here.json")
        else:
            error_of(content)
