"""Small traces written by hand, in whole microseconds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.lowering.host import TYPES, Samples
from perfmodel.trace import Links, RankTrace, link
from perfmodel.trace.kineto import decode_kineto

Event = dict[str, Any]
MAIN, AUTOGRAD = 1, 2
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data"))


def event(
    name: str, start: float, end: float, category: str = "cpu_op", thread: int = MAIN
) -> Event:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": end - start,
    }


def step(number: int, start: float, end: float) -> Event:
    return event(f"ProfilerStep#{number}", start, end, "user_annotation")


def call(name: str, start: float, end: float, thread: int = MAIN) -> Event:
    return event(name, start, end, "cuda_runtime", thread)


def rank_of(*events: Event) -> tuple[RankTrace, Links]:
    rank = decode_kineto(json.dumps({"traceEvents": events}).encode(), "made.json")
    return rank, link(rank)


def values(samples: Samples, kind: str, thread: str = "main") -> list[tuple[str, float]]:
    """(operator, microseconds) of one type and thread, in order of time."""
    keep = (samples.type == TYPES.index(kind)) & (
        np.array(samples.threads, dtype=object)[samples.thread] == thread
    )
    rows = np.flatnonzero(keep)
    rows = rows[np.argsort(samples.start_us[rows], kind="stable")]
    return [(samples.names[samples.op[i]], float(samples.value_us[i])) for i in rows]


def reference(path: str) -> Path:
    """A file or folder of the reference data; the test is skipped where it is not there."""
    found = REFERENCE / path
    if not found.exists():
        pytest.skip(f"reference data not found: {found}; set PERFMODEL_REFERENCE")
    return found


def made_samples(
    groups: dict[tuple[str, str, str], list[float]], where: str = "made.json", **more: Any
) -> Samples:
    """Samples of these microseconds by type, operator and thread, none of them blocking."""
    keys = [key for key, us in groups.items() for _ in us]
    us = np.array([value for values in groups.values() for value in values], float)
    names = tuple(dict.fromkeys(["cudaLaunchKernel", *(key[1] for key in keys)]))
    threads = tuple(dict.fromkeys(key[2] for key in keys))
    kinds = np.array([TYPES.index(key[0]) for key in keys], np.int8)
    return Samples(
        where=where,
        rank=0,
        devices=("H100",),
        profiler_us_per_event=more.get("profiler_us_per_event", 0.0),
        names=names,
        threads=threads,
        steps=("ProfilerStep#0",),
        type=kinds,
        thread=np.array([threads.index(key[2]) for key in keys], np.int64),
        op=np.array([names.index(key[1]) for key in keys], np.int64),
        call=np.where(kinds == TYPES.index("T4"), 0, -1),
        step=np.zeros(len(us), np.int64),
        start_us=np.zeros(len(us)),
        end_us=us,
        value_us=us,
        blocking=np.zeros(len(us), bool),
        handed_over=np.zeros(len(us), bool),
    )
