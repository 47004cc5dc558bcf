"""Formats of trace files beside Kineto's: which documents each recognises, and how it reads them.

A plug-in adds one by the entry point `perfmodel.trace_formats`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

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
    decode: Callable[[bytes, str], TracePart | tuple[RankTrace, ...]]
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


def _format(module: str, suffixes: tuple[str, ...] = ()) -> TraceFormat:
    """The format of one of our modules, which loads when it is needed."""

    def later(verb: str) -> Callable[..., Any]:
        return lambda *given: getattr(
            import_module(f"perfmodel.trace.{module}"), f"{verb}_{module}"
        )(*given)

    return TraceFormat(later("looks_like"), later("decode"), suffixes)


FORMATS.register("execution_trace")(_format("execution_trace"))
FORMATS.register("protobuf_execution_trace")(_format("chakra", (".et",)))
FORMATS.register("nsight")(_format("nsight", (".sqlite",)))
FORMATS.register("memory_snapshot")(_format("memory_snapshot", (".pickle",)))
FORMATS.register("sqlite")(_format("sqlite", (".db",)))
