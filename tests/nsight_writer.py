"""Traces written as the tables of an Nsight Systems export: what its reader is tried on."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np

from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, TEXT_COLUMNS, RankTrace
from perfmodel.trace.sqlite import (
    CALLS,
    COPIES,
    COPY_KINDS,
    GPUS,
    KERNELS,
    MEMORY_KINDS,
    PID_BITS,
    PUSH_POP_RANGE,
    RANGES,
    RECORDS,
    SETS,
    STRINGS,
    SYNC_NAMES,
    SYNCS,
    Row,
)

_TABLES = {
    STRINGS: "id value",
    GPUS: "id name totalMemory",
    CALLS: "start end eventClass globalTid correlationId nameId returnValue",
    KERNELS: "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
    " gridX gridY gridZ",
    COPIES: "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind"
    " dstKind",
    SETS: "start end deviceId contextId streamId correlationId globalPid bytes memKind",
    SYNCS: "start end deviceId contextId streamId correlationId globalPid syncType eventId"
    " eventSyncId",
    RECORDS: "deviceId contextId streamId correlationId globalPid eventId eventSyncId",
    RANGES: "start end eventType text globalTid",
}
"""The tables that are written, with their columns."""
_COPY_NAME = re.compile(r"Memcpy (\w*) \((.+) -> (.+)\)")
_SET_NAME = re.compile(r"Memset \((.+)\)")
_FIRST_PID = 1000


def nsight_sqlite(ranks: Sequence[RankTrace]) -> bytes:
    """The events of `ranks` as an export of one report, a process for each.

    Times, names, threads, streams and links are kept; what the schema has no place for is not
    (arguments of operators, collectives, allocations). The same input gives the same bytes.
    """
    texts: dict[str, int] = {}
    tables: dict[str, list[Row]] = {name: [] for name in _TABLES}
    for number, rank in enumerate(ranks):
        _write_rank(rank, (_FIRST_PID + number) << PID_BITS, tables, texts)
    for at, gpu in enumerate(ranks[0].devices if ranks else ()):
        columns = {"name": gpu.name, "totalMemory": gpu.memory_bytes}
        tables[GPUS].append({"id": at} | columns)
    tables[STRINGS] = [{"id": number, "value": text} for text, number in texts.items()]
    with closing(sqlite3.connect(":memory:")) as connection:
        for name, names in _TABLES.items():
            keys = names.split()
            quoted = ", ".join(f'"{key}"' for key in keys)
            connection.execute(f"CREATE TABLE {name} ({quoted})")
            rows = ([row.get(key, 0) for key in keys] for row in tables[name])
            marks = ", ".join("?" * len(keys))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        connection.commit()
        return connection.serialize()


def _events_of(rank: RankTrace) -> Iterator[dict[str, Any]]:
    """What `rank_from_events` takes: per event what the file says of it, in order."""
    texts = rank.strings.texts
    start_ns = rank.origin_ns + np.rint(rank.start_us * 1e3).astype(np.int64)
    times = {"start_ns": start_ns, "duration_ns": np.rint(rank.duration_us * 1e3).astype(np.int64)}
    named = {each.name: getattr(rank, each.name) for each in fields(rank) if each.type == "Ints"}
    names = ("category", *times, *named)
    columns = [rank.category, *times.values(), *named.values()]
    for row in zip(*(column.tolist() for column in columns), strict=True):
        known = {name: value for name, value in zip(names, row, strict=True) if value != NONE}
        known |= {name: texts[known[name]] for name in TEXT_COLUMNS if name in known}
        yield known


def _write_rank(
    rank: RankTrace, process: int, tables: dict[str, list[Row]], texts: dict[str, int]
) -> None:
    threads: dict[int, int] = {}
    free = count(1)

    def thread_of(number: int) -> int:
        """Numbers beyond 24 bits become others."""
        if number not in threads:
            fits = 0 < number < 1 << PID_BITS and number not in threads.values()
            threads[number] = number if fits else next(n for n in free if n not in threads.values())
        return process | threads[number]

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    for event in _events_of(rank):
        category, name = Category(event["category"]), event["name"]
        times = {"start": event["start_ns"], "end": event["start_ns"] + event["duration_ns"]}
        device = times | {
            "deviceId": event.get("device", 0),
            "streamId": event.get("stream", 0),
            "correlationId": event.get("correlation", 0),
            "globalPid": process,
            "bytes": event.get("size_bytes"),
        }
        if category is Category.RUNTIME:
            called = {"globalTid": thread_of(event["thread"]), "nameId": text(name)}
            tables[CALLS].append(device | called)
        elif category is Category.KERNEL:
            grid = json.loads(event.get("grid", "[]")) or [None] * 3
            sizes = dict(zip(("gridX", "gridY", "gridZ"), grid, strict=True))
            number = text(name)
            tables[KERNELS].append(device | sizes | {"demangledName": number, "shortName": number})
        elif category is Category.MEMCPY:
            match = _COPY_NAME.match(name)
            kind, *ends = match.groups() if match else ("", "", "")
            kinds = dict(
                zip(("srcKind", "dstKind"), (_index(MEMORY_KINDS, e) for e in ends), strict=True)
            )
            tables[COPIES].append(device | kinds | {"copyKind": _index(COPY_KINDS, kind)})
        elif category is Category.MEMSET:
            match = _SET_NAME.match(name)
            kind = match[1] if match else "Device"
            tables[SETS].append(device | {"memKind": _index(MEMORY_KINDS, kind)})
        elif category is Category.CUDA_SYNC:
            _write_sync(event, device, tables)
        elif category not in (Category.PYTHON, Category.GPU_ANNOTATION):  # as of emit_nvtx
            tables[RANGES].append(times | _range(event, thread_of(event.get("thread", 0))))


def _index(items: Sequence[str], item: str) -> int | None:
    return items.index(item) if item in items else None


def _write_sync(event: Row, device: Row, tables: dict[str, list[Row]]) -> None:
    """A wait, and the record of the event that it waited for, where it is known."""
    number = len(tables[SYNCS]) + 1
    kinds = {name: kind for kind, name in SYNC_NAMES.items()}
    ids = {"eventId": number, "eventSyncId": number}
    stream = event.get("sync_stream", NONE)
    row = {"syncType": kinds.get(event["name"], 0), "streamId": stream}
    tables[SYNCS].append(device | ids | row)
    if "sync_record_correlation" in event:
        recorded = {"streamId": event.get("sync_source_stream", NONE)}
        recorded["correlationId"] = event["sync_record_correlation"]
        tables[RECORDS].append(device | ids | recorded)


def _range(event: Row, thread: int) -> Row:
    """Named as `emit_nvtx` names an operator."""
    return {"eventType": PUSH_POP_RANGE, "text": event["name"], "globalTid": thread}
