"""Formats of trace files beside Kineto's: which documents each recognises, and how it reads them.

A plug-in adds one by the entry point `perfmodel.trace_formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perfmodel.registry import Registry
from perfmodel.trace.columns import RankTrace

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

TracePart: TypeAlias = "RankTrace | ExecutionTrace"


@dataclass(frozen=True)
class TraceFormat:
    """`recognises` tells by a document's content (decompressed, never empty) whether it is one, and
    never raises; `decode` gets the content and a name for errors, and raises `TraceError` that
    names the place. In folders and archives, files that end in one of `suffixes` are looked at."""

    recognises: Callable[[bytes], bool]
    decode: Callable[[bytes, str], TracePart]
    suffixes: tuple[str, ...] = ()


FORMATS: Registry[TraceFormat] = Registry("trace format", "perfmodel.trace_formats")
"""In the order of their names; the first that recognises a document reads it."""

_ARCHIVES = (".tar.gz", ".tgz")
_JSON = (".json", ".json.gz")


def member_suffixes() -> tuple[str, ...]:
    """How names of documents end."""
    return tuple(dict.fromkeys((*_JSON, *(s for name in FORMATS for s in FORMATS[name].suffixes))))


def file_suffixes() -> tuple[str, ...]:
    """How names of files end that hold documents."""
    return (*member_suffixes(), *_ARCHIVES)


# Readers load when they are needed.
def _is_execution_trace(content: bytes) -> bool:
    from perfmodel.trace.execution_trace import looks_like_execution_trace

    return looks_like_execution_trace(content)


def _execution_trace(content: bytes, where: str) -> TracePart:
    from perfmodel.trace.execution_trace import decode_execution_trace

    return decode_execution_trace(content, where)


def _is_chakra(content: bytes) -> bool:
    from perfmodel.trace.chakra import looks_like_chakra

    return looks_like_chakra(content)


def _chakra(content: bytes, where: str) -> TracePart:
    from perfmodel.trace.chakra import decode_chakra

    return decode_chakra(content, where)


FORMATS.register("execution_trace")(TraceFormat(_is_execution_trace, _execution_trace))
FORMATS.register("protobuf_execution_trace")(TraceFormat(_is_chakra, _chakra, (".et",)))
