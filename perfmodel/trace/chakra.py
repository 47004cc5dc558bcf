"""Chakra protobuf traces (`.et`): a GlobalMetadata message, then one Node message per node.

Every message follows its length as a varint. Source: field names and numbers of
github.com/mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg, commit
6dc63e147b9d); storage details (field 11 of Node) are left out. Chakra's converter from PyTorch
keeps what the JSON had: the arguments as text, everything else as attributes of the node.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from perfmodel.errors import TraceError
from perfmodel.trace.execution_trace import json_list
from perfmodel.trace.execution_trace_build import (
    ATTRIBUTE_COLUMNS,
    RawNodes,
    build_execution_trace,
)
from perfmodel.trace.execution_trace_tensors import RawArguments

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

_MAX_VARINT_BYTES = 10
_VARINT, _DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
"""Wire types of numbers of one size, and that."""


class StreamError(ValueError):
    """A length that is broken or reaches beyond the content."""


def varint(content: bytes | memoryview, start: int) -> tuple[int, int]:
    """The unsigned varint at `start`, and where it ends; raises `StreamError`."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if start + index >= len(content):
            raise StreamError(f"the content ends early, at byte {len(content)}")
        byte = content[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise StreamError(f"no length at byte {start}")


def message_fields(body: memoryview) -> Iterator[tuple[int, int, memoryview | None]]:
    """(number, wire type, bytes) of each field of a protobuf message; no bytes for a varint.

    Raises `StreamError` for groups, and for fields that reach beyond the message.
    """
    at = 0
    while at < len(body):
        key, at = varint(body, at)
        kind = key & 7
        size = _FIXED_BYTES.get(kind)
        if size is None:
            size, at = varint(body, at)
        if key >> 3 and kind == _VARINT:
            yield key >> 3, _VARINT, None
        elif key >> 3 and (kind == _DELIMITED or kind in _FIXED_BYTES) and size <= len(body) - at:
            yield key >> 3, kind, body[at : at + size]
            at += size
        else:
            raise StreamError(f"no field at byte {at}")


def delimited_messages(content: bytes) -> Iterator[tuple[int, memoryview]]:
    """(first byte, body) of each message; raises `StreamError` before reading beyond the end."""
    view = memoryview(content)
    at = 0
    while at < len(view):
        size, start = varint(view, at)
        if size > len(view) - start:
            raise StreamError(
                f"the message at byte {start} says {size} bytes, {len(view) - start} are left: "
                "the file was cut or is not a Chakra trace"
            )
        yield start, view[start : start + size]
        at = start + size


PACKAGE = "ChakraProtoMsg"

NODE_TYPES = (
    "INVALID_NODE",
    "METADATA_NODE",
    "MEM_LOAD_NODE",
    "MEM_STORE_NODE",
    "COMP_NODE",
    "COMM_SEND_NODE",
    "COMM_RECV_NODE",
    "COMM_COLL_NODE",
    "STORAGE_NODE",
    "BATCH_NODE",
    "CHECKPOINT_NODE",
)

_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_FIRST_VALUE_FIELD = 3


class Messages(NamedTuple):
    """The message classes."""

    metadata: Any
    node: Any


@lru_cache(maxsize=1)
def messages() -> Messages:
    """The classes of GlobalMetadata and Node, from a pool of their own; loads `protobuf`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="perfmodel_chakra.proto", package=PACKAGE, syntax="proto3"
    )

    def message(name: str) -> Any:
        return file.message_type.add(name=name)

    def add(to: Any, name: str, number: int, kind: str, *, many: bool = False) -> Any:
        label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        added = to.field.add(name=name, number=number, label=label)
        if kind in _SCALARS:
            added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        else:
            added.type = kinds.TYPE_ENUM if kind == "NodeType" else kinds.TYPE_MESSAGE
            added.type_name = f".{PACKAGE}.{kind}"
        return added

    attribute = message("AttributeProto")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    number = _FIRST_VALUE_FIELD
    for scalar in _SCALARS:
        values = f"{scalar.capitalize()}List"
        add(message(values), "values", 1, scalar, many=True)
        add(attribute, f"{scalar}_val", number, scalar).oneof_index = 0
        add(attribute, f"{scalar}_list", number + 1, values).oneof_index = 0
        number += 2

    metadata = message("GlobalMetadata")
    add(metadata, "version", 1, "string")
    add(metadata, "attr", 2, "AttributeProto", many=True)

    node_types = file.enum_type.add(name="NodeType")
    for code, name in enumerate(NODE_TYPES):
        node_types.value.add(name=name, number=code)

    arguments = message("IOInfo")
    for code, name in enumerate(("values", "shapes", "types"), start=1):
        add(arguments, name, code, "string")

    node = message("Node")
    add(node, "id", 1, "uint64")
    add(node, "name", 2, "string")
    add(node, "type", 3, "NodeType")
    add(node, "ctrl_deps", 4, "uint64", many=True)
    add(node, "data_deps", 5, "uint64", many=True)
    add(node, "start_time_micros", 6, "uint64")
    add(node, "duration_micros", 7, "uint64")
    add(node, "inputs", 8, "IOInfo")
    add(node, "outputs", 9, "IOInfo")
    add(node, "attr", 10, "AttributeProto", many=True)

    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    ]
    return Messages(*classes)


_VERSION_FIELD = 1
_METADATA_FIELDS = {1: {_DELIMITED}, 2: {_DELIMITED}}
_NODE_FIELDS = {
    **{field: {_VARINT} for field in (1, 3, 6, 7)},
    **{field: {_DELIMITED} for field in (2, 8, 9, 10)},
    **{field: {_VARINT, _DELIMITED} for field in (4, 5)},
}
"""Wire types of the fields that are known; those of later schemas are passed over."""
_MAX_VERSION_BYTES = 64
_VERSION = re.compile(rb"[\w.+-]*")


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
    found = list(message_fields(body))
    versions = [bytes(value or b"") for field, _, value in found if field == _VERSION_FIELD]
    return _fits(found, _METADATA_FIELDS) and all(
        len(version) <= _MAX_VERSION_BYTES and _VERSION.fullmatch(version) for version in versions
    )


def _is_node(body: memoryview) -> bool:
    found = list(message_fields(body))
    return any(field in _NODE_FIELDS for field, *_ in found) and _fits(found, _NODE_FIELDS)


def _fits(found: list[tuple[int, int, memoryview | None]], known: dict[int, set[int]]) -> bool:
    return all(kind in known.get(field, {kind}) for field, kind, _ in found)


def decode_chakra(content: bytes, where: str) -> ExecutionTrace:
    """The execution trace in a Chakra stream; `where` names it in messages.

    Raises `TraceError`, naming the byte or the node: lengths beyond the content, messages that
    are no protobuf, numbers that are none, and whatever `decode_execution_trace` refuses.
    """
    from google.protobuf.message import DecodeError

    kinds = messages()
    schema: str | None = None
    raw = RawNodes()
    try:
        for start, body in delimited_messages(content):
            try:
                if schema is None:
                    metadata = kinds.metadata.FromString(bytes(body))
                    attributes = _attributes(metadata, f"{where}: metadata")
                    schema = str(attributes.get("schema", f"chakra.{metadata.version}"))
                else:
                    node = kinds.node.FromString(bytes(body))
                    _add_node(raw, node, f"{where}: nodes[{len(raw.node_id)}]")
            except DecodeError as error:
                which = "the metadata" if schema is None else f"nodes[{len(raw.node_id)}]"
                message = (str(error).splitlines() or ["no protobuf message"])[0]
                raise TraceError(f"{where}: {which} at byte {start}: {message}") from None
    except StreamError as error:
        raise TraceError(f"{where}: {error}") from None
    if schema is None:
        raise TraceError(f"{where}: empty, not a Chakra trace")
    return build_execution_trace(raw, where, schema, [])


def _add_node(raw: RawNodes, node: Any, place: str) -> None:
    """Append a node message to the raw lists; its times are the profile's to know."""
    attributes = _attributes(node, place)
    raw.node_id.append(node.id)
    raw.name.append(node.name)
    raw.parent.append(node.ctrl_deps[0] if node.ctrl_deps else node.id)
    raw.declared += ((before, node.id) for before in (*node.ctrl_deps[1:], *node.data_deps))
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
    raw.attributes.append(attributes)


def _attributes(message: Any, place: str) -> dict[str, Any]:
    """The attributes of a message by name; raises `TraceError` for NaN and infinities."""
    result = {}
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
        result[attribute.name] = value
    return result
