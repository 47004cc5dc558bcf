"""PyTorch execution traces (JSON, every published schema) to columns; spellings that JSON forbids.

Older PyTorch writes bare `inf` and `nan` among values; every PyTorch up to 2.13 writes the names
of user annotations without escaping control characters; Chakra's converter writes the arguments of
a node as Python's `repr` of a list.

The schemas: 1.0.0 and 1.0.1 are flat (`parent`, `inputs`, `input_shapes`); from
1.0.2-chakra.0.0.4 on a node has `ctrl_deps`, `inputs: {values, shapes, types}` and `attrs`; 1.1.0
adds collectives to the attributes; 1.1.1 adds `strides`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from perfmodel.errors import TraceError
from perfmodel.trace.execution_trace_build import (
    ATTRIBUTE_COLUMNS,
    RawNodes,
    build_execution_trace,
)
from perfmodel.trace.execution_trace_columns import ExecutionTrace
from perfmodel.trace.execution_trace_tensors import RawArguments

_TOKEN = re.compile(
    rb"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?"
    rb"|-?\b(?:inf|nan|Infinity|NaN)\b",
    re.DOTALL,
)
_PYTHON_TOKEN = re.compile(
    rb"\"[^\"\\]*(?:\\.[^\"\\]*)*\"?"
    rb"|'[^'\\]*(?:\\.[^'\\]*)*'?"
    rb"|-?\b(?:inf|nan)\b|\b(?:True|False|None)\b",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|U[0-9a-fA-F]{8}|.)|(\")", re.DOTALL)
_WORDS = {b"True": b"true", b"False": b"false", b"None": b"null"}
_EMPTY_LIST = b"[]"
_LAST_CHARACTER = 0x10FFFF


def repair_json(content: bytes) -> bytes:
    """`content` with bare infinities and NaN quoted and control characters in strings escaped."""
    return _TOKEN.sub(_repaired, content)


def json_list(text: str) -> bytes:
    """A list written as JSON or as Python's `repr`, as JSON; `[]` for no text at all.

    Raises `msgspec.MsgspecError` or `RecursionError` when it is neither.
    """
    if not text:
        return _EMPTY_LIST
    content = text.encode()
    try:
        msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        content = _PYTHON_TOKEN.sub(_from_python, content)
        msgspec.json.decode(content, type=list[msgspec.Raw])
    return content


def _escaped(match: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % match[0][0]


def _repaired(match: re.Match[bytes]) -> bytes:
    token = match[0]
    return _CONTROL.sub(_escaped, token) if token.startswith(b'"') else b'"%s"' % token


def _from_python(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[:1] in (b"'", b'"'):
        quote = token[:1]
        closed = len(token) > 1 and token.endswith(quote)
        body = token[1:-1] if closed else token[1:]
        body = _CONTROL.sub(_escaped, _ESCAPE.sub(_python_escape, body))
        return b'"%s"' % body if closed else b'"%s' % body
    return _WORDS.get(token) or b'"%s"' % token


def _python_escape(match: re.Match[bytes]) -> bytes:
    if match[2]:
        return b'\\"'
    code: bytes = match[1]
    if code == b"'":
        return b"'"
    if len(code) == 3:
        return b"\\u00" + code[1:]
    if len(code) == 9 and int(code[1:], 16) <= _LAST_CHARACTER:
        return chr(int(code[1:], 16)).encode(errors="replace")
    return b"\\" + code


FLAT_SCHEMAS = ("1.0.0", "1.0.1")
NESTED_SCHEMAS = (
    "1.0.2-chakra.0.0.4",
    "1.0.3-chakra.0.0.4",
    "1.1.0-chakra.0.0.4",
    "1.1.1-chakra.0.0.4",
)

_SNIFF_BYTES = 4096
_SCHEMA = re.compile(rb'"schema"\s*:\s*"\d+\.\d+\.\d+')
_NODES = re.compile(rb'"(?:nodes|ctrl_deps|rf_id|fw_parent)"\s*:')
_UTF8_MARK = b"\xef\xbb\xbf"
_EMPTY = msgspec.Raw(b"[]")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Parent = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] | None


class _Header(msgspec.Struct):
    nodes: msgspec.Raw
    schema: str | None = None


class _FlatNode(msgspec.Struct, gc=False):
    name: str
    id: Count
    parent: Parent = None
    rf_id: Count = 0
    scope: Count = 0
    tid: Count = 0
    op_schema: str = ""
    inputs: msgspec.Raw = _EMPTY
    input_shapes: msgspec.Raw = _EMPTY
    input_types: msgspec.Raw = _EMPTY
    outputs: msgspec.Raw = _EMPTY
    output_shapes: msgspec.Raw = _EMPTY
    output_types: msgspec.Raw = _EMPTY


class _Io(msgspec.Struct, gc=False):
    values: msgspec.Raw = _EMPTY
    shapes: msgspec.Raw = _EMPTY
    types: msgspec.Raw = _EMPTY
    strides: msgspec.Raw = _EMPTY


class _Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any


class _NestedNode(msgspec.Struct, gc=False):
    id: Count
    name: str
    ctrl_deps: Parent = None
    inputs: _Io = msgspec.field(default_factory=_Io)
    outputs: _Io = msgspec.field(default_factory=_Io)
    attrs: list[_Attribute] = []


_header = msgspec.json.Decoder(_Header, strict=False)
_flat = msgspec.json.Decoder(list[_FlatNode], strict=False)
_nested = msgspec.json.Decoder(list[_NestedNode], strict=False)
_T = TypeVar("_T")


def looks_like_execution_trace(content: bytes) -> bool:
    """Whether `content` is an execution trace in JSON, by its first and last few kilobytes."""
    head = content[:_SNIFF_BYTES].removeprefix(_UTF8_MARK).lstrip()
    if not head.startswith(b"{") or b'"traceEvents"' in head:
        return False
    ends = head + b"\n" + content[-_SNIFF_BYTES:]
    return _SCHEMA.search(ends) is not None and _NODES.search(ends) is not None


def decode_execution_trace(content: bytes, where: str) -> ExecutionTrace:
    """The execution trace in `content`, the text of a JSON file; `where` names it in messages.

    Raises `TraceError`, naming the byte, or the node and key: JSON that is cut or broken, an
    unknown schema, a value of the wrong type, an id that occurs twice, a parent that cannot be,
    parents that form a cycle, tensors that do not fit their types.
    """
    content = content.removeprefix(_UTF8_MARK)
    warnings: list[str] = []
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: byte {error.start} is not UTF-8 text") from None
    try:
        header = _decode(_header, content, where, "")
    except TraceError as error:
        repaired = repair_json(content)
        if repaired == content:
            raise
        try:
            header = _decode(_header, repaired, where, "")
        except TraceError:
            raise error from None
        warnings.append("the JSON had bare inf or nan, or control characters in texts: repaired")
    if header.schema not in (*FLAT_SCHEMAS, *NESTED_SCHEMAS):
        given = "no schema" if header.schema is None else f"unknown schema {header.schema!r:.60}"
        known = ", ".join((*FLAT_SCHEMAS, *NESTED_SCHEMAS))
        raise TraceError(f"{where}: {given}; the known ones are {known}")
    try:
        if header.schema in FLAT_SCHEMAS:
            raw = _from_flat(_decode(_flat, header.nodes, where, "nodes"))
        else:
            raw = _from_nested(_decode(_nested, header.nodes, where, "nodes"))
    except TraceError as error:
        if warnings:
            raise TraceError(f"{error} (bare nan and inf read as texts)") from None
        raise
    return build_execution_trace(raw, where, header.schema, warnings)


def _decode(
    decoder: msgspec.json.Decoder[_T], content: bytes | msgspec.Raw, where: str, key: str
) -> _T:
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        place = (key + path.rstrip("`")).lstrip(".")
        raise TraceError(f"{where}: {place + ': ' if place else ''}{message}") from None
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise TraceError(
                f"{where}: the JSON ends early, at byte {len(bytes(content))}: "
                "the file was cut; copy it again"
            ) from None
        raise TraceError(f"{where}: {error}") from None
    except (UnicodeDecodeError, RecursionError, ValueError, msgspec.MsgspecError) as error:
        raise TraceError(f"{where}: {str(error).splitlines()[0]}") from None


def _from_flat(nodes: list[_FlatNode]) -> RawNodes:
    no_strides = [b"[]"] * len(nodes)

    def arguments(values: str, shapes: str, types: str) -> RawArguments:
        given = [[bytes(getattr(n, key)) for n in nodes] for key in (values, shapes, types)]
        return RawArguments._make([*given, no_strides])

    return RawNodes(
        node_id=[n.id for n in nodes],
        name=[n.name for n in nodes],
        parent=[n.parent or 0 for n in nodes],
        rf_id=[n.rf_id for n in nodes],
        scope=[n.scope for n in nodes],
        thread=[n.tid for n in nodes],
        op_schema=[n.op_schema for n in nodes],
        attributes=[{}] * len(nodes),
        inputs=arguments("inputs", "input_shapes", "input_types"),
        outputs=arguments("outputs", "output_shapes", "output_types"),
    )


def _from_nested(nodes: list[_NestedNode]) -> RawNodes:
    attributes = [{a.name: a.value for a in n.attrs} for n in nodes]
    columns: dict[str, list[Any]] = {
        column: [a.pop(key, default) for a in attributes]
        for column, (key, default) in ATTRIBUTE_COLUMNS.items()
    }

    def arguments(io: list[_Io]) -> RawArguments:
        parts = RawArguments._fields
        return RawArguments(*([bytes(getattr(each, part)) for each in io] for part in parts))

    return RawNodes(
        node_id=[n.id for n in nodes],
        name=[n.name for n in nodes],
        parent=[n.ctrl_deps or 0 for n in nodes],
        **columns,
        attributes=attributes,
        inputs=arguments([n.inputs for n in nodes]),
        outputs=arguments([n.outputs for n in nodes]),
    )
