"""Oddities of sound files that readers pass over, and files of other tools that they name."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra_writer import framed
from et_documents import flat, nested, node
from tiny import Tiny

import perfmodel
from perfmodel.base.schema import read_toml
from perfmodel.errors import TraceError
from perfmodel.ops.read import op_graph
from perfmodel.trace.chakra import decode_chakra, looks_like_chakra, messages
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.trace.kineto import decode_kineto

APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(300)


def step_of(count: int = 4, every: float = 500.0, took: float = 400.0) -> Tiny:
    """A step with kernels on one stream, each 100 us before the next."""
    t = Tiny()
    t.step(1, 0, every * count)
    for start in np.arange(count) * every:
        t.op("aten::mm", start + 10, start + 40)
        t.launch(start + 20, start + 25, kernel=(start + 50, start + 50 + took))
    return t


def read(t: Tiny, tmp_path: Path) -> perfmodel.Trace:
    (tmp_path / "trace.json").write_bytes(t.content())
    return perfmodel.read(tmp_path / "trace.json")


# Numbers as texts


def as_texts(event: dict[str, Any], keys: tuple[str, ...], write: Callable[[Any], str]) -> None:
    for key in keys:
        event[key] = write(event[key])


@pytest.mark.parametrize("write", [str, "{:.3f}".format, "{:.6e}".format])
@pytest.mark.parametrize("keys", [("ts", "dur"), ("ts",), ("dur",)])
def test_times_that_are_texts(write: Callable[[Any], str], keys: tuple[str, ...]) -> None:
    t = step_of()
    expected = t.rank_trace()
    for each in t.events[1:]:
        as_texts(each, keys, write)
    found = t.rank_trace()
    assert found.start_us.tolist() == expected.start_us.tolist()
    assert found.duration_us.tolist() == expected.duration_us.tolist()


def test_all_numbers_are_texts() -> None:
    t = step_of()
    expected = t.rank_trace()
    for each in t.events:
        as_texts(each, ("ts", "dur", "pid", "tid"), str)
        as_texts(each["args"], tuple(each["args"]), str)
    t.events.append({"ph": "s", "ts": "12.5", "id": "3", "pid": "1", "tid": "1"})
    found = t.rank_trace()
    for column in ("start_us", "duration_us", "correlation", "stream", "device", "thread"):
        assert getattr(found, column).tolist() == getattr(expected, column).tolist()


@pytest.mark.parametrize("text", ['"soon"', '""', '"1.0.0"', '"0x10"'])
def test_a_text_that_is_no_time_is_one_line(text: str) -> None:
    content = step_of().content().replace(b'"ts": 50.0', f'"ts": {text}'.encode())
    with pytest.raises(TraceError, match=r"traceEvents\[\d+\].ts: expected microseconds"):
        decode_kineto(content, "here.json")


# Execution traces

FOUR = [
    node(1, "[pytorch|profiler|execution_trace|process]", 1),
    node(2, "[pytorch|profiler|execution_trace|thread]", 1),
    node(3, "aten::add", 2),
    node(4, "aten::mul", 3),
]


def parents(*changes: tuple[int, Any], write: Callable[..., dict[str, Any]] = flat) -> list[int]:
    document = write(*FOUR)
    for at, value in changes:
        document["nodes"][at]["parent" if write is flat else "ctrl_deps"] = value
    return decode_execution_trace(json.dumps(document).encode(), "et").parent.tolist()


@pytest.mark.parametrize("write", [flat, nested])
def test_parents_that_are_absent_or_later(write: Callable[..., dict[str, Any]]) -> None:
    assert parents(write=write) == [-1, 0, 1, 2]
    assert parents((3, 99), write=write) == [-1, 0, 1, 1]  # to its thread
    assert parents((2, 4), (3, 2), write=write) == [-1, 0, 3, 1]  # a parent of a larger id
    assert parents((0, -1), write=write) == [-1, 0, 1, 2]
    assert parents((0, None), write=write) == [-1, 0, 1, 2]
    assert parents((3, "3"), write=write) == [-1, 0, 1, 2]


def test_parents_that_are_absent_are_counted() -> None:
    document = flat(*FOUR)
    document["nodes"][3]["parent"] = 99
    trace = decode_execution_trace(json.dumps(document).encode(), "et")
    assert trace.warnings == ["1 nodes were called by 1 ops that are not in the file"]


# macOS


def archive(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            file.addfile(about, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("beside", ["._rank0.json", "job/._rank0.json", "__MACOSX/._rank0.json"])
def test_what_a_mac_keeps_in_archives_is_passed_over(beside: str, tmp_path: Path) -> None:
    content = archive((beside, APPLE_DOUBLE), ("rank0.json", step_of().content()))
    (tmp_path / "a.tgz").write_bytes(content)
    assert len(perfmodel.read(tmp_path / "a.tgz").ranks) == 1


def test_what_a_mac_keeps_in_folders_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "._rank0.json").write_bytes(APPLE_DOUBLE)
    (tmp_path / "rank0.json").write_bytes(step_of().content())
    assert len(perfmodel.read(tmp_path).ranks) == 1


# Chakra

LATER = {
    "varint": b"\xf8\x01\x05",
    "fixed64": b"\xf9\x01" + bytes(8),
    "text": b"\xfa\x01\x02ab",
    "fixed32": b"\xfd\x01" + bytes(4),
    "below 16": b"\x62\x02ab",
}
"""Fields 31 and 12, which no schema has yet."""


@pytest.mark.parametrize("field", LATER.values(), ids=LATER)
@pytest.mark.parametrize("in_metadata", [False, True])
def test_fields_of_later_schemas_are_passed_over(field: bytes, in_metadata: bool) -> None:
    head, one = messages().metadata(version="0.0.4"), messages().node(id=1, name="x")

    def sized(message: Any, more: bytes) -> bytes:
        body = message.SerializeToString() + more
        return bytes([len(body)]) + body

    content = sized(head, field * in_metadata) + sized(one, field * (not in_metadata))
    assert looks_like_chakra(content)
    assert len(decode_chakra(content, "x.et")) == 1
    assert not looks_like_chakra(content[:-1])


def test_dependencies_on_nodes_that_are_absent_are_left_out() -> None:
    kinds = messages()
    nodes = [kinds.node(id=1, name="a"), kinds.node(id=2, name="b", data_deps=[1, 77])]
    trace = decode_chakra(framed(kinds.metadata(version="1"), *nodes), "x.et")
    assert trace.declared.tolist() == [[0, 1]]
    assert "1 dependencies are on nodes that are not in the file" in trace.warnings[0]


# Files of other tools

OTHERS = {
    "rocprof or roctracer": b'{ "traceEvents":[{}\n,{"args":{"name":"GPU0"},"ph":"M","pid":"6"}]}',
    "Ascend": b'[{"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "CANN"}}]',
    "memory timeline": b"[[-1, 0, 1024, 4], [12, 1, 2048, 0]]",
    "memory timeline of": b"[[1.5, 2.5], [[0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0, 0, 0]]]",
    "JAX": b'{"traceEvents": [{"ph": "M", "pid": 1, "args": {"name": "/device:GPU:0 Compute"}}]}',
}


@pytest.mark.parametrize("tool", OTHERS)
def test_files_of_other_tools_are_named_with_what_to_give(tool: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(OTHERS[tool])
    with pytest.raises(TraceError) as caught:
        perfmodel.read(tmp_path / "other.json")
    message = str(caught.value)
    assert tool in message
    assert "which is not read: " in message
    assert "\n" not in message


def test_beside_a_trace_they_are_left_out_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(OTHERS["memory timeline"])
    (tmp_path / "rank0.json").write_bytes(step_of().content())
    (warning,) = perfmodel.read(tmp_path).warnings
    assert "other.json: ignored: this is a memory timeline" in warning


@pytest.mark.parametrize(
    ("maker", "call"),
    [
        ("xpu", "urEnqueueKernelLaunch"),
        ("xpu", "zeCommandListAppendLaunchKernel"),
        ("privateuse1", "aclrtLaunchKernelWithConfig"),
        ("mtia", "mtiaLaunchKernel"),
    ],
)
@pytest.mark.parametrize("layer", ["runtime", "driver"])
def test_calls_of_other_accelerators(maker: str, call: str, layer: str, tmp_path: Path) -> None:
    t = step_of()
    for each in t.events:
        if each["cat"] == "cuda_runtime":
            each |= {"cat": f"{maker}_{layer}", "name": call}
    trace = read(t, tmp_path)
    assert trace.warnings == []
    assert (trace.links[0].device_launch >= 0).all()


def test_devices_whose_events_are_not_read_are_named() -> None:
    t = step_of()
    t.event("mtia_ccp_events", "k", (60, 70), 3)
    t.event("hpu_op", "k", (60, 70), 3)
    (said,) = t.rank_trace().warnings
    assert said.endswith("not known are left out: 'hpu_op', 'mtia_ccp_events'")


# Times that cannot be


def busy_us(t: Tiny, tmp_path: Path) -> list[float]:
    rank = read(t, tmp_path).ranks[0]
    return rank.duration_us[rank.is_device].tolist()


@pytest.mark.parametrize("took", [1.6e6, 3.1e4, 1.8e15])
def test_a_kernel_that_runs_far_into_its_successors_is_cut(took: float, tmp_path: Path) -> None:
    t = step_of(20)
    t.events[3]["dur"] = t.events[33]["dur"] = took
    assert busy_us(t, tmp_path) == [500.0] + [400.0] * 9 + [500.0] + [400.0] * 9
    (warning,) = read(t, tmp_path).warnings
    assert "2 device operations cannot have lasted as long" in warning


def test_the_last_of_a_stream_takes_what_its_like_take(tmp_path: Path) -> None:
    t = step_of()
    t.events[-1]["dur"] = 1.8e15
    assert busy_us(t, tmp_path) == [400.0] * 4


def test_two_of_one_graph_take_what_their_like_take(tmp_path: Path) -> None:
    t = Tiny()
    call = t.call("cudaGraphLaunch", 0, 5)
    for start in range(10, 90, 10):
        t.kernel(start, start + (1e6 if start in (30, 60) else 8), correlation=call)
    assert busy_us(t, tmp_path) == [8.0] * 8


def test_a_start_of_zero_is_left_out(tmp_path: Path) -> None:
    t = step_of(20)
    for each in t.events:
        each["ts"] += 1.78e15
    t.events[6]["ts"] = 0
    trace = read(t, tmp_path)
    assert int(trace.ranks[0].is_device.sum()) == 19
    assert trace.ranks[0].end_us.max() == 10_000
    assert "1 events begin hours from all others: left out" in trace.warnings[0]


def test_what_may_overlap_stays(tmp_path: Path) -> None:
    """The next by programmatic dependent launch, a kernel that holds two, branches of a graph."""
    early = step_of()
    early.events[3]["dur"] = 470.0
    held = step_of(8)
    held.kernel(55, 1200, name="long", correlation=900)
    graph = Tiny()
    call = graph.call("cudaGraphLaunch", 0, 5)
    for start, end in ((10, 5000), (20, 30), (40, 50), (60, 70), (80, 5000)):
        graph.kernel(start, end, correlation=call)
    for t in (early, held, graph):
        rank = t.rank_trace()
        assert sorted(busy_us(t, tmp_path)) == sorted(rank.duration_us[rank.is_device].tolist())


def test_a_long_call_that_waits_is_no_alarm(tmp_path: Path) -> None:
    """All events begin in 1 ms, and two end after 5 s: a call that waits, and what it waits for."""
    t = Tiny()
    t.launch(10, 20, kernel=(30, 5e6))
    t.call("cudaDeviceSynchronize", 40, 5e6 + 5)
    assert read(t, tmp_path).warnings == []


# Several processes in one file


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)])
def test_two_ranks_in_one_file_are_refused(devices: tuple[int, int], tmp_path: Path) -> None:
    t = Tiny()
    for pid, device, shift, took in ((100, devices[0], 0, 100), (200, devices[1], 37, 120)):
        start = len(t.events)
        t.step(1, shift, 1000 + shift)
        for at in (10, 310, 610):
            t.op("aten::mm", at + shift, at + 30 + shift)
            call = t.call("cudaLaunchKernel", at + 10 + shift, at + 15 + shift, correlation=at)
            t.kernel(at + 30 + shift, at + 30 + shift + took, correlation=call, device=device)
        for each in t.events[start:]:
            each["pid"] = device if each["cat"] == "kernel" else pid
    with pytest.raises(
        TraceError, match="holds processes 100, 200: give each in a file of its own"
    ):
        read(t, tmp_path)


# Hostile


def test_long_lists_and_texts_are_no_long_keys(tmp_path: Path) -> None:
    text = f"a = [{'0.5, ' * 500}]\nb = '{'x' * 10_000}'\n{'c' * 10_000} = 1.5\n"
    (tmp_path / "x.toml").write_text(text)
    assert len(read_toml(tmp_path / "x.toml", 10**7, TraceError)) == 3


@pytest.mark.parametrize(
    "dims",
    [[[[64, 8], 8], []], [[64, 8], []], [[[64], [[8]]], []], [[], []], [[[2, 2], [2]], []]],
)
def test_sizes_that_do_not_fit_strides_say_nothing(dims: list[Any], tmp_path: Path) -> None:
    t = step_of(1)
    t.events[1]["name"] = "aten::cat"
    strides = [[[8, 1], [8, 1]], []]
    types = {"Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "0"]}
    t.events[1]["args"] = types | {"Input Dims": dims, "Input Strides": strides}
    assert perfmodel.breakdown(read(t, tmp_path)).to_dict()["summary"][0]["gpu_active_us"] == 400


def test_a_type_that_is_no_word_is_one_line(tmp_path: Path) -> None:
    t = step_of(1)
    t.events[1]["args"] = {"Input Dims": [[8]], "Input type": [8]}
    with pytest.raises(TraceError, match=r"trace.json: Input Dims or types of an op: .*`str`"):
        op_graph(read(t, tmp_path))
