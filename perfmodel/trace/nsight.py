"""Nsight Systems exports (`nsys export --type sqlite`).

Sources: the tables of Nsight Systems' User Guide (SQLite Schema Reference, 2021.5 to 2025) and
CUPTI's activity records.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace
from perfmodel.trace.sqlite import (
    MAGIC,
    Database,
    Row,
    event_of,
    kind_of_range,
    of_emit_nvtx,
    opened,
    ranks_of,
    text_of,
)

KERNELS, COPIES, SETS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS, SYNCS = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RECORDS, GRAPHS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES, STRINGS, GPUS = "NVTX_EVENTS", "StringIds", "TARGET_INFO_GPU"

PUSH_POP_RANGE, START_END_RANGE = 59, 60
"""Of `eventType`, those of which something is read."""
COPY_KINDS = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static")
SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
PID_BITS = 24
"""A `globalTid` holds hardware, machine, process and thread; the lowest 24 bits are the thread."""
_VERSION_OF_CALL = re.compile(r"(_pt[sd]z)?_v\d+$")
_WHOLE_GRAPH = re.compile(r"CUDA graph \d+$")


def looks_like_nsight(content: bytes) -> bool:
    """Whether `content` is an SQLite database with a table `StringIds`."""
    return content.startswith(MAGIC) and STRINGS.encode() in content


def decode_nsight(content: bytes, where: str) -> tuple[RankTrace, ...]:
    """The ranks in an export; `where` names it in messages.

    Raises `TraceError`, naming table, row and column: for a damaged database, missing columns,
    values of another type, unknown strings and events that end before they begin.
    """
    with opened(content, where) as db:
        texts = db.texts(STRINGS)
        processes: defaultdict[int, list[Row]] = defaultdict(list)
        for event in chain(_calls(db, texts), _device(db, texts), _ranges(db, texts)):
            pid = event["pid"] if event["pid"] >= 0 else next(iter(processes), 0)
            processes[pid].append(event)
        gpus = sorted(
            db.rows(GPUS, ("id",), ("totalMemory",), texts="name"), key=lambda gpu: gpu["id"]
        )
        devices = tuple(DeviceProperties(gpu["name"], max(gpu["totalMemory"], 0)) for gpu in gpus)
        ranks = ranks_of(where, processes, devices, "an export of Nsight Systems")
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


def _calls(db: Database, texts: Mapping[int, str]) -> Iterator[Row]:
    for row in db.rows(CALLS, ("start", "end", "globalTid", "correlationId", "nameId")):
        name = _VERSION_OF_CALL.sub("", text_of(texts, row["nameId"], row, "nameId"))
        columns = _of_thread(row) | {"correlation": row["correlationId"]}
        yield event_of(row, Category.RUNTIME, name, **columns)


def _device(db: Database, texts: Mapping[int, str]) -> Iterator[Row]:
    needed = ("start", "end", "deviceId", "streamId", "correlationId")
    shared = ("globalPid",)

    def of_stream(row: Row, category: Category, name: str, **more: Any) -> Row:
        pid = row["globalPid"]
        columns = {"stream": row["streamId"], "device": row["deviceId"], "thread": row["streamId"]}
        columns["correlation"] = row["correlationId"]
        columns["pid"] = pid if pid < 0 else pid >> PID_BITS & (1 << PID_BITS) - 1
        return event_of(row, category, name, **columns, **more)

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


def _ranges(db: Database, texts: Mapping[int, str]) -> Iterator[Row]:
    """Ranges of NVTX that have an end."""
    needed = ("start", "eventType", "globalTid")
    for row in db.rows(RANGES, needed, ("end", "textId"), texts="text"):
        is_range = row["eventType"] in (PUSH_POP_RANGE, START_END_RANGE) and row["end"] >= 0
        if not is_range or (not row["text"] and row["textId"] < 0):
            continue
        columns = of_emit_nvtx(row["text"] or text_of(texts, row["textId"], row, "textId"))
        kind = kind_of_range(columns)
        if kind is Category.ANNOTATION and row["eventType"] == START_END_RANGE:
            kind = Category.OTHER  # they need not nest
        yield event_of(row, kind, columns.pop("name"), **columns, **_of_thread(row))
