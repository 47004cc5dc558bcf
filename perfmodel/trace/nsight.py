"""Nsight Systems exports (`nsys export --type sqlite`): read, and written from a trace.

Sources: the tables of Nsight Systems' User Guide (SQLite Schema Reference, 2021.5 to 2025) and
CUPTI's activity records. What the schema has no column for (collectives, types of inputs) is in
the JSON payload of our own ranges.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from itertools import count
from typing import Any

from perfmodel.errors import TraceError
from perfmodel.trace.categories import CATEGORY_OF_TEXT, Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace
from perfmodel.trace.sqlite import (
    MAGIC,
    Database,
    Row,
    event_of,
    events_of,
    kind_of_range,
    of_emit_nvtx,
    opened,
    ranks_of,
    text_of,
)

KERNELS, COPIES, SETS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS, SYNCS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDS, GRAPHS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES, STRINGS, GPUS, THREADS = "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU", "ThreadNames"

NVTX_CATEGORY, PUSH_POP_RANGE, START_END_RANGE = 33, 59, 60
"""Of `eventType`, those of which something is read."""
COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static")
SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
PID_BITS = 24
"""A `globalTid` holds hardware, machine, process and thread; the lowest 24 bits are the thread."""
PAYLOAD_KEY = "perfmodel"
"""In a range's JSON payload of our own export: what the schema has no column for."""

_VERSION_OF_CALL = re.compile(r"(_pt[sd]z)?_v\d+$")


_WHOLE_GRAPH = re.compile(r"CUDA graph \d+$")
_OF_COLUMNS = ("category", "name", "start_ns", "duration_ns", "file_index", "pid", "thread")
"""Of an event, what the schema has columns for; the others are in the payload of a range."""
_PAYLOAD_COLUMNS = {each.name for each in fields(RankTrace)} - {*_OF_COLUMNS}


def looks_like_nsight(content: bytes) -> bool:
    """Whether `content` is an SQLite database with a table `StringIds`."""
    return content.startswith(MAGIC) and STRINGS.encode() in content


def decode_nsight(content: bytes, where: str) -> tuple[RankTrace, ...]:
    """The ranks in an export; `where` names it in messages.

    Raises `TraceError`, naming table, row and column: for a damaged database, missing columns,
    values of another type, unknown strings and events that end before they begin.
    """
    with opened(content, where) as db:
        return _ranks_of_tables(db)


def _ranks_of_tables(db: Database) -> tuple[RankTrace, ...]:
    texts = db.texts(STRINGS)
    processes: defaultdict[int, list[Row]] = defaultdict(list)
    for row in db.rows(CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        name = _VERSION_OF_CALL.sub("", text_of(texts, row["nameId"], row, "nameId"))
        columns = _of_thread(row) | {"correlation": row["correlationId"]}
        processes[columns["pid"]].append(event_of(row, Category.RUNTIME, name, **columns))
    for pid, event in _nsight_device(db, texts):
        processes[next(iter(processes), 0) if pid < 0 else pid].append(event)
    for event in _nsight_ranges(db, texts):
        processes[event["pid"]].append(event)
    gpus = sorted(
        db.rows(GPUS, ("id",), ("totalMemory", "smCount"), texts="name"), key=lambda gpu: gpu["id"]
    )
    devices = tuple(
        DeviceProperties(gpu["name"], max(gpu["totalMemory"], 0), max(gpu["smCount"], 0))
        for gpu in gpus
    )
    names = {
        row["globalTid"] & (1 << PID_BITS) - 1: texts.get(row["nameId"], "")
        for row in db.rows(THREADS, ("nameId", "globalTid"))
    }
    ranks = ranks_of(db.where, processes, devices, names)
    for rank in ranks:
        if whole := int(rank.name_matches(_WHOLE_GRAPH)[rank.is_device].sum()):
            rank.warnings.append(
                f"{whole} launches of CUDA graphs were traced as a whole, each as one kernel: what "
                "runs in them is not known (nsys profile --cuda-graph-trace=node tells)"
            )
    return ranks


def _of_thread(row: Row) -> dict[str, int]:
    mask = (1 << PID_BITS) - 1
    number = row["globalTid"]
    return {"pid": number >> PID_BITS & mask, "thread": number & mask}


def _nsight_device(db: Database, texts: Mapping[int, str]) -> Iterator[tuple[int, Row]]:
    """What ran on devices, and synchronisation; each with its process, -1 where none is named."""
    needed = ("start", "end", "deviceId", "streamId", "correlationId")
    shared = ("globalPid",)

    def of_stream(row: Row, category: Category, name: str, **more: Any) -> tuple[int, Row]:
        pid = row["globalPid"]
        columns = {"stream": row["streamId"], "device": row["deviceId"], "thread": row["streamId"]}
        columns["correlation"] = row["correlationId"]
        pid = pid if pid < 0 else pid >> PID_BITS & (1 << PID_BITS) - 1
        return pid, event_of(row, category, name, **columns, **more)

    grid = ("gridX", "gridY", "gridZ")
    for row in db.rows(KERNELS, needed, (*shared, "demangledName", "shortName", *grid)):
        column = "demangledName" if row["demangledName"] >= 0 else "shortName"
        name = text_of(texts, row[column], row, column)
        size = str([row[key] for key in grid]) if row["gridX"] >= 0 else None
        yield of_stream(row, Category.KERNEL, name, grid=size)
    for row in db.rows(GRAPHS, needed, (*shared, "graphId")):
        yield of_stream(row, Category.KERNEL, f"CUDA graph {row['graphId']}")
    for row in db.rows(COPIES, needed, (*shared, "bytes", "copyKind", "srcKind", "dstKind")):
        ends = [_item(MEMORY_KINDS, row[key], "Unknown") for key in ("srcKind", "dstKind")]
        kind = _item(COPY_KINDS, row["copyKind"], "")
        name = f"Memcpy {kind} ({ends[0]} -> {ends[1]})"
        yield of_stream(row, Category.MEMCPY, name, size_bytes=row["bytes"])
    for row in db.rows(SETS, needed, (*shared, "bytes", "memKind")):
        name = f"Memset ({_item(MEMORY_KINDS, row['memKind'], 'Device')})"
        yield of_stream(row, Category.MEMSET, name, size_bytes=row["bytes"])
    more = (*shared, "eventId", "eventSyncId")
    recorded = {
        (row["globalPid"], row["eventId"], row["eventSyncId"]): row
        for row in db.rows(RECORDS, ("streamId", "correlationId", "eventId"), more)
    }
    for row in db.rows(SYNCS, (*needed, "syncType"), more):
        record = recorded.get((row["globalPid"], row["eventId"], row["eventSyncId"]), {})
        has_stream = 0 <= row["streamId"] < 2**31
        yield of_stream(
            row,
            Category.CUDA_SYNC,
            SYNC_NAMES.get(row["syncType"], "Sync"),
            sync_stream=row["streamId"] if has_stream else NONE,
            sync_source_stream=record.get("streamId", NONE),
            sync_record_correlation=record.get("correlationId", NONE),
        )


def _item(items: tuple[str, ...], index: int, other: str) -> str:
    return items[index] if 0 <= index < len(items) else other


def _nsight_ranges(db: Database, texts: Mapping[int, str]) -> Iterator[Row]:
    """Ranges of NVTX that have an end."""
    more = ("end", "textId", "category", "domainId", "jsonTextId")
    rows = list(db.rows(RANGES, ("start", "eventType", "globalTid"), more, texts="text jsonText"))
    categories = {
        (row["domainId"], row["category"]): row["text"] or texts.get(row["textId"], "")
        for row in rows
        if row["eventType"] == NVTX_CATEGORY
    }
    for row in rows:
        if row["eventType"] not in (PUSH_POP_RANGE, START_END_RANGE) or row["end"] < 0:
            continue
        if not row["text"] and row["textId"] < 0:
            continue
        columns = of_emit_nvtx(row["text"] or text_of(texts, row["textId"], row, "textId"))
        usual = kind_of_range(columns)
        columns |= _of_thread(row)
        columns |= _of_payload(row, row["jsonText"] or texts.get(row["jsonTextId"], ""))
        named = categories.get((row["domainId"], row["category"]), "")
        kind = CATEGORY_OF_TEXT.get(named)
        if kind is None:
            kind = Category.OTHER if named == "other" else usual
        if kind is Category.ANNOTATION and row["eventType"] == START_END_RANGE:
            kind = Category.OTHER  # they need not nest
        yield event_of(row, kind, columns.pop("name"), **columns)


def _of_payload(row: Row, payload: str) -> Row:
    """The columns that our own export adds to a range."""
    if f'"{PAYLOAD_KEY}"' not in payload:
        return {}
    try:
        columns = json.loads(payload)[PAYLOAD_KEY]
        if isinstance(columns, dict) and not {*columns} - _PAYLOAD_COLUMNS:
            return columns
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise TraceError(f"{row['place']}.jsonText: no payload of perfmodel: {payload[:30]!r}")


_TABLES = {
    STRINGS: "id value",
    GPUS: "id name totalMemory smCount",
    THREADS: "nameId globalTid",
    CALLS: "start end eventClass globalTid correlationId nameId returnValue",
    KERNELS: "start end deviceId contextId streamId correlationId globalPid demangledName shortName"
    " gridX gridY gridZ",
    COPIES: "start end deviceId contextId streamId correlationId globalPid bytes copyKind srcKind"
    " dstKind",
    SETS: "start end deviceId contextId streamId correlationId globalPid bytes memKind",
    SYNCS: "start end deviceId contextId streamId correlationId globalPid syncType eventId"
    " eventSyncId",
    RECORDS: "deviceId contextId streamId correlationId globalPid eventId eventSyncId",
    RANGES: "start end eventType category text globalTid domainId jsonText",
}
"""The tables that are written, with their columns."""
_COPY_NAME = re.compile(r"Memcpy (\w*) \((.+) -> (.+)\)")
_SET_NAME = re.compile(r"Memset \((.+)\)")
_TEXT_OF_CATEGORY = {category: text for text, category in reversed(CATEGORY_OF_TEXT.items())}
_TEXT_OF_CATEGORY[Category.OTHER] = "other"
_FIRST_PID = 1000


def nsight_sqlite(ranks: Sequence[RankTrace]) -> bytes:
    """The events of `ranks` as an export of one report, a process for each.

    Times, names, threads, streams, links and arguments are kept; allocations and how far kernels
    fill the device are not, as the schema has no place for them. The same input gives the same
    bytes.
    """
    texts: dict[str, int] = {}
    tables: dict[str, list[Row]] = {name: [] for name in _TABLES}
    for number, rank in enumerate(ranks):
        _write_rank(rank, (_FIRST_PID + number) << PID_BITS, tables, texts)
    for at, gpu in enumerate(ranks[0].devices if ranks else ()):
        columns = {"name": gpu.name, "totalMemory": gpu.memory_bytes, "smCount": gpu.sm_count}
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

    for code, named in _TEXT_OF_CATEGORY.items():
        row = {"start": 0, "end": None, "eventType": NVTX_CATEGORY, "category": int(code) + 1}
        tables[RANGES].append(row | {"text": named, "globalTid": process, "jsonText": None})
    for event in events_of(rank):
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
        else:
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
    """Named as `emit_nvtx` names an operator; the columns beyond that are its payload."""
    payload = {key: value for key, value in event.items() if key not in _OF_COLUMNS}
    return {
        "eventType": PUSH_POP_RANGE,
        "category": event["category"] + 1,
        "text": event["name"],
        "globalTid": thread,
        "jsonText": json.dumps({PAYLOAD_KEY: payload}) if payload else None,
    }
