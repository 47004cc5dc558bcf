"""Chakra's protobuf messages, and streams of them: a varint length, then that many bytes.

Source: field names and numbers of github.com/mlcommons/chakra, schema/protobuf/et_def.proto
(package ChakraProtoMsg, commit 6dc63e147b9d). Storage details (field 11 of Node) are left out:
protobuf carries unknown fields along.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

_MAX_VARINT_BYTES = 10
_VARINT, _DELIMITED = 0, 2


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

    Raises `StreamError` for other wire types than varint and length-delimited.
    """
    at = 0
    while at < len(body):
        key, at = varint(body, at)
        size, at = varint(body, at)
        if key & 7 == _VARINT:
            yield key >> 3, _VARINT, None
        elif key & 7 == _DELIMITED and size <= len(body) - at:
            yield key >> 3, _DELIMITED, body[at : at + size]
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
