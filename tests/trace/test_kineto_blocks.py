"""Kineto files in blocks and chunks, and real ones against the standard library's decoder."""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from kineto_documents import NEW, NONE, event

from perfmodel.trace import kineto_json
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.kineto import decode_kineto


def same(a: RankTrace, b: RankTrace) -> bool:
    text = {"name", "input_shapes", "input_dtypes", "grid", "collective", "process_group"}
    return all(
        [a.strings[i] for i in value] == [b.strings[i] for i in vars(b)[key]]
        if key in text
        else np.array_equal(value, vars(b)[key])
        for key, value in vars(a).items()
        if key not in ("strings", "memory")
    ) and all(np.array_equal(value, vars(b.memory)[key]) for key, value in vars(a.memory).items())


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
