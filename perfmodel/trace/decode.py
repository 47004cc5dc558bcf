"""What one file holds: profiles and execution traces, told apart by their content."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfmodel.errors import TraceError
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.documents import documents
from perfmodel.trace.kineto import decode_kineto
from perfmodel.trace.window import Window, find_window, trimmed

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace import ExecutionTrace

_SNIFF_BYTES = 512
_KINETO_KEY = b'"traceEvents"'
_RECORD_KEY = b'"perfmodel.collect.'
OWN_RECORD = "record"
"""What the collector writes beside its traces: no trace, and nothing to warn of."""


class Options(NamedTuple):
    """What is asked of every file of a trace; see `read`."""

    max_bytes: int
    steps: slice | None = None
    context: int = 0


class Found(NamedTuple):
    """One document: where it stands, what it holds, and the window of it that was read."""

    where: str
    part: RankTrace | ExecutionTrace | str | None
    """`OWN_RECORD` beside our own traces; None for other JSON that is no trace."""
    window: Window | None


def decode(path: str | Path, options: Options) -> list[Found]:
    """The documents of one file, or of `-`: standard input.

    Raises `TraceError` (or `PerfmodelError` from reading) naming file and place.
    """
    windows = _windows(path, options)
    return [
        Found(where, _decode(chunks, where, windows.get(where)), windows.get(where))
        for where, chunks in documents(path, options.max_bytes)
    ]


def _windows(path: str | Path, options: Options) -> dict[str, Window]:
    """The window of a file of ranks with steps; none for standard input and archives."""
    if options.steps is None or str(path) == "-":
        return {}
    found = {
        where: find_window(chunks, options.steps, options.context)
        for where, chunks in documents(path, options.max_bytes)
        if Path(where).is_file()
    }
    return {where: window for where, window in found.items() if window is not None}


def _decode(
    chunks: Iterator[bytes], where: str, window: Window | None = None
) -> RankTrace | ExecutionTrace | str | None:
    """What a document holds. Readers load when they are needed."""
    head = bytearray()
    for chunk in chunks:
        head += chunk
        if _KINETO_KEY in head:
            rank = decode_kineto(chain((bytes(head),), chunks), where, window)
            return rank if window is None else trimmed(rank, window)
    content = bytes(head)
    first = content[:_SNIFF_BYTES].lstrip()[:1]
    if not first:
        raise TraceError(f"{where}: the file is empty")
    if first == b"<":
        raise TraceError(f"{where}: this is a web page or XML, not a trace; download the raw file")
    from perfmodel.trace import chakra, execution_trace

    if execution_trace.looks_like_execution_trace(content):
        return execution_trace.decode_execution_trace(content, where)
    if _RECORD_KEY in content:
        return OWN_RECORD
    if first in (b"{", b"["):
        return None
    if chakra.looks_like_chakra(content):
        return chakra.decode_chakra(content, where)
    raise TraceError(f"{where}: neither a Kineto trace nor an execution trace")
