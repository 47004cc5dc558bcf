"""Memory snapshots of PyTorch (`torch.cuda.memory._snapshot()`), as pickles or as JSON.

Source: the schema in `torch/cuda/_memory_viz.py` and the documentation of `torch.cuda.memory`
("Understanding CUDA Memory Usage").

A pickle is never given to `pickle`: `values_of_pickle` reads the few operations that dictionaries,
lists, texts and numbers need, and refuses all others, so that no code of a file is ever run.

Sizes are those of blocks, multiples of 512 bytes, as `torch.cuda.memory_allocated` counts them; the
trace's events have what was asked for. Memory is free with `free_completed` (`free` in old files).
What was held at the end is known from the segments, so totals are absolute even where the trace
has lost its beginning, and they are all there is where no history was recorded.
"""

from __future__ import annotations

import json
import pickletools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, Allocations, RankTrace
from perfmodel.trace.sqlite import rank_from_events

TRACES, SEGMENTS = "device_traces", "segments"
ALLOCATED = {"alloc": 1, "free_completed": -1, "free": -1}
RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_KNOWN = {*ALLOCATED, *RESERVED}
FAILED = "oom"
HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")
"""States of a block whose memory nobody else can have."""
NAME = "memory snapshot"
BLOCK_BYTES = 512
"""Blocks are multiples of it. What the allocator leaves in a block beyond that (up to 1 MiB) is
known of blocks that are in use at the end."""
_OF_SEGMENTS = (b"total_size", b"blocks", b"active_size")
_CUDA = 1
_PROTOCOL = b"\x80"
_MOST = 2**62


def looks_like_memory_snapshot(content: bytes) -> bool:
    """Whether `content` is a pickle or JSON that names traces of devices, or lists segments."""
    if content[:1] not in (_PROTOCOL, b"{", b"["):
        return False
    return TRACES.encode() in content or all(key in content for key in _OF_SEGMENTS)


def decode_memory_snapshot(content: bytes, where: str) -> RankTrace:
    """The allocations of one process, under an annotation as long as they; `where` names the file.

    Raises `TraceError`, naming place and field: for a pickle of anything but plain values, for
    missing fields, values of another type, and for a snapshot without events and segments.
    """
    found = _values(content, where)
    if isinstance(found, list):  # of torch.cuda.memory_snapshot()
        found = {SEGMENTS: found}
    traces = found.get(TRACES, []) if isinstance(found, dict) else None
    if not isinstance(traces, list) or not all(isinstance(each, list) for each in traces):
        raise TraceError(f"{where}: {TRACES}: expected a list of events per device")
    if sum(map(len, traces)) > len(content):
        raise TraceError(f"{where}: {TRACES}: damaged: more events than bytes")
    at_the_end = _at_the_end(found.get(SEGMENTS), where, len(content))
    rows: list[tuple[int, ...]] = []
    failed = 0
    for device, events in enumerate(traces):
        place = f"{where}: {TRACES}[{device}]"
        plain = [_event(each, f"{place}[{at}]") for at, each in enumerate(events)]
        failed += sum(action == FAILED for action, *_ in plain)
        if sum(size for *_, size in plain) >= _MOST:
            raise TraceError(f"{place}: sizes that sum to 4 EiB or more")
        rows += _of_device(plain, device, at_the_end.get(device, at_the_end[_OTHERS]))
    has_history = bool(rows)
    if not has_history:
        ends = {device: end for device, end in at_the_end.items() if device != _OTHERS}
        rows = [(0, at, 0, NONE, end.allocated, end.reserved) for at, end in ends.items()]
    if not rows:
        raise TraceError(f"{where}: a memory snapshot without events: record the history first")
    rows.sort(key=lambda row: row[0])
    at_ns, *columns = np.array(rows, np.int64).T
    span = {"start_ns": int(at_ns[0]), "duration_ns": int(at_ns[-1] - at_ns[0])}
    event = {"category": int(Category.ANNOTATION), "name": NAME, "thread": 0} | span
    rank = rank_from_events(where, [event])
    rank.warnings.append("a memory snapshot: nothing is known but what allocators did")
    if not has_history:
        rank.warnings.append(
            "no history was recorded (torch.cuda.memory._record_memory_history): totals of the "
            "snapshot's segments at its end are all that is known"
        )
    if failed:
        rank.warnings.append(f"{failed} allocations failed for lack of memory")
    kinds = np.full(len(rows), _CUDA)
    return replace(rank, memory=Allocations((at_ns - at_ns[0]) / 1e3, kinds, *columns))


Event = tuple[str, int, int, int]
"""Action, nanoseconds, address, bytes."""


def _event(given: object, place: str) -> Event:
    if not isinstance(given, dict) or not isinstance(given.get("action"), str):
        raise TraceError(f"{place}: expected an event with an action")
    action: str = given["action"]
    if action not in _KNOWN:
        return action, 0, NONE, 0
    time_us: Any = given.get("time_us")
    is_number = isinstance(time_us, (int, float)) and not isinstance(time_us, bool)
    if not is_number or not 0 <= time_us < _MOST // 1000:
        raise TraceError(f"{place}.time_us: expected microseconds, found {_shown(time_us)}")
    address, size = (_whole(given.get(key), f"{place}.{key}") for key in ("addr", "size"))
    return action, round(time_us * 1000), address, size


def _whole(value: object, place: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise TraceError(f"{place}: expected a whole number, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """What an error shows of a value: of lists and dictionaries their kind, since those that a few
    bytes of a pickle refer to again and again are endless."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= _MOST:
        return "a larger one"
    return repr(str(value)[:30])


_OTHERS = NONE
"""Devices that no segment is of."""


@dataclass
class _End:
    """What a device held when the snapshot was taken; `NONE` where no segments are in it."""

    allocated: int = 0
    reserved: int = 0
    blocks: dict[int, int] = field(default_factory=dict)
    """Bytes of those in use, by address."""


def _at_the_end(segments: object, where: str, most_blocks: int) -> dict[int, _End]:
    """What is held in the segments, by device."""
    if segments is None:
        return {_OTHERS: _End(NONE, NONE)}
    ends = {_OTHERS: _End()}
    for at, segment in enumerate(_dictionaries(segments, f"{where}: {SEGMENTS}")):
        place = f"{where}: {SEGMENTS}[{at}]"
        end = ends.setdefault(_whole(segment.get("device", 0), f"{place}.device"), _End())
        total = _whole(segment.get("total_size"), f"{place}.total_size")
        address = _whole(segment.get("address", 0), f"{place}.address")
        end.reserved += total
        blocks = _dictionaries(segment.get("blocks"), f"{place}.blocks")
        most_blocks -= len(blocks)
        if most_blocks < 0:
            raise TraceError(f"{place}.blocks: damaged: more blocks than bytes")
        for number, block in enumerate(blocks):
            if not isinstance(block.get("state"), str):
                raise TraceError(f"{place}.blocks[{number}].state: expected a text")
            size = _whole(block.get("size"), f"{place}.blocks[{number}].size")
            if block["state"] in HELD:
                end.allocated += size
                if address:
                    end.blocks[address] = size
            address += size if address else 0
        if max(end.allocated, end.reserved) >= _MOST:
            raise TraceError(f"{place}: sizes that sum to 4 EiB or more")
    return ends


def _dictionaries(given: object, place: str) -> Sequence[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise TraceError(f"{place}: expected a list of dictionaries")
    return given


def _of_device(events: Sequence[Event], device: int, end: _End) -> Iterator[tuple[int, ...]]:
    """Per event of a device: time, device, change, address, and the totals after it."""
    known = sorted((e for e in events if e[0] in _KNOWN), key=lambda event: event[1])
    sizes = _block_sizes(known, end)
    signs = [(ALLOCATED.get(action, 0), RESERVED.get(action, 0)) for action, *_ in known]
    changes = np.array([s * size for (s, _), size in zip(signs, sizes, strict=True)], np.int64)
    moves = np.array([s * size for (_, s), size in zip(signs, sizes, strict=True)], np.int64)
    totals = [_ending_at(changes, end.allocated), _ending_at(moves, end.reserved)]
    for (action, at_ns, address, _), change, *held in zip(
        known, changes.tolist(), *(each.tolist() for each in totals), strict=True
    ):
        yield at_ns, device, change, address if action in ALLOCATED else NONE, *held


def _block_sizes(known: Sequence[Event], end: _End) -> list[int]:
    """Bytes that each event takes or gives back: of its block, not what was asked for."""
    last = {address: at for at, (action, _, address, _) in enumerate(known) if action in ALLOCATED}
    return [
        size
        if action not in ALLOCATED
        else end.blocks[address]
        if action == "alloc" and last[address] == at and address in end.blocks
        else max(-(-size // BLOCK_BYTES), 1) * BLOCK_BYTES
        for at, (action, _, address, size) in enumerate(known)
    ]


def _ending_at(changes: Ints, last: int) -> Ints:
    """Totals after each change, of which the last is known; `NONE` where it is not."""
    if last == NONE:
        return np.full(len(changes), NONE)
    sums = np.cumsum(changes)
    return sums + (last - int(sums[-1])) if len(sums) else sums


def _values(content: bytes, where: str) -> Any:
    """The plain values in a pickle, or in JSON."""
    try:
        if content.startswith(_PROTOCOL):
            return values_of_pickle(content)
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        message = (str(error).splitlines() or ["nested too deeply"])[0][:100]
        raise TraceError(f"{where}: damaged memory snapshot: {message}") from None


_PUSHED = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": list}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_PLAIN = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2"),
    *("LONG1", "LONG4", "BINFLOAT"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


def values_of_pickle(content: bytes) -> Any:
    """What a pickle of dictionaries (with texts as keys), lists, tuples (as lists), texts, numbers
    and None holds. Nothing is imported and nothing called; `ValueError` for any other operation."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name in _PLAIN:
                stack.append(argument)
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _PUSHED:
                stack.append(_PUSHED[name]())
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _TUPLES:
                stack[-_TUPLES[name] :] = [stack[-_TUPLES[name] :]]
            elif name in _ENDED:
                _ENDED[name](stack, _taken(stack))
            elif name in _ONE:
                count = _ONE[name]
                items = stack[-count:]
                del stack[-count:]
                _ENDED[f"{name}S"](stack, items)
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"its pickle wants more than plain values ({name}): not read")
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no sound pickle ({type(error).__name__})") from None
    raise ValueError("its pickle has no end")


def _taken(stack: list[Any]) -> list[Any]:
    """What lies above the last mark; it and the mark are taken off."""
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        if at < 0:
            raise IndexError("no mark")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _set(stack: list[Any], items: list[Any]) -> None:
    target = stack[-1]
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str) or not isinstance(target, dict):
            raise TypeError("a key that is no text")
        target[key] = value


def _extend(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise TypeError("no list")
    stack[-1].extend(items)


def _push(stack: list[Any], items: list[Any]) -> None:
    stack.append(items)


_ENDED: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "SETITEMS": _set,
    "APPENDS": _extend,
    "TUPLE": _push,
}
_ONE = {"SETITEM": 2, "APPEND": 1}
