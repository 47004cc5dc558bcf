"""Kineto files to columns: documents small enough to check by hand."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import numpy as np
from kineto_documents import NEW, NONE, decode, event, names

from perfmodel.trace.categories import Category
from perfmodel.trace.kineto import decode_kineto


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
    assert [(d.name, d.memory_bytes) for d in trace.devices] == [("GPU", 80)]
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


def test_extreme_integers_that_fit() -> None:
    for value in (2**63 - 1, -(2**63)):
        trace = decode(event("k", "kernel", 0, 1, args={"correlation": value}))
        assert trace.correlation.tolist() == [value]


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


def test_no_events() -> None:
    trace = decode()
    assert len(trace) == trace.origin_ns == 0
    assert trace.start_us.dtype == np.float64
    assert trace.correlation.dtype == np.int32
    assert len(decode({"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "x"}})) == 0
