"""Kineto documents of a few events, and one that uses every column."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfmodel.errors import TraceError
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
