"""Kineto files (PyTorch 1.8 to 2.13, NVIDIA, AMD and CPU-only) to columns.

The JSON is decoded by type: only the fields below are ever built, and the structures are gone
once their values stand in columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn
from zlib import crc32

import msgspec
import numpy as np

from perfmodel.errors import TraceError
from perfmodel.trace.categories import (
    CATEGORY_OF_TEXT,
    DEVICE_CATEGORIES,
    OLD_ANNOTATION_NAME,
    Category,
)
from perfmodel.trace.columns import NONE, DeviceProperties, Ints, RankTrace, Strings
from perfmodel.trace.numbers import nanoseconds

_NO_RAW = msgspec.Raw()
_MAX_WARPS_PER_SM = 64
"""What Kineto's occupancy is a share of, on the data-centre GPUs."""


class _Args(msgspec.Struct, gc=False):
    correlation: int = NONE
    stream: int | str = NONE
    device: int | str = NONE
    external_id: int | str = msgspec.field(default=NONE, name="External id")
    old_external_id: int | str = msgspec.field(default=NONE, name="external id")
    event_index: int = msgspec.field(default=NONE, name="Ev Idx")
    op_id: int = msgspec.field(default=NONE, name="Record function id")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    input_shapes: msgspec.Raw = msgspec.field(default=_NO_RAW, name="Input Dims")
    input_dtypes: msgspec.Raw = msgspec.field(default=_NO_RAW, name="Input type")
    size_bytes: int | str = msgspec.field(default=NONE, name="bytes")
    grid: msgspec.Raw = _NO_RAW
    blocks_per_sm: float | str = msgspec.field(default=0.0, name="blocks per SM")
    warps_per_sm: float | str = msgspec.field(default=0.0, name="warps per SM")
    occupancy_pct: float | str = msgspec.field(default=0.0, name="est. achieved occupancy %")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    process_group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_size: int = msgspec.field(default=NONE, name="Group size")
    in_elements: int = msgspec.field(default=NONE, name="In msg nelems")
    out_elements: int = msgspec.field(default=NONE, name="Out msg nelems")
    sync_source_stream: int | str = msgspec.field(default=NONE, name="wait_on_stream")
    sync_record_correlation: int | str = msgspec.field(
        default=NONE, name="wait_on_cuda_event_record_corr_id"
    )
    name: str | None = None


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = _NO_RAW
    dur: msgspec.Raw = _NO_RAW
    pid: int | str = NONE
    tid: int | str = NONE
    id: int | str = NONE
    args: _Args | None = None


class _Device(msgspec.Struct, gc=False):
    name: str = ""
    totalGlobalMem: int = 0
    numSms: int = 0


class _Distributed(msgspec.Struct, gc=False):
    rank: int | None = None
    world_size: int | None = None


class _File(msgspec.Struct, gc=False):
    traceEvents: list[_Event]
    deviceProperties: list[_Device] = []  # noqa: RUF012 (msgspec copies it)
    distributedInfo: _Distributed | None = None
    baseTimeNanoseconds: int = 0


class _Shell(msgspec.Struct, gc=False):
    traceEvents: list[msgspec.Raw]


_DECODER = msgspec.json.Decoder(_File)


def decode_kineto(content: bytes, where: str) -> RankTrace:
    """One Kineto JSON document as columns; `where` names it in errors.

    Raises `TraceError`, naming the place, when it is no JSON, when a field has the wrong type,
    when a time is no number, or when a duration is negative.
    """
    try:
        file = _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _explain(content, where, error)
    distributed = file.distributedInfo or _Distributed()
    events = file.traceEvents
    start_ns = _times(events, "ts", where)
    duration_ns = _times(events, "dur", where)
    is_complete = np.fromiter((event.ph == "X" for event in events), bool, len(events))
    rows = np.flatnonzero(is_complete)
    if (duration_ns < 0).any():
        at = int(np.argmax(duration_ns < 0))
        raise TraceError(
            f"{where}: traceEvents[{at}].dur: {duration_ns[at] / 1e3:g} us is negative; "
            "the file is damaged"
        )
    start_ns, duration_ns = start_ns[rows], duration_ns[rows]
    origin_ns = int(start_ns.min()) if len(rows) else 0
    columns, strings = _columns([events[i] for i in rows], where)
    start_us = (start_ns - origin_ns) / 1e3
    duration_us = duration_ns / 1e3
    order = np.lexsort((columns["event_index"], -duration_us, start_us))
    return RankTrace(
        where=where,
        rank=distributed.rank if distributed.rank is not None else NONE,
        world_size=distributed.world_size,
        origin_ns=origin_ns + file.baseTimeNanoseconds,
        strings=strings,
        devices=tuple(
            DeviceProperties(d.name, d.totalGlobalMem, d.numSms) for d in file.deviceProperties
        ),
        thread_names=_thread_names(events),
        file_index=rows[order],
        start_us=start_us[order],
        duration_us=duration_us[order],
        **{name: column[order] for name, column in columns.items()},
    )


def _times(events: list[_Event], key: str, where: str) -> Ints:
    """The field `key` of every event in nanoseconds; 0 where an event has none."""
    tokens = [bytes(getattr(event, key)) for event in events]
    present = np.fromiter(map(bool, tokens), bool, len(tokens))
    value_ns, known = nanoseconds(tokens)
    bad = np.flatnonzero(present & ~known)
    if len(bad):
        token = tokens[bad[0]][:30].decode(errors="replace")
        raise TraceError(
            f"{where}: traceEvents[{bad[0]}].{key}: expected microseconds, found {token}"
        )
    return value_ns


def _columns(events: list[_Event], where: str) -> tuple[dict[str, Any], Strings]:
    """The columns of complete events but their times, and the texts they index."""
    strings = Strings()
    intern = strings.intern
    count = len(events)
    name = np.fromiter((intern(event.name or "") for event in events), np.int64, count)
    category = _categories(events, name, strings)
    columns: dict[str, Any] = {
        "name": name,
        "category": category,
        "pid": _integers([event.pid for event in events]),
        "thread": _integers([event.tid for event in events]),
    }
    with_args = np.fromiter((event.args is not None for event in events), bool, count)

    def fill(name: str, categories: Sequence[Category], value: Callable[[_Args], int]) -> None:
        at = np.flatnonzero(with_args & np.isin(category, categories))
        column = np.full(count, NONE, np.int64)
        column[at] = _integers([value(events[i].args) for i in at])  # type: ignore[arg-type]
        columns[name] = column

    def text(raw: msgspec.Raw) -> int:
        return intern(bytes(raw).decode()) if raw else NONE

    host = (Category.CPU_OP, Category.ANNOTATION)
    device = DEVICE_CATEGORIES
    sync = (Category.CUDA_SYNC,)
    linked = (Category.RUNTIME, *device, *sync)
    fill("correlation", linked, lambda a: a.correlation)
    fill("stream", device, lambda a: a.stream)  # type: ignore[arg-type,return-value]
    fill("device", device, lambda a: a.device)  # type: ignore[arg-type,return-value]
    fill(
        "external_id",
        (*host, *linked),
        lambda a: a.external_id if a.external_id != NONE else a.old_external_id,  # type: ignore[arg-type,return-value]
    )
    fill("op_id", host, lambda a: a.op_id)
    fill("event_index", (*host, Category.PYTHON), lambda a: a.event_index)
    fill("sequence", host, lambda a: a.sequence)
    fill("input_shapes", host, lambda a: text(a.input_shapes))
    fill("input_dtypes", host, lambda a: text(a.input_dtypes))
    fill("size_bytes", device, lambda a: a.size_bytes)  # type: ignore[arg-type,return-value]
    fill("grid", device, lambda a: text(a.grid))
    fill("collective", (*host, *device), lambda a: intern(a.collective))
    fill("process_group", (*host, *device), lambda a: intern(a.process_group))
    fill("group_size", (*host, *device), lambda a: a.group_size)
    fill("in_elements", (*host, *device), lambda a: a.in_elements)
    fill("out_elements", (*host, *device), lambda a: a.out_elements)
    fill("sync_stream", sync, lambda a: a.stream)  # type: ignore[arg-type,return-value]
    fill("sync_source_stream", sync, lambda a: a.sync_source_stream)  # type: ignore[arg-type,return-value]
    fill("sync_record_correlation", sync, lambda a: a.sync_record_correlation)  # type: ignore[arg-type,return-value]
    kernels = np.flatnonzero(with_args & (category == Category.KERNEL))
    waves = np.zeros(count)
    waves[kernels] = [_waves(events[i].args) for i in kernels]  # type: ignore[arg-type]
    columns["waves"] = waves
    return columns, strings


def _waves(args: _Args) -> float:
    """How many times over a kernel's blocks fill the device; 0 where the file does not tell."""
    blocks, warps, occupancy = args.blocks_per_sm, args.warps_per_sm, args.occupancy_pct
    if isinstance(blocks, str) or isinstance(warps, str) or isinstance(occupancy, str):
        return 0.0
    resident_warps = occupancy / 100 * _MAX_WARPS_PER_SM
    return warps / resident_warps if blocks > 0 and resident_warps > 0 else 0.0


def _categories(events: list[_Event], name: Ints, strings: Strings) -> Any:
    """The category of each event; old files call their annotations operators."""
    texts = [event.cat for event in events]
    category = np.fromiter(
        (CATEGORY_OF_TEXT.get(text or "", Category.OTHER) for text in texts), np.uint8, len(texts)
    )
    if "user_annotation" not in texts:
        is_old = np.fromiter(
            (OLD_ANNOTATION_NAME.match(t) is not None for t in strings.texts), bool, len(strings)
        )
        if len(is_old):
            category[is_old[name] & (category == Category.CPU_OP)] = Category.ANNOTATION
    return category


def _integers(values: Sequence[int | str]) -> Ints:
    """Integers as they are; texts of integers parsed; any other text as its stable hash."""
    try:
        return np.array(values, np.int64) if len(values) else np.zeros(0, np.int64)
    except (ValueError, OverflowError, TypeError):
        return np.array([_integer(value) for value in values], np.int64)


def _integer(value: int | str) -> int:
    try:
        number = int(value)
    except ValueError:
        return crc32(str(value).encode())
    return number if -(2**63) <= number < 2**63 else NONE


def _thread_names(events: list[_Event]) -> dict[int, str]:
    return {
        _integer(event.tid): event.args.name
        for event in events
        if event.ph == "M" and event.name == "thread_name" and event.args and event.args.name
    }


def _explain(content: bytes, where: str, error: Exception) -> NoReturn:
    """Raise the decoder's complaint with the index of the event that it is about."""
    message = str(error).replace("`", "")
    try:
        events = msgspec.json.decode(content, type=_Shell).traceEvents
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        events = []
    decoder = msgspec.json.Decoder(_Event)
    for index, raw in enumerate(events):
        try:
            decoder.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as inner:
            message = re.sub(r"at \$", f"at traceEvents[{index}]", str(inner).replace("`", ""))
            if "traceEvents" not in message:
                message += f" - at traceEvents[{index}]"
            break
    raise TraceError(f"{where}: damaged trace: {message}") from None
