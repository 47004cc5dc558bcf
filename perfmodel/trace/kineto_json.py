"""The JSON of Kineto files: the fields that are ever built, and the event list block by block.

A document is decoded while it arrives. Its event list is cut between events into blocks small
enough to stay in the processor's cache, so that neither the text nor the decoded events of a
large file are ever in memory at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import islice
from operator import or_
from types import GenericAlias
from typing import Annotated, Any, NoReturn

import msgspec

from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE

NO_RAW = msgspec.Raw()
_OTHER_PHASES = "BEMICbneSTFpstfPNODVvRc(),="
"""The phases of Chrome's trace format besides `X` (complete) and `i` (instant), that of a beginning
first."""
_BLOCK_BYTES = 500_000
"""Of text decoded at once: its events, some times as large, stay in a processor's cache."""
_MAX_KEYS = 8
"""How many `traceEvents` are looked at for the one that is the document's own."""
_MAX_BRACES = 1000
"""How many `{` are looked at for one that begins an event."""
_MAX_SPACE = 64
"""Most white space that is looked for between two events."""

_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Id = int
"""Ids that PyTorch may write as -1 in 64 unsigned bits, which is none."""


class Args(msgspec.Struct, gc=False):
    """`args` of a complete event, in the order in which files write them."""

    external_id: _Id | str = msgspec.field(default=NONE, name="External id")
    old_external_id: _Id | str = msgspec.field(default=NONE, name="external id")
    op_id: _Id = msgspec.field(default=NONE, name="Record function id")
    sequence: _Id = msgspec.field(default=NONE, name="Sequence number")
    forward_thread: _Id = msgspec.field(default=NONE, name="Fwd thread id")
    input_shapes: msgspec.Raw = msgspec.field(default=NO_RAW, name="Input Dims")
    input_dtypes: msgspec.Raw = msgspec.field(default=NO_RAW, name="Input type")
    input_values: msgspec.Raw = msgspec.field(default=NO_RAW, name="Concrete Inputs")
    input_strides: msgspec.Raw = msgspec.field(default=NO_RAW, name="Input Strides")
    event_index: _Int = msgspec.field(default=NONE, name="Ev Idx")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    process_group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_size: _Int = msgspec.field(default=NONE, name="Group size")
    in_elements: _Int = msgspec.field(default=NONE, name="In msg nelems")
    out_elements: _Int = msgspec.field(default=NONE, name="Out msg nelems")
    collective_dtype: msgspec.Raw = msgspec.field(default=NO_RAW, name="dtype")
    in_split: msgspec.Raw = msgspec.field(default=NO_RAW, name="In split size")
    out_split: msgspec.Raw = msgspec.field(default=NO_RAW, name="Out split size")
    device: _Int | str = NONE
    stream: _Int | str = NONE
    correlation: _Int = NONE
    size_bytes: _Int | str = msgspec.field(default=NONE, name="bytes")
    blocks_per_sm: float | str = msgspec.field(default=0.0, name="blocks per SM")
    warps_per_sm: float | str = msgspec.field(default=0.0, name="warps per SM")
    grid: msgspec.Raw = NO_RAW
    occupancy_pct: float | str = msgspec.field(default=0.0, name="est. achieved occupancy %")
    sync_source_stream: _Id | str = msgspec.field(default=NONE, name="wait_on_stream")
    sync_record_correlation: _Id | str = msgspec.field(
        default=NONE, name="wait_on_cuda_event_record_corr_id"
    )

    @property
    def sync_stream(self) -> int | str:
        """Of `cuda_sync` events: the stream that waited or was waited for."""
        return self.stream


_Time = (
    Annotated[int, msgspec.Meta(ge=-(2**52), le=2**52)]
    | Annotated[float, msgspec.Meta(gt=-(2.0**43), lt=2.0**43)]
)
"""Microseconds that a float64 holds to the nanosecond (`columns.rounded_ns`)."""


class Complete(msgspec.Struct, gc=False, kw_only=True, tag="X", tag_field="ph"):
    """An event with a start and a duration."""

    cat: str = ""
    name: str = ""
    pid: _Int | str = NONE
    tid: _Int | str = NONE
    ts: _Time
    dur: _Time
    id: _Int | str = NONE
    args: Args | None = None


_Number = int | float | str | None


class MemoryArgs(msgspec.Struct, gc=False):
    """`args` of an instant event, as far as those of allocations have them."""

    size_bytes: _Number = msgspec.field(default=0, name="Bytes")
    address: _Number = msgspec.field(default=NONE, name="Addr")
    allocated_bytes: _Number = msgspec.field(default=NONE, name="Total Allocated")
    reserved_bytes: _Number = msgspec.field(default=NONE, name="Total Reserved")
    device_type: _Number = msgspec.field(default=NONE, name="Device Type")
    device: _Number = msgspec.field(default=NONE, name="Device Id")
    event_index: _Number = msgspec.field(default=NONE, name="Ev Idx")


class Instant(msgspec.Struct, gc=False, kw_only=True, tag="i", tag_field="ph"):
    """An event without a duration; of those, allocations are used."""

    name: str = ""
    pid: _Int | str = NONE
    tid: _Int | str = NONE
    ts: _Time
    args: MemoryArgs | None = None


class Other(msgspec.Struct, gc=False):
    """A flow arrow, counter or name: its fields are checked, none is used."""

    id: _Int | str = NONE
    pid: _Int | str = NONE
    tid: _Int | str = NONE
    ts: float = 0.0
    dur: float = 0.0


Event = Complete | Instant | Other


class Device(msgspec.Struct, gc=False):
    """One entry of `deviceProperties`."""

    name: str = ""
    totalGlobalMem: _Int = 0


class Distributed(msgspec.Struct, gc=False):
    """`distributedInfo`."""

    rank: _Int | None = None
    world_size: _Int | None = None


class File(msgspec.Struct, gc=False):
    """The document but its events."""

    traceEvents: msgspec.Raw = NO_RAW
    deviceProperties: list[Device] = []
    distributedInfo: Distributed | None = None
    baseTimeNanoseconds: _Int = 0


def _tagged(phase: str, base: type = Other, raw: tuple[str, ...] = ()) -> Any:
    fields = [(name, msgspec.Raw) for name in raw]
    return msgspec.defstruct(
        f"Phase{ord(phase)}", fields, bases=(base,), tag=phase, tag_field="ph", gc=False
    )


OTHERS = tuple(map(_tagged, _OTHER_PHASES))
"""Events that are checked, and not used."""


def _decoder(timed: Any, *, strict: bool = True) -> msgspec.json.Decoder[list[Event]]:
    event = reduce(or_, OTHERS, timed)
    return msgspec.json.Decoder(GenericAlias(list, (event,)), strict=strict)


ExactComplete, ExactInstant = _tagged("X", Complete, ("ts", "dur")), _tagged("i", Instant, ("ts",))
"""Their times stay text, to be parsed exactly; where they are read, a number may be a text."""
_QUICK = _decoder(Complete | Instant)
_EXACT = _decoder(ExactComplete | ExactInstant, strict=False)
_FILE_DECODER = msgspec.json.Decoder(File, strict=False)
_RAW_DECODER = msgspec.json.Decoder(msgspec.Raw)
_DAMAGES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LIST_START = re.compile(rb'"traceEvents"\s*:\s*\[')


class Document:
    """One Kineto document that arrives in `chunks`; `where` names it in errors.

    Iterating gives its events in lists, once; then `file` holds the other keys. Raises
    `TraceError` with the index of the event or the position of the byte that is wrong.
    """

    def __init__(self, chunks: Iterable[bytes], where: str) -> None:
        self.file = File()
        self._chunks = chunks
        self._where = where
        self._head = b""
        """The document up to the start of its event list; empty until that is found."""
        self._text = bytearray()
        """What follows and is not decoded yet."""
        self._offset = 0
        """Position of `_text` in the document."""
        self._count = 0
        """Number of events decoded."""
        self._decoder = _QUICK

    def __iter__(self) -> Iterator[list[Event]]:
        enough = _BLOCK_BYTES
        for chunk in self._chunks:
            self._text += chunk
            while (size := len(self._text)) >= enough:
                size = size if size < 2 * enough else enough  # a small rest would be moved about
                events = self._next_block(size) if self._head or self._enter_list() else None
                if events is None:
                    # Not cut between two events, or a damaged document, which shows once all of
                    # it is here. Doubling bounds how often a byte is decoded.
                    enough = 2 * len(self._text)
                else:
                    enough = _BLOCK_BYTES
                    yield events
                    del events  # so that the next ones take their place in the cache
        yield self._last_block()

    def _enter_list(self) -> bool:
        """Take the document's beginning off `_text`, once the event list has begun."""
        matches = islice(_LIST_START.finditer(self._text), _MAX_KEYS)
        for end in [match.end() for match in matches]:
            head = bytes(self._text[:end])
            try:
                _RAW_DECODER.decode(head + b"]}")  # valid if the key is one of the document's own
            except _DAMAGES:
                continue
            self._head, self._offset = head, end
            del self._text[:end]
            return True
        return False

    def _next_block(self, size: int) -> list[Event] | None:
        """The events of about the first `size` bytes; None if these end within an event."""
        comma = _last_comma(self._text, size)
        if comma < 0:
            return None
        block = b"".join((b"[", memoryview(self._text)[:comma], b"]"))
        try:
            _check_utf8(block)
            events = self._decoded(block)
        except msgspec.ValidationError as error:
            self._explain(error, prefix=1)
        except msgspec.DecodeError:
            return None
        except (UnicodeDecodeError, RecursionError) as error:
            self._explain(error, prefix=1)
        del self._text[: comma + 1]
        self._offset += comma + 1
        self._count += len(events)
        return events

    def _last_block(self) -> list[Event]:
        """The events that are left; sets `file`."""
        is_in_list = bool(self._head) or self._enter_list()
        text = self._head + self._text
        if not text:
            raise TraceError(f"{self._where}: the file is empty")
        try:
            _check_utf8(text)
            self.file = _FILE_DECODER.decode(text)
            events = self.file.traceEvents
            if not events:
                raise TraceError(f"{self._where}: no Kineto trace: it has no traceEvents")
            if is_in_list and not text.startswith(bytes(events), len(self._head) - 1):
                raise TraceError(f"{self._where}: damaged trace: traceEvents occurs twice")
            return self._decoded(events)
        except _DAMAGES as error:
            self._explain(error, prefix=len(self._head))

    def _decoded(self, events: bytes | msgspec.Raw) -> list[Event]:
        """A list of events, by the exact decoder from where the quick one finds what it cannot."""
        try:
            return self._decoder.decode(events)
        except msgspec.ValidationError:
            self._decoder = _EXACT
            return _EXACT.decode(events)

    def _explain(self, error: Exception, *, prefix: int) -> NoReturn:
        """Raise `error` as a `TraceError`; `_text` followed `prefix` bytes when it was decoded."""

        def place(at: int) -> int:
            return at if at < prefix else at - prefix + self._offset

        message = str(error).replace("`", "")
        if isinstance(error, UnicodeDecodeError):
            message = f"not UTF-8 (byte {error.start})"
        elif isinstance(error, RecursionError):
            message = f"nested too deeply (after byte {self._offset})"
        elif "truncated" in message:
            at = self._offset + len(self._text)
            message = f"it ends early, at byte {at}: the file was cut; copy it again"
        message = re.sub(r"\(byte (\d+)\)", lambda m: f"(byte {place(int(m[1]))})", message)
        message = re.sub(
            r"\$\[(\d+)\]", lambda m: f"traceEvents[{int(m[1]) + self._count}]", message
        ).replace("$.", "")
        raise TraceError(f"{self._where}: damaged trace: {message}") from None


def _check_utf8(text: bytes) -> None:
    """Raise `UnicodeDecodeError` where `text` is not UTF-8: the decoder skips what it drops."""
    if not text.isascii():
        text.decode()


def _last_comma(text: bytearray, before: int) -> int:
    """The last comma between a `}` and a `{` before a position; -1 if none is near."""
    brace = before
    for _ in range(_MAX_BRACES):
        brace = text.rfind(b"{", 0, brace)
        if brace < 0:
            break
        left = text[max(0, brace - _MAX_SPACE) : brace].rstrip()
        if left.endswith(b",") and left[:-1].rstrip().endswith(b"}"):
            return text.rfind(b",", 0, brace)
    return -1
