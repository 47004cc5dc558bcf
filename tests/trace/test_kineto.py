"""Kineto files to columns: documents small enough to check by hand, and damaged ones."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import TraceError
from perfmodel.trace import kineto_json
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.kineto import decode_kineto

NONE = -1


def event(name: str, cat: str, ts: object, dur: object, **more: object) -> dict[str, Any]:
    args = more.pop("args", None)
    found = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, **more}
    return found if args is None else {**found, "args": args}


def document(*events: object, **keys: object) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **keys}).encode()


def decode(*events: object, **keys: object) -> RankTrace:
    return decode_kineto(document(*events, **keys), "here.json")


def names(trace: RankTrace) -> list[str]:
    return [trace.text(row) for row in range(len(trace))]


def error_of(content: bytes) -> str:
    """The message of the only kind of error that there may be."""
    with pytest.raises(TraceError) as caught:
        decode_kineto(content, "here.json")
    message = str(caught.value)
    assert message.startswith("here.json: ")
    assert "\n" not in message
    return message.removeprefix("here.json: ")


NEW = (
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "ts": 0, "args": {"labels": "CPU"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 5, "ts": 0, "args": {"name": "thread 5"}},
    {"ph": "M", "name": "process_sort_index", "pid": 1, "ts": 0, "args": {"sort_index": 5}},
    event(
        "aten::add",
        "cpu_op",
        100,
        20,
        tid=5,
        args={
            "External id": 3,
            "Record function id": 8,
            "Sequence number": 2,
            "Ev Idx": 1,
            "Input Dims": [[2, 3], []],
            "Input type": ["float", "Scalar"],
        },
    ),
    event("ProfilerStep#7", "user_annotation", 90, 100, tid=5, args={"External id": 1}),
    event(
        "cudaLaunchKernel", "cuda_runtime", 105, 5, tid=5, args={"External id": 3, "correlation": 9}
    ),
    {"ph": "s", "id": 9, "pid": 1, "tid": 5, "ts": 105, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 9, "pid": 0, "tid": 7, "ts": 111, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    event(
        "vector_add",
        "kernel",
        111.25,
        2.5,
        pid=0,
        tid=7,
        args={
            "External id": 3,
            "device": 0,
            "stream": 7,
            "correlation": 9,
            "blocks per SM": 2.0,
            "warps per SM": 16.0,
            "grid": [216, 1, 1],
            "est. achieved occupancy %": 50,
        },
    ),
    event(
        "Memcpy HtoD",
        "gpu_memcpy",
        120,
        1,
        pid=0,
        tid=8,
        args={"device": 0, "stream": 8, "correlation": 11, "bytes": 4096},
    ),
    event(
        "Stream Wait Event",
        "cuda_sync",
        121,
        0,
        args={
            "stream": 8,
            "correlation": 12,
            "wait_on_stream": 7,
            "wait_on_cuda_event_record_corr_id": 10,
        },
    ),
    event(
        "nccl:all_reduce",
        "user_annotation",
        150,
        30,
        args={
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "Group size": 4,
            "In msg nelems": 100,
            "Out msg nelems": 200,
        },
    ),
    event("forward", "python_function", 95, 50, tid=5, args={"Python id": 1, "Ev Idx": 6}),
    event("PyTorch Profiler (0)", "Trace", 80, 200, pid="Spans", tid="PyTorch Profiler"),
    {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 290, "s": "g"},
)


def test_every_column_of_a_new_document() -> None:
    trace = decode(
        *NEW,
        deviceProperties=[{"id": 0, "name": "GPU", "totalGlobalMem": 80, "numSms": 108}],
        distributedInfo={"backend": "nccl", "rank": 2, "world_size": 4},
        baseTimeNanoseconds=1_000_000,
    )
    assert names(trace) == [
        "PyTorch Profiler (0)",
        "ProfilerStep#7",
        "forward",
        "aten::add",
        "cudaLaunchKernel",
        "vector_add",
        "Memcpy HtoD",
        "Stream Wait Event",
        "nccl:all_reduce",
    ]
    assert trace.category.tolist() == [
        Category.OTHER,
        Category.ANNOTATION,
        Category.PYTHON,
        Category.CPU_OP,
        Category.RUNTIME,
        Category.KERNEL,
        Category.MEMCPY,
        Category.CUDA_SYNC,
        Category.ANNOTATION,
    ]
    assert trace.origin_ns == 80_000 + 1_000_000
    assert trace.start_us.tolist() == [0, 10, 15, 20, 25, 31.25, 40, 41, 70]
    assert trace.duration_us.tolist() == [200, 100, 50, 20, 5, 2.5, 1, 0, 30]
    assert trace.file_index.tolist() == [14, 5, 13, 4, 6, 9, 10, 11, 12]
    spans, profiler = crc32(b"Spans"), crc32(b"PyTorch Profiler")
    assert trace.pid.tolist() == [spans, 1, 1, 1, 1, 0, 0, 1, 1]
    assert trace.thread.tolist() == [profiler, 5, 5, 5, 5, 7, 8, 1, 1]
    assert trace.stream.tolist() == [NONE] * 5 + [7, 8, NONE, NONE]
    assert trace.device.tolist() == [NONE] * 5 + [0, 0, NONE, NONE]
    assert trace.correlation.tolist() == [NONE] * 4 + [9, 9, 11, 12, NONE]
    assert trace.external_id.tolist() == [NONE, 1, NONE, 3, 3, 3, NONE, NONE, NONE]
    assert trace.op_id.tolist() == [NONE] * 3 + [8] + [NONE] * 5
    assert trace.sequence.tolist() == [NONE] * 3 + [2] + [NONE] * 5
    assert trace.event_index.tolist() == [NONE, NONE, 6, 1] + [NONE] * 5
    assert trace.size_bytes.tolist() == [NONE] * 6 + [4096, NONE, NONE]
    assert trace.waves.tolist() == [0] * 5 + [16 / 32, 0, 0, 0]
    assert trace.sync_stream.tolist() == [NONE] * 7 + [8, NONE]
    assert trace.sync_source_stream.tolist() == [NONE] * 7 + [7, NONE]
    assert trace.sync_record_correlation.tolist() == [NONE] * 7 + [10, NONE]
    assert trace.group_size.tolist() == [NONE] * 8 + [4]
    assert trace.in_elements.tolist() == [NONE] * 8 + [100]
    assert trace.out_elements.tolist() == [NONE] * 8 + [200]
    text = trace.strings
    assert [text[i] for i in trace.input_shapes] == ["", "", "", "[[2, 3], []]", *[""] * 5]
    assert [text[i] for i in trace.input_dtypes] == ["", "", "", '["float", "Scalar"]', *[""] * 5]
    assert [text[i] for i in trace.grid] == [*[""] * 5, "[216, 1, 1]", "", "", ""]
    assert [text[i] for i in trace.collective] == [*[""] * 8, "allreduce"]
    assert [text[i] for i in trace.process_group] == [*[""] * 8, "0"]
    assert (trace.rank, trace.world_size) == (2, 4)
    assert [(d.name, d.memory_bytes, d.sm_count) for d in trace.devices] == [("GPU", 80, 108)]
    assert trace.thread_names == {5: "thread 5"}
    assert trace.warnings == []


def test_old_names_of_categories_and_ids() -> None:
    trace = decode(
        event("aten::add", "Operator", 1, 5, tid="12", args={"external id": "4"}),
        event(
            "cudaLaunchKernel", "Runtime", 2, 1, tid="12", args={"external id": 4, "correlation": 6}
        ),
        event("add_kernel", "Kernel", 3, 1, tid="stream 7", args={"stream": "7", "correlation": 6}),
        event("Memset (Device)", "Memset", 5, 1, args={"stream": 7, "bytes": "16"}),
    )
    assert trace.category.tolist() == [
        Category.CPU_OP,
        Category.RUNTIME,
        Category.KERNEL,
        Category.MEMSET,
    ]
    assert trace.thread.tolist() == [12, 12, crc32(b"stream 7"), 1]
    assert trace.external_id.tolist() == [4, 4, NONE, NONE]
    assert trace.stream.tolist() == [NONE, NONE, 7, 7]
    assert trace.size_bytes.tolist() == [NONE, NONE, NONE, 16]
    assert (trace.rank, trace.world_size, trace.devices) == (NONE, None, ())


def test_annotations_are_operators_in_files_without_their_category() -> None:
    step, load = "ProfilerStep#3", "enumerate(DataLoader)#_Iter.__next__"
    events = [
        event(step, "Operator", 0, 9),
        event(load, "cpu_op", 1, 2),
        event("op", "cpu_op", 2, 1),
    ]
    old = decode(*events)
    assert old.category.tolist() == [Category.ANNOTATION, Category.ANNOTATION, Category.CPU_OP]
    new = decode(*events, event("mine", "user_annotation", 5, 1))
    assert new.category.tolist() == [Category.CPU_OP] * 3 + [Category.ANNOTATION]


def test_rocm_kernels_have_no_external_id() -> None:
    args = {
        "device": 2,
        "stream": 0,
        "correlation": 5,
        "kind": "Dispatch Kernel",
        "grid": [8, 1, 1],
    }
    trace = decode(
        event("hipLaunchKernel", "cuda_runtime", 0, 3, args={"correlation": 5, "cid": 210}),
        event("Cijk_Ailk", "kernel", 5, 3, pid=2, tid=0, args=args),
    )
    assert trace.external_id.tolist() == [NONE, NONE]
    assert trace.correlation.tolist() == [5, 5]
    assert trace.waves.tolist() == [0, 0]


def test_occupancy_as_text_is_no_occupancy() -> None:
    args = {"blocks per SM": "inf", "warps per SM": 8, "est. achieved occupancy %": 50}
    known = {"blocks per SM": 1, "warps per SM": 8, "est. achieved occupancy %": 50}
    trace = decode(event("a", "kernel", 0, 1, args=args), event("b", "kernel", 1, 1, args=known))
    assert trace.waves.tolist() == [0, 0.25]


def test_order_is_start_then_longest_then_event_index_then_file() -> None:
    def op(name: str, ts: float, dur: float, index: int) -> dict[str, Any]:
        return event(name, "cpu_op", ts, dur, args={"Ev Idx": index})

    trace = decode(
        op("h", 5, 1, 0),
        op("c", 3, 4, 7),
        op("e", 3, 2, 6),
        op("d", 3, 2, 2),
        op("f", 3, 2, 6),
        op("b", 3, 9, 8),
        op("a", 2.999, 1, 9),
        op("g", 3, 0, 1),
    )
    assert names(trace) == list("abcdefgh")


def test_equal_texts_are_one_string() -> None:
    args = {"Input Dims": [[1]]}
    trace = decode(
        *(event(n, "cpu_op", i, 1, args=args) for i, n in enumerate(["a", "b", "a", "ä"]))
    )
    assert trace.name[0] == trace.name[2] != trace.name[1]
    assert len(set(trace.input_shapes.tolist())) == 1
    assert sorted(trace.strings.texts) == ["[[1]]", "a", "b", "ä"]


@pytest.mark.parametrize("scale", ["int", "float", "ns"])
def test_times_are_exact_at_any_epoch(scale: str) -> None:
    start = {"int": "1712195495519689", "float": "1712195495519689.047", "ns": "0.047"}[scale]
    content = document(event("a", "cpu_op", "T", 1), baseTimeNanoseconds=17 if scale == "ns" else 0)
    trace = decode_kineto(content.replace(b'"T"', start.encode()), "here.json")
    assert trace.origin_ns == int(Decimal(start) * 1000) + (17 if scale == "ns" else 0)


after_ns = st.integers(0, 2**53)  # 104 days: a float64 holds that many nanoseconds


@given(
    st.integers(0, 2 * 10**18),
    st.lists(st.tuples(after_ns, after_ns), min_size=1, max_size=9),
)
def test_times_are_exact_to_the_nanosecond(epoch: int, after: list[tuple[int, int]]) -> None:
    times = [(epoch + ts, dur) for ts, dur in after]
    events = ",".join(
        f'{{"ph":"X","ts":{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}}}'
        for ts, dur in times
    )
    trace = decode_kineto(f'{{"traceEvents":[{events}]}}'.encode(), "here.json")
    times = sorted(times, key=lambda t: (t[0], -t[1]))
    origin = times[0][0]
    assert trace.origin_ns == origin
    assert trace.start_us.tolist() == [(ts - origin) / 1000 for ts, _ in times]
    assert trace.duration_us.tolist() == [dur / 1000 for _, dur in times]


def test_no_events() -> None:
    trace = decode()
    assert len(trace) == trace.origin_ns == 0
    assert trace.start_us.dtype == np.float64
    assert trace.correlation.dtype == np.int64
    assert len(decode({"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "x"}})) == 0


def test_extreme_integers_that_fit() -> None:
    for value in (2**63 - 1, -(2**63)):
        trace = decode(event("k", "kernel", 0, 1, args={"correlation": value}))
        assert trace.correlation.tolist() == [value]


def same(a: RankTrace, b: RankTrace) -> bool:
    text = {"name", "input_shapes", "input_dtypes", "grid", "collective", "process_group"}
    return all(
        [a.strings[i] for i in value] == [b.strings[i] for i in vars(b)[key]]
        if key in text
        else np.array_equal(value, vars(b)[key])
        for key, value in vars(a).items()
        if key != "strings"
    )


@pytest.mark.parametrize("indent", [None, 1, 8])
@pytest.mark.parametrize("block_bytes", [1, 100, 700, 5000])
def test_blocks_and_chunks_do_not_matter(
    monkeypatch: pytest.MonkeyPatch, indent: int | None, block_bytes: int
) -> None:
    events = [
        *NEW,
        event('a"}, {"b', "cpu_op", 1, 2, args={"list": [{"a": 1}, {"b": {}}, {"c": 2}]}),
    ]
    head = {"note": '"traceEvents": [', "meta": {"traceEvents": [{}, {}]}}
    tail = {"traceName": "x", "more": {"traceEvents": [1]}, "baseTimeNanoseconds": 5}
    data = {**head, "traceEvents": events * 4, **tail}
    content = json.dumps(data, indent=indent, ensure_ascii=False).encode()
    whole = decode_kineto(content, "here.json")
    assert len(whole) == 4 * 10
    monkeypatch.setattr(kineto_json, "_BLOCK_BYTES", block_bytes)
    assert same(decode_kineto(content, "here.json"), whole)
    chunks = [content[i : i + 37] for i in range(0, len(content), 37)]
    assert same(decode_kineto(iter(chunks), "here.json"), whole)


# What is not a trace at all, and documents that end early.


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


def test_cut_anywhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    content = document(*NEW)
    monkeypatch.setattr(kineto_json, "_BLOCK_BYTES", 300)
    for end in range(1, len(content), 7):
        assert f"it ends early, at byte {end}: the file was cut" in error_of(content[:end])


# Damage in one of many events, found in whichever block it is.

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
        ('"tid": 1', '"tid": 1e2', f"at traceEvents[{AT}].tid"),
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
    assert "at deviceProperties[1].numSms" in error_of(
        document(deviceProperties=[{}, {"numSms": "many"}])
    )
    assert "at distributedInfo.rank" in error_of(document(distributedInfo={"rank": "x"}))
    for base in (2**63, 10**30, 1.5, "0"):
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


# Real files, against the standard library's decoder.

FILES = (
    "critical_path/a100_alexnet",
    "dlrm_meta/gpu128_sampled_rank0",
    "dlrm_v100x8/kineto_rank0",
    "edge/cpu_only_rank_non_gpu",
    "inference/mi210_gpu_only",
    "torchrec_v100x4/sst_long_a2a_optimizer_3_29220/rank0",
)


@pytest.mark.parametrize("name", FILES)
def test_real_files_hold_what_a_plain_decoder_sees(reference: Path, name: str) -> None:
    content = gzip.decompress((reference / "traces" / f"{name}.json.gz").read_bytes())
    trace = decode_kineto(content, name)
    loaded = json.loads(content, parse_float=Decimal, parse_int=Decimal)
    events = loaded["traceEvents"]
    assert len(trace) == sum(e["ph"] == "X" for e in events)
    base = int(loaded.get("baseTimeNanoseconds", 0))
    device = trace.is_device
    for row in random.Random(0).sample(range(len(trace)), 500):
        found = events[trace.file_index[row]]
        args = found.get("args", {})
        start_ns = trace.origin_ns + round(float(trace.start_us[row]) * 1000)
        assert start_ns == int(found["ts"] * 1000) + base
        assert round(float(trace.duration_us[row]) * 1000) == int(found["dur"] * 1000)
        assert trace.text(row) == found["name"]
        if device[row]:
            assert trace.stream[row] == int(args["stream"])
            assert trace.correlation[row] == int(args.get("correlation", NONE))
        shapes = trace.strings[trace.input_shapes[row]]
        assert (json.loads(shapes) if shapes else None) == args.get("Input Dims")
    keys = np.stack([trace.start_us, -trace.duration_us])
    assert (np.lexsort((keys[1], keys[0])) == np.arange(len(trace))).all()


def test_ids_of_64_unsigned_bits_are_none() -> None:
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "ts": 1,
        "dur": 2,
        "pid": 1,
        "tid": 1,
        "args": {"External id": 2**64 - 1, "Record function id": 7},
    }
    rank = decode_kineto(json.dumps({"traceEvents": [event]}).encode(), "tiny")
    assert rank.external_id.tolist() == [-1]
    assert rank.op_id.tolist() == [7]
