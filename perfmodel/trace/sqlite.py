"""Profiles in SQLite: exports of Nsight Systems (`nsys export --type sqlite`) and rocpd databases.

Sources of the first: the tables of its User Guide (SQLite Schema Reference, 2021.5 to 2025) and
CUPTI's activity records. rocpd is what `rocprofv3` writes; source: rocprofiler-sdk's tables, schema
3. Its regions of HIP are calls, those of markers (roctx) ranges; a kernel and the call that
launched it share their `stack_id`. No file that the tool wrote was at hand: this is written from
the schema alone.

A file may hold several processes (one profiler around `torchrun`): each that used a device is a
rank, in the order of devices. Ranges are operators where they are named like one of PyTorch
(`aten::mm`, `MulBackward0`) or carry what `emit_nvtx` adds; the others are annotations.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, TypeAlias

from perfmodel.errors import TraceError
from perfmodel.trace.categories import BACKWARD_OP, Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace, rank_from_events

MAGIC = b"SQLite format 3\0"
_JOURNAL_MODE_AT, _ROLLBACK = 18, b"\1\1"
"""A database written ahead of its log cannot be opened from memory; its pages are the same."""
_OF_EMIT_NVTX = re.compile(
    r"(?P<name>.+?)(?:, seq = (?P<sequence>\d+))?(?:, op_id = (?P<op_id>\d+))?"
    r"(?:, sizes = (?P<shapes>\[.*?\]))?(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_ROCM_COPY = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)")
_LATEST_NS = 2**62
_ROCM_STRINGS = re.compile(r"rocpd_string(.*)")

Row: TypeAlias = dict[str, Any]


@contextmanager
def opened(content: bytes, where: str) -> Iterator[Database]:
    """The database in `content`; what SQLite says of a damaged one is a `TraceError`."""
    after = _JOURNAL_MODE_AT + len(_ROLLBACK)
    connection = sqlite3.connect(":memory:")
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    try:
        connection.deserialize(content[:_JOURNAL_MODE_AT] + _ROLLBACK + content[after:])
        yield Database(connection, where)
    except (sqlite3.Error, UnicodeError) as error:  # a damaged schema is quoted, of many lines
        message = " ".join(str(error).split())[:100]
        raise TraceError(f"{where}: damaged SQLite database: {message}") from None
    finally:
        connection.close()


class Database:
    """The plain tables of a database; views and virtual tables, which run code, are not read."""

    def __init__(self, connection: sqlite3.Connection, where: str) -> None:
        self._connection, self.where = connection, where
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self.columns: dict[str, set[str]] = {
            name: {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")}
            for name, sql in tables.fetchall()
            if sql and not sql.upper().startswith("CREATE VIRTUAL")
        }

    def rows(
        self, table: str, needed: tuple[str, ...], more: tuple[str, ...] = (), texts: str = ""
    ) -> Iterator[Row]:
        """The rows of a table, if there is one: whole numbers, and texts of the columns that
        `texts` names. What is NULL, or of `more` and not in this file, is `NONE` or an empty text.
        """
        known = self.columns.get(table)
        if known is None:
            return
        for name in needed:
            if name not in known:
                raise TraceError(f"{self.where}: {table} has no column {name}")
        kinds = dict.fromkeys((*needed, *more), int) | dict.fromkeys(texts.split(), str)
        absent = {name: NONE if kind is int else "" for name, kind in kinds.items()}
        names = [name for name in kinds if name in known]
        query = f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}"
        for number, values in enumerate(self._connection.execute(query)):
            given = {name: v for name, v in zip(names, values, strict=True) if v is not None}
            for name, value in given.items():
                if type(value) is not kinds[name]:
                    expected = "a text" if kinds[name] is str else "a whole number"
                    raise TraceError(
                        f"{self.where}: {table}[{number}].{name}: expected {expected}, "
                        f"found {str(value)[:30]!r}"
                    )
            yield {**absent, **given, "place": f"{self.where}: {table}[{number}]"}

    def texts(self, table: str, column: str = "value") -> dict[int, str]:
        return {row["id"]: row[column] for row in self.rows(table, ("id",), texts=column)}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text_of(texts: Mapping[int, str], number: int, row: Row, column: str) -> str:
    """A string by its id; raises `TraceError` where there is none."""
    try:
        return texts[number]
    except KeyError:
        raise TraceError(f"{row['place']}.{column}: no string has the id {number}") from None


def event_of(row: Row, category: Category, name: str, **columns: Any) -> Row:
    for key in ("start", "end"):
        if abs(row[key]) >= _LATEST_NS:
            raise TraceError(f"{row['place']}.{key}: {row[key]} is no time in nanoseconds")
    duration_ns = row["end"] - row["start"]
    if duration_ns < 0:
        raise TraceError(f"{row['place']}: ends {-duration_ns} ns before it begins")
    return {
        "category": int(category),
        "name": name,
        "start_ns": row["start"],
        "duration_ns": duration_ns,
        **columns,
    }


def of_emit_nvtx(text: str) -> Row:
    """What PyTorch's `emit_nvtx` writes into the name of an operator's range."""
    match = _OF_EMIT_NVTX.fullmatch(text)
    if match is None:
        return {"name": text}
    columns: Row = {"name": match["name"]}
    for key in ("sequence", "op_id"):
        if match[key] and len(match[key]) < 10:
            columns[key] = int(match[key])
    if match["shapes"]:
        with suppress(ValueError, RecursionError):  # of other writers, who mean something else
            columns["input_shapes"] = json.dumps(json.loads(match["shapes"]))
    return columns


def kind_of_range(columns: Row) -> Category:
    name = columns["name"]
    if len(columns) > 1 or "::" in name or BACKWARD_OP.match(name):
        return Category.CPU_OP
    return Category.ANNOTATION


def ranks_of(
    where: str, processes: Mapping[int, list[Row]], devices: tuple[DeviceProperties, ...], tool: str
) -> tuple[RankTrace, ...]:
    """The processes that used a device (of none, all), in the order of devices."""
    work = {
        pid: [event["device"] for event in events if event.get("grid") or "device" in event]
        for pid, events in processes.items()
    }
    used = [pid for pid in processes if work[pid]] or list(processes)
    if not used:
        raise TraceError(f"{where}: holds no ranges, calls or kernels (trace cuda and nvtx)")
    used.sort(key=lambda pid: (min(work[pid], default=0), pid))
    alone = len(used) == 1
    return tuple(
        rank_from_events(
            where if alone else f"{where}:process {pid}",
            processes[pid],
            rank=NONE if alone else number,
            devices=devices,
            tool=tool,
        )
        for number, pid in enumerate(used)
    )


def looks_like_sqlite(content: bytes) -> bool:
    """Whether `content` is an SQLite database, of whatever tables."""
    return content.startswith(MAGIC)


def decode_sqlite(content: bytes, where: str) -> tuple[RankTrace, ...]:
    """The ranks in a rocpd database; `where` names it in messages.

    Raises `TraceError`, naming table, row and column: for a damaged database, one of other tools,
    missing columns, values of another type, unknown strings and events that end before they begin.
    """
    with opened(content, where) as db:
        matches = filter(None, map(_ROCM_STRINGS.fullmatch, db.columns))
        suffixes = sorted(str(match[1]) for match in matches)
        if not suffixes:
            names = ", ".join(sorted(db.columns)[:4]) or "none"
            other = "neither an export of Nsight Systems nor a rocpd database"
            raise TraceError(f"{where}: {other} (its tables: {names})")
        processes: dict[int, list[Row]] = {}
        devices: list[DeviceProperties] = []
        # Each run of a process has tables of its own, whose names end in its id.
        for number, suffix in enumerate(suffixes):
            texts = "type name product_name model_name"
            found = db.rows(f"rocpd_info_agent{suffix}", ("id",), ("type_index",), texts)
            agents = {row["id"]: row for row in found}
            gpus = [each for each in agents.values() if each["type"] == "GPU"]
            shown = [gpu["product_name"] or gpu["model_name"] or gpu["name"] for gpu in gpus]
            devices = devices or [DeviceProperties(name) for name in shown]
            found = db.rows(f"rocpd_info_thread{suffix}", ("id", "tid"))
            threads = {row["id"]: row["tid"] for row in found}
            events = list(_rocpd_events(db, suffix, agents, threads))
            processes[number] = [event | {"pid": number} for event in events]
        return ranks_of(where, processes, tuple(devices), "a rocpd database of rocprofv3")


def _rocpd_events(
    db: Database, suffix: str, agents: Mapping[int, Row], threads: Mapping[int, int]
) -> Iterator[Row]:
    texts = db.texts(f"rocpd_string{suffix}", "string")
    more = ("category_id", "stack_id")
    about = {row["id"]: row for row in db.rows(f"rocpd_event{suffix}", ("id",), more, "extdata")}
    none: Row = {"category_id": NONE, "stack_id": NONE, "extdata": ""}
    needed = ("start", "end", "tid", "name_id")
    for row in db.rows(f"rocpd_region{suffix}", needed, ("event_id",), "extdata"):
        event = about.get(row["event_id"], none)
        group = texts.get(event["category_id"], "").upper()
        thread = threads.get(row["tid"], row["tid"])
        name = text_of(texts, row["name_id"], row, "name_id")
        if "HIP" in group:
            columns = {"thread": thread, "correlation": event["stack_id"]}
            yield event_of(row, Category.RUNTIME, name, **columns)
        elif "MARKER" in group:
            columns = of_emit_nvtx(_message(event["extdata"]) or _message(row["extdata"]) or name)
            yield event_of(row, kind_of_range(columns), **columns, thread=thread)
    shared = ("event_id", "queue_id", "stream_id")

    def of_stream(row: Row, agent: int, category: Category, name: str, **columns: Any) -> Row:
        stream = row["stream_id"] if row["stream_id"] >= 0 else row["queue_id"]
        device = max(agents.get(agent, {}).get("type_index", 0), 0)
        correlation = about.get(row["event_id"], none)["stack_id"]
        columns |= {"stream": stream, "thread": stream, "device": device}
        return event_of(row, category, name, correlation=correlation, **columns)

    named = db.rows(f"rocpd_info_kernel_symbol{suffix}", ("id",), (), "display_name kernel_name")
    symbols = {
        row["id"]: row["display_name"] or row["kernel_name"].removesuffix(".kd") for row in named
    }
    sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    needed = ("start", "end", "agent_id", "kernel_id")
    for row in db.rows(f"rocpd_kernel_dispatch{suffix}", needed, (*shared, *sizes)):
        name = text_of(symbols, row["kernel_id"], row, "kernel_id")
        counts = [row[key] for key in sizes]
        blocks = [-(-a // max(b, 1)) for a, b in zip(counts[:3], counts[3:], strict=True)]
        grid = str(blocks) if counts[0] >= 0 else None
        yield of_stream(row, row["agent_id"], Category.KERNEL, name, grid=grid)
    of_copies = ("start", "end", "name_id")
    sides_of = (*shared, "src_agent_id", "dst_agent_id", "size")
    for row in db.rows(f"rocpd_memory_copy{suffix}", of_copies, sides_of):
        name = text_of(texts, row["name_id"], row, "name_id")
        match = _ROCM_COPY.search(name)
        if match:
            ends = [side.capitalize() for side in match.groups()]
            name = f"Memcpy {ends[0][0]}to{ends[1][0]} ({ends[0]} -> {ends[1]})"
        sides = [row[key] for key in ("dst_agent_id", "src_agent_id")]
        on_gpu = [side for side in sides if agents.get(side, {}).get("type") == "GPU"]
        agent = on_gpu[0] if on_gpu else NONE
        yield of_stream(row, agent, Category.MEMCPY, name, size_bytes=row["size"])


def _message(extdata: str) -> str:
    try:
        message = json.loads(extdata)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""


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
