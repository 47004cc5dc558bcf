"""Chakra protobuf traces (`.et`): a GlobalMetadata message, then one Node message per node.

Every message follows its length as a varint. Chakra's converter from PyTorch keeps what the
JSON had: the arguments as text, everything else as attributes of the node.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfmodel.errors import TraceError
from perfmodel.trace.chakra_messages import (
    NODE_TYPES,
    StreamError,
    delimited_messages,
    message_fields,
    messages,
)
from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace import json_list
from perfmodel.trace.execution_trace_build import (
    ATTRIBUTE_COLUMNS,
    Header,
    RawNodes,
    as_int64,
    build_execution_trace,
)
from perfmodel.trace.execution_trace_tensors import RawArguments

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

_VERSION_FIELD, _ATTRIBUTE_FIELD = 1, 2
_LAST_NODE_FIELD = 11
_MAX_VERSION_BYTES = 64
_VERSION = re.compile(rb"[\w.+-]*")
_INT64_MAX = 2**63 - 1
_RECORD = "record_param_comms"
_DERIVED = ("comm_type", "comm_size")
"""Attributes that other tools want of a collective and that follow from the rest."""


def looks_like_chakra(content: bytes) -> bool:
    """Whether the first two messages of `content` are GlobalMetadata and Node; never raises."""
    try:
        stream = delimited_messages(content)
        metadata = next(stream, None)
        if metadata is None or not _is_metadata(metadata[1]):
            return False
        node = next(stream, None)
        return bool(metadata[1]) if node is None else _is_node(node[1])
    except StreamError:
        return False


def _is_metadata(body: memoryview) -> bool:
    for field, _, value in message_fields(body):
        if field not in (_VERSION_FIELD, _ATTRIBUTE_FIELD) or value is None:
            return False
        if field == _VERSION_FIELD:
            version = bytes(value)
            if len(version) > _MAX_VERSION_BYTES or not _VERSION.fullmatch(version):
                return False
    return True


def _is_node(body: memoryview) -> bool:
    return len(body) > 0 and all(
        0 < field <= _LAST_NODE_FIELD for field, _, _ in message_fields(body)
    )


def decode_chakra(content: bytes, where: str) -> ExecutionTrace:
    """The execution trace in a Chakra stream; `where` names it in messages.

    Raises `TraceError`, naming the byte or the node: lengths beyond the content, messages that
    are no protobuf, numbers that are none, and whatever `decode_execution_trace` refuses.
    """
    from google.protobuf.message import DecodeError

    kinds = messages()
    header: Header | None = None
    raw = RawNodes()
    start_us: list[int] = []
    duration_us: list[int] = []
    try:
        for start, body in delimited_messages(content):
            try:
                if header is None:
                    header = _header(kinds.metadata.FromString(bytes(body)), where)
                else:
                    node = kinds.node.FromString(bytes(body))
                    _add_node(raw, node, f"{where}: nodes[{len(raw.node_id)}]")
                    start_us.append(node.start_time_micros)
                    duration_us.append(node.duration_micros)
            except DecodeError as error:
                which = "the metadata" if header is None else f"nodes[{len(raw.node_id)}]"
                message = (str(error).splitlines() or ["no protobuf message"])[0]
                raise TraceError(f"{where}: {which} at byte {start}: {message}") from None
    except StreamError as error:
        raise TraceError(f"{where}: {error}") from None
    if header is None:
        raise TraceError(f"{where}: empty, not a Chakra trace")
    if any(start_us) or any(duration_us):
        starts = as_int64(start_us, "start_time_micros", where, 0, 2**53)
        durations = as_int64(duration_us, "duration_micros", where, 0, 2**53)
        without = (starts == 0) & (durations == 0)
        raw.start_us = np.where(without, np.nan, starts).tolist()
        raw.duration_us = np.where(without, np.nan, durations).tolist()
    return build_execution_trace(raw, header)


def _add_node(raw: RawNodes, node: Any, place: str) -> None:
    """Append a node message, but its times, to the raw lists."""
    attributes = _attributes(node, place)
    raw.node_id.append(node.id)
    raw.name.append(node.name)
    raw.parent.append(node.ctrl_deps[0] if node.ctrl_deps else node.id)
    raw.declared += ((before, node.id) for before in (*node.ctrl_deps[1:], *node.data_deps))
    known = 0 <= node.type < len(NODE_TYPES)
    raw.node_type.append(NODE_TYPES[node.type] if known else f"NODE_TYPE_{node.type}")
    for column, (key, default) in ATTRIBUTE_COLUMNS.items():
        getattr(raw, column).append(attributes.pop(key, default))
    for key, target, source in (
        ("input", raw.inputs, node.inputs),
        ("output", raw.outputs, node.outputs),
    ):
        strides = attributes.pop(f"{key}_strides", "")
        texts = (source.values, source.shapes, source.types, strides)
        for part, into, text in zip(RawArguments._fields, target, texts, strict=True):
            try:
                into.append(json_list(text))
            except (msgspec.MsgspecError, RecursionError, AttributeError) as error:
                raise TraceError(f"{place}.{key}s.{part}: {error}") from None
    if "collective_name" in attributes or node.name == _RECORD:
        for key in _DERIVED:
            attributes.pop(key, None)
    raw.attributes.append(attributes)


def _header(metadata: Any, where: str) -> Header:
    attributes = _attributes(metadata, f"{where}: metadata")
    numbers = {}
    for key in ("pid", "start_ts", "finish_ts"):
        value = attributes.get(key, NONE)
        if type(value) is not int or not NONE <= value <= _INT64_MAX:
            raise TraceError(f"{where}: metadata.{key}: expected an integer, got {value!r:.60}")
        numbers[key] = value
    schema = attributes.get("schema", f"chakra.{metadata.version}")
    return Header(
        where=where,
        schema=str(schema),
        pid=numbers["pid"],
        recorded=str(attributes.get("time", "")),
        start_ms=numbers["start_ts"],
        finish_ms=numbers["finish_ts"],
    )


def _attributes(message: Any, place: str) -> dict[str, Any]:
    """The attributes of a message by name; raises `TraceError` for NaN and infinities."""
    found = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is None:
            continue
        value = getattr(attribute, kind)
        if kind.endswith("_list"):
            value = list(value.values)
        if kind.startswith("bytes"):
            value = value.hex() if kind == "bytes_val" else [item.hex() for item in value]
        elif kind.startswith(("double", "float")):
            numbers = value if isinstance(value, list) else [value]
            if not all(map(math.isfinite, numbers)):
                raise TraceError(f"{place}.attr.{attribute.name}: {value} is not a finite number")
        found[attribute.name] = value
    return found
