"""PyTorch execution traces (JSON, every published schema) to columns.

The schemas: 1.0.0 and 1.0.1 are flat (`parent`, `inputs`, `input_shapes`); from
1.0.2-chakra.0.0.4 on a node has `ctrl_deps`, `inputs: {values, shapes, types}` and `attrs`; 1.1.0
adds collectives to the attributes; 1.1.1 adds `strides`.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE, Strings
from perfmodel.trace.execution_trace_arguments import (
    RECORD_NAME,
    Texts,
    process_groups,
    read_collective,
    read_tensors,
    repair_json,
)
from perfmodel.trace.execution_trace_columns import Arguments, ExecutionTrace

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
_EMPTY = msgspec.Raw(b"[]")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Parent = Annotated[int, msgspec.Meta(ge=NONE, le=2**63 - 1)]
_Scope = Annotated[int, msgspec.Meta(ge=0, le=255)]


class _Header(msgspec.Struct):
    nodes: msgspec.Raw
    schema: str | None = None


class _FlatNode(msgspec.Struct, gc=False):
    name: str
    id: _Count
    parent: _Parent | None = None
    rf_id: _Count = 0
    scope: _Count = 0
    tid: _Count = 0
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
    id: _Count
    name: str
    ctrl_deps: _Parent | None = None
    inputs: _Io = msgspec.field(default_factory=_Io)
    outputs: _Io = msgspec.field(default_factory=_Io)
    attrs: list[_Attribute] = []


_header = msgspec.json.Decoder(_Header, strict=False)
_flat = msgspec.json.Decoder(list[_FlatNode], strict=False)
_nested = msgspec.json.Decoder(list[_NestedNode], strict=False)
_T = TypeVar("_T")


def looks_like_execution_trace(content: bytes) -> bool:
    """Whether `content` is an execution trace in JSON, by its first and last few kilobytes."""
    head = content[:_SNIFF_BYTES].lstrip()
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
    content = content.removeprefix(codecs.BOM_UTF8)
    warnings: list[str] = []
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise TraceError(f"{where}: byte {error.start} is not UTF-8 text") from None
    try:
        header = _decode(_header, content, where, "")
    except TraceError as error:
        try:
            header = _decode(_header, repair_json(content), where, "")
        except (TraceError, ValueError, RecursionError, OverflowError):
            raise error from None
        warnings.append("the JSON had bare inf or nan, or control characters in texts: repaired")
    if header.schema not in (*FLAT_SCHEMAS, *NESTED_SCHEMAS):
        given = "no schema" if header.schema is None else f"unknown schema {header.schema!r:.60}"
        known = ", ".join((*FLAT_SCHEMAS, *NESTED_SCHEMAS))
        raise TraceError(f"{where}: {given}; the known ones are {known}")
    try:
        if header.schema in FLAT_SCHEMAS:
            raw = [_of_flat(node) for node in _decode(_flat, header.nodes, where, "nodes")]
        else:
            raw = [_of_nested(node) for node in _decode(_nested, header.nodes, where, "nodes")]
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
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        message = str(error).splitlines()[0]
        if isinstance(error, msgspec.DecodeError) and "truncated" in message:
            message = f"the JSON ends early, at byte {len(bytes(content))}: "
            message += "the file was cut; copy it again"
        raise TraceError(f"{where}: {message}") from None


class RawNode(NamedTuple):
    """A node as its file has it, not yet checked."""

    id: int
    name: str
    parent: int
    attributes: dict[str, Any]
    inputs: Texts
    outputs: Texts
    after: tuple[int, ...] = ()
    """Ids of nodes that it depends on, as the file itself declares."""


def _of_flat(node: _FlatNode) -> RawNode:
    return RawNode(
        node.id,
        node.name,
        node.parent or 0,
        {key: getattr(node, key) for key in ("rf_id", "scope", "tid", "op_schema")},
        (bytes(node.inputs), bytes(node.input_shapes), bytes(node.input_types), b"[]"),
        (bytes(node.outputs), bytes(node.output_shapes), bytes(node.output_types), b"[]"),
    )


def _of_nested(node: _NestedNode) -> RawNode:
    inputs, outputs = (
        (bytes(each.values), bytes(each.shapes), bytes(each.types), bytes(each.strides))
        for each in (node.inputs, node.outputs)
    )
    attributes = {each.name: each.value for each in node.attrs}
    return RawNode(node.id, node.name, node.ctrl_deps or 0, attributes, inputs, outputs)


def build_execution_trace(
    raw: list[RawNode], where: str, schema: str, warnings: list[str]
) -> ExecutionTrace:
    """The execution trace of nodes in the order of their file; raises `TraceError` naming the node
    and the key."""
    strings = Strings()
    unsorted_id = np.array(_checked([node.id for node in raw], _Count, "id", where), np.int64)
    order = np.argsort(unsorted_id, kind="stable")
    position = order.tolist()
    node_id = unsorted_id[order]
    twice = np.flatnonzero(node_id[1:] == node_id[:-1])
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        raise TraceError(
            f"{where}: nodes[{second}].id: id {node_id[twice[0]]} is already that of nodes[{first}]"
        )

    def attribute(key: str, kind: Any) -> Ints:
        values = [node.attributes.get(key, 0) for node in raw]
        return np.array(_checked(values, kind, key, where), np.int64)[order]

    def texts(values: list[str]) -> Ints:
        return strings.of(values).astype(np.int64)[order]

    def arguments(given: list[Texts], key: str) -> Arguments:
        tensors = read_tensors(given, key, position, strings, where)
        values, shapes, types, strides = ([texts[at] for texts in given] for at in range(4))
        return Arguments(values, shapes, types, strides, tensors)

    nodes = [raw[at] for at in position]
    name, thread = texts([node.name for node in raw]), attribute("tid", _Count)
    parents = _checked([node.parent for node in raw], _Parent, "parent", where)
    parent_id = np.array(parents, np.int64)[order]
    parent = _parents(parent_id, node_id, name, thread, strings, warnings)
    _refuse_cycle(parent, node_id, where)
    inputs = arguments([node.inputs for node in nodes], "inputs")
    outputs = arguments([node.outputs for node in nodes], "outputs")
    collectives, groups = {}, []
    for row, node in enumerate(nodes):
        if node.name == RECORD_NAME or "collective_name" in node.attributes:
            given = [each.tensors for each in (inputs, outputs)]
            tensors = [(each.elements[each.of(row)], each.dtype[each.of(row)]) for each in given]
            place = f"{where}: nodes[{position[row]}]"
            collectives[row] = read_collective(
                node.inputs, node.attributes, tensors, strings, place
            )
        if "process_group:init" in node.name:
            groups += process_groups(node.inputs[0], warnings)
    op_schemas = [node.attributes.get("op_schema", "") for node in raw]
    declared = [(before, node.id) for node in raw for before in node.after]
    return ExecutionTrace(
        where=where,
        schema=schema,
        strings=strings,
        node_id=node_id,
        name=name,
        parent=parent,
        rf_id=attribute("rf_id", _Count),
        scope=attribute("scope", _Scope),
        thread=thread,
        op_schema=texts(_checked(op_schemas, str, "op_schema", where)),
        inputs=inputs,
        outputs=outputs,
        collectives=collectives,
        process_groups=tuple(groups),
        declared=_declared(declared, node_id, warnings),
        warnings=warnings,
    )


def _checked(values: list[Any], kind: Any, key: str, where: str) -> list[Any]:
    """`values`; raises `TraceError` at the first that is not of a type."""
    try:
        return msgspec.convert(values, list[kind])
    except msgspec.ValidationError as error:
        message, _, at = str(error).partition(" - at `$")
        raise TraceError(f"{where}: nodes{at.rstrip('`')}.{key}: {message}") from None


def _rows(ids: Ints, node_id: Ints) -> Ints:
    """Row of each id, `NONE` where no node has it."""
    if not len(node_id):
        return np.full(len(ids), NONE, np.int64)
    row = np.minimum(np.searchsorted(node_id, ids), len(node_id) - 1)
    return np.where(node_id[row] == ids, row, NONE)


def _parents(
    parent_id: Ints, node_id: Ints, name: Ints, thread: Ints, strings: Strings, warnings: list[str]
) -> Ints:
    """Rows of the parents; roots are their own parent, or have parent 0 or an absent node 1.

    PyTorch writes a node when its op returns: an op that was still open when recording stopped
    is missing although its children name it, and files that were filtered lack more. Children of
    what is missing go to their thread's own node, with a warning.
    """
    parent = _rows(parent_id, node_id)
    parent[parent_id == node_id] = NONE
    lost = (parent == NONE) & (parent_id > 1) & (parent_id != node_id)
    if lost.any():
        thread_names = [i for i, t in enumerate(strings.texts) if t.endswith("|thread]")]
        homes = np.flatnonzero(np.isin(name, thread_names) & ~lost)
        home_of = dict(zip(thread[homes].tolist(), homes.tolist(), strict=True))
        parent[lost] = [home_of.get(number, NONE) for number in thread[lost].tolist()]
        is_later = bool((parent_id > node_id)[lost].any())
        why = "" if is_later else " (still open when recording stopped)"
        warnings.append(
            f"{int(lost.sum())} nodes were called by {len(np.unique(parent_id[lost]))} ops that "
            f"are not in the file{why}"
        )
    return parent


def _refuse_cycle(parent: Ints, node_id: Ints, where: str) -> None:
    reached = parent.copy()
    for _ in range(len(parent).bit_length()):
        reached = np.where(reached >= 0, reached[reached], NONE)
    looping = reached[reached >= 0][:1].tolist()
    if not looping:
        return
    while parent[looping[-1]] != looping[0]:
        looping.append(int(parent[looping[-1]]))
    ids = [str(node_id[row]) for row in (*looping, looping[0])]
    shown = " -> ".join(ids[:6]) + (" -> ..." if len(ids) > 6 else "")
    raise TraceError(f"{where}: the parents of nodes form a cycle: {shown}")


def _declared(pairs: list[tuple[int, int]], node_id: Ints, warnings: list[str]) -> Ints:
    ids = np.array(pairs, np.uint64).reshape(-1, 2)
    rows = _rows(ids.astype(np.int64).ravel(), node_id).reshape(-1, 2)
    lost = np.flatnonzero(rows[:, 0] == NONE)
    if len(lost):
        before, after = pairs[lost[0]]
        warnings.append(
            f"{len(lost)} dependencies are on nodes that are not in the file: left out (node "
            f"{after} on {before})"
        )
    return np.unique(rows[rows[:, 0] != NONE], axis=0)
