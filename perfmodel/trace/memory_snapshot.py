"""Memory snapshots of PyTorch (`torch.cuda.memory._snapshot()`), as pickles or as JSON.

Source: the schema in `torch/cuda/_memory_viz.py` and the documentation of `torch.cuda.memory`
("Understanding CUDA Memory Usage").

Of a pickle only the few operations that dictionaries, lists, texts and numbers need are known, and
all others are refused, so that no code of a file is ever run.

Sizes are those of blocks, multiples of 512 bytes, as `torch.cuda.memory_allocated` counts them; the
trace's events have what was asked for. Memory is free with `free_completed` (`free` in old files).
What was held at the end is known from the segments, so totals are absolute even where the trace
has lost its beginning, and they are all there is where no history was recorded.
"""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, Allocations, RankTrace, rank_from_events

_SIGNS = {
    "alloc": (1, 0),
    "free_completed": (-1, 0),
    "free": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_map": (0, 1),
    "segment_free": (0, -1),
    "segment_unmap": (0, -1),
}
"""By action of an event: what it adds its size to, allocated and reserved memory."""
_HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")
"""States of a block whose memory nobody else can have."""
_BLOCK_BYTES = 512
"""Blocks are multiples of it. What the allocator leaves in a block beyond that (up to 1 MiB) is
known of blocks that are in use at the end."""
_CUDA = 1
_PROTOCOL = b"\x80"
_MOST = 2**62
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]
_TIME_LIMIT = msgspec.Meta(ge=0, lt=_MOST // 1000)
_T = TypeVar("_T")


class _Event(msgspec.Struct):
    action: str
    time_us: Annotated[int, _TIME_LIMIT] | Annotated[float, _TIME_LIMIT]
    addr: _Whole
    size: _Whole


class _Block(msgspec.Struct):
    state: str
    size: _Whole


class _Segment(msgspec.Struct):
    total_size: _Whole
    blocks: list[_Block]
    device: _Whole = 0
    address: _Whole = 0


class _Snapshot(msgspec.Struct):
    device_traces: list[Any] = []
    segments: list[Any] | None = None


@dataclass
class _End:
    """What a device held when the snapshot was taken; `NONE` where no segments are in it."""

    allocated: int = 0
    reserved: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    """Bytes of those in use, by address."""


def looks_like_memory_snapshot(content: bytes) -> bool:
    """Whether `content` is a pickle or JSON that names traces of devices, or lists segments."""
    if content[:1] not in (_PROTOCOL, b"{", b"["):
        return False
    of_segments = (b"total_size", b"blocks", b"active_size")
    return b"device_traces" in content or all(key in content for key in of_segments)


def decode_memory_snapshot(content: bytes, where: str) -> RankTrace:
    """The allocations of one process, under an annotation as long as they; `where` names the file.

    Raises `TraceError`, naming place and field: for a pickle of anything but plain values, for
    missing fields, values of another type, and for a snapshot without events and segments.
    """
    try:
        is_pickle = content.startswith(_PROTOCOL)
        found = (values_of_pickle if is_pickle else json.loads)(content)
    except (ValueError, RecursionError) as error:
        message = (str(error).splitlines() or ["nested too deeply"])[0][:100]
        raise TraceError(f"{where}: damaged memory snapshot: {message}") from None
    if isinstance(found, list):  # of torch.cuda.memory_snapshot()
        found = {"segments": found}
    snapshot = _converted(found, _Snapshot, where)
    ends = _held_at_the_end(snapshot.segments, where, len(content))
    other = _End(NONE, NONE) if ends is None else _End()
    traces = snapshot.device_traces
    if not all(isinstance(each, list) for each in traces):
        raise TraceError(f"{where}: device_traces: expected a list of events per device")
    if sum(map(len, traces)) > len(content):
        raise TraceError(f"{where}: device_traces: damaged: more events than bytes")
    parts, failed = [], 0
    for device, events in enumerate(traces):
        known, lost = _events(events, where, f"device_traces[{device}]")
        failed += lost
        if known:
            parts.append(_of_device(known, device, (ends or {}).get(device, other)))
    warnings = ["a memory snapshot: nothing is known but what allocators did"]
    if not parts:
        totals = [(0, at, 0, NONE, end.allocated, end.reserved) for at, end in (ends or {}).items()]
        if not totals:
            raise TraceError(f"{where}: a memory snapshot without events: record the history first")
        parts = [np.array(totals, np.int64).T]
        warnings.append(
            "no history was recorded (torch.cuda.memory._record_memory_history): totals of the "
            "snapshot's segments at its end are all that is known"
        )
    if failed:
        warnings.append(f"{failed} allocations failed for lack of memory")
    table = np.concatenate(parts, axis=1)
    at_ns, *columns = table[:, np.argsort(table[0], kind="stable")]
    event = {"category": int(Category.ANNOTATION), "name": "memory snapshot", "thread": 0}
    event |= {"start_ns": int(at_ns[0]), "duration_ns": int(at_ns[-1] - at_ns[0])}
    memory = Allocations((at_ns - at_ns[0]) / 1e3, np.full(len(at_ns), _CUDA), *columns)
    return replace(rank_from_events(where, [event]), memory=memory, warnings=warnings)


def _converted(value: Any, kind: type[_T], where: str, key: str = "") -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        place = (key + path.rstrip("`")).lstrip(".")
        raise TraceError(f"{where}: {place}: {message}") from None


def _events(events: list[Any], where: str, key: str) -> tuple[list[_Event], int]:
    """The events that change what is held, in order of time, and how many failed."""
    known, failed = [], 0
    for at, each in enumerate(events):
        action = each.get("action") if isinstance(each, dict) else None
        if not isinstance(action, str):
            raise TraceError(f"{where}: {key}[{at}]: expected an event with an action")
        if action in _SIGNS:
            known.append(_converted(each, _Event, where, f"{key}[{at}]"))
        failed += action == "oom"
    if sum(each.size for each in known) >= _MOST:
        raise TraceError(f"{where}: {key}: sizes that sum to 4 EiB or more")
    return sorted(known, key=lambda event: event.time_us), failed


def _held_at_the_end(given: list[Any] | None, where: str, most: int) -> dict[int, _End] | None:
    """What is held in the segments, by device; `most` blocks can be in the file."""
    if given is None:
        return None
    blocks = [each.get("blocks") for each in given if isinstance(each, dict)]
    if sum(len(each) for each in blocks if isinstance(each, list)) > most:
        raise TraceError(f"{where}: segments: damaged: more blocks than bytes")
    ends: defaultdict[int, _End] = defaultdict(_End)
    for at, segment in enumerate(_converted(given, list[_Segment], where, "segments")):
        end, address = ends[segment.device], segment.address
        end.reserved += segment.total_size
        for block in segment.blocks:
            if block.state in _HELD:
                end.allocated += block.size
                if address:
                    end.blocks[address] = block.size
            address += block.size if address else 0
        if max(end.allocated, end.reserved) >= _MOST:
            raise TraceError(f"{where}: segments[{at}]: sizes that sum to 4 EiB or more")
    return ends


def _of_device(events: list[_Event], device: int, end: _End) -> Ints:
    """`[column, event]`: time, device, change, address, and the totals after it. What an event
    takes or gives back are the bytes of its block, not those asked for."""
    last = {each.addr: at for at, each in enumerate(events) if _SIGNS[each.action][0]}
    sizes, addresses = [], []
    for at, each in enumerate(events):
        is_of_block = bool(_SIGNS[each.action][0])
        size = max(-(-each.size // _BLOCK_BYTES), 1) * _BLOCK_BYTES if is_of_block else each.size
        if each.action == "alloc" and last[each.addr] == at:
            size = end.blocks.get(each.addr, size)
        sizes.append(size)
        addresses.append(each.addr if is_of_block else NONE)
    changes = np.array([_SIGNS[each.action] for each in events]) * np.array(sizes)[:, None]
    totals = np.cumsum(changes, axis=0)
    totals += np.array([end.allocated, end.reserved]) - totals[-1]
    if end.allocated == NONE:
        totals[:] = NONE
    at_ns = [round(each.time_us * 1000) for each in events]
    return np.array([at_ns, [device] * len(events), changes[:, 0], addresses, *totals.T], np.int64)


def _as_list(count: int) -> Callable[[Any], None]:
    def load(reader: Any) -> None:
        reader.stack[-count:] = [reader.stack[-count:]]

    return load


_READ = pickle._Unpickler.dispatch
_KNOWN = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.BINPUT),
    *(pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.NONE, pickle.NEWTRUE),
    *(pickle.NEWFALSE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4),
    *(pickle.BINFLOAT, pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.SETITEM),
    *(pickle.SETITEMS, pickle.APPEND, pickle.APPENDS),
)
_TUPLES = (pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)


class _PlainValues(pickle._Unpickler):
    """Python's reader in Python (the one in C allocates what a file asks for), of the operations
    that dictionaries, lists, texts and numbers need: nothing is imported or called. Tuples become
    lists: the hash of one as a key would follow it however deep it is."""

    dispatch: ClassVar[dict[int, Any]] = {
        **{code[0]: _READ[code[0]] for code in _KNOWN},
        **{code[0]: _as_list(count) for count, code in enumerate(_TUPLES, start=1)},
        pickle.TUPLE[0]: _READ[pickle.LIST[0]],
        pickle.EMPTY_TUPLE[0]: _READ[pickle.EMPTY_LIST[0]],
    }


def values_of_pickle(content: bytes) -> Any:
    """What a pickle of plain values holds; `ValueError` for any other operation or damage."""
    try:
        return _PlainValues(BytesIO(content)).load()
    except KeyError as error:
        raise ValueError(f"its pickle wants more than plain values ({error}): not read") from None
    except Exception as error:  # whatever the operations of a damaged one come to
        raise ValueError(f"no sound pickle ({type(error).__name__})") from None
