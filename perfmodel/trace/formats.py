"""Formats of trace files beside Kineto's: which documents each recognises, and how it reads them.

A plug-in adds one by the entry point `perfmodel.trace_formats`. Files of other tools that are not
read are named by what they begin with, with what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from perfmodel.base.registry import Registry
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


def member_suffixes() -> tuple[str, ...]:
    """How names of documents end."""
    more = (suffix for name in FORMATS for suffix in FORMATS[name].suffixes)
    return tuple(dict.fromkeys((".json", ".json.gz", *more)))


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


_HEAD_BYTES = 1 << 16
_ROCPD = "record it with `rocprofv3 --output-format rocpd`, or with torch.profiler"
_KINETO = "record it with torch.profiler (`export_chrome_trace`)"
_NSYS = "record it with `nsys profile` and give `nsys export --type sqlite`"


_OF_EVENTS = (
    (
        "a timeline of rocprof or roctracer",
        rb'"traceEvents"\s*:\s*\[\s*\{\s*\}|"name"\s*:\s*"(CPU HIP API|HSA API|CPU HSA API)"',
        _ROCPD,
    ),
    (
        "a trace view of Ascend's profiler (torch_npu, msprof)",
        rb'"name"\s*:\s*"(Ascend Hardware|AscendCL|CANN|Overlap Analysis)"',
        "its device rows are not known; " + _KINETO + " on a GPU, or give its execution trace",
    ),
    (
        "a profile of JAX or TensorFlow",
        rb'"name"\s*:\s*"/(device:(GPU|TPU):\d|host:CPU)',
        _KINETO,
    ),
    ("a timeline of Intel's PTI (unitrace)", rb'"cat"\s*:\s*"gpu_op"', _KINETO),
    ("a profile of ONNX Runtime", rb'"cat"\s*:\s*"Session"\s*,', _KINETO),
)
"""Files of Chrome's trace events: the tool, what is in their first bytes, and what to give."""
_OTHERS = (
    ("JSON of rocprofv3", rb'"rocprofiler-sdk-(tool|json)', _ROCPD),
    ("a database of rocmProfileData", rb'CREATE TABLE[^(]{0,40}rocpd_api"?', _ROCPD),
    (
        "a table of rocprof, rocprofv3 or rocprof-compute (Omniperf)",
        rb'\A"?(Dispatch_ID|Kind|Correlation_Id|Index|Guid)"?,"?'
        rb"(GPU_ID|Agent_Id|Dispatch_Id|KernelName|Kind|Kernel_Name)"
        rb"|\A.{0,4000}(rocprof-compute|rocprofiler-compute|omniperf)",
        _ROCPD,
    ),
    (
        "a memory timeline of torch.profiler (`export_memory_timeline`)",
        rb"\A\s*\[\s*\[(\s*-?\d+\s*,\s*[0-3]\s*,\s*-?\d+\s*,\s*-?\d+\s*\]"
        rb"|[-\d\s,.e+]+\]\s*,\s*\[\s*\[|[-\d\s,.e+]{60000})",
        "give `torch.cuda.memory._dump_snapshot`, or a profile with profile_memory=True",
    ),
    ("a report of Nsight Compute", rb'\ANVR\x00|\A"ID","Process ID"', _NSYS),
    ("a table of `nsys stats`", rb'\A"?Time \(%\)"?,', _NSYS),
    ("a table of the profiler's averages", rb"Self CPU %", _KINETO),
    (
        "Chakra's nodes as JSON (chakra_jsonizer)",
        rb'"(type|node_type)"\s*:\s*"?(COMP|COMM_COLL|COMM_SEND|COMM_RECV|MEM_LOAD)_NODE',
        "give the .et file itself",
    ),
)


class Foreign(str):
    """What a document of another tool is, and what to give instead."""

    __slots__ = ()


def foreign(content: bytes | bytearray, *, is_of_events: bool = False) -> Foreign | None:
    """Whose file it is by its beginning; None where it is of nobody known."""
    head = bytes(content[:_HEAD_BYTES])
    for tool, mark, instead in _OF_EVENTS if is_of_events else (*_OF_EVENTS, *_OTHERS):
        if re.search(mark, head, re.DOTALL):
            return Foreign(f"this is {tool}, which is not read: {instead}")
    return None
