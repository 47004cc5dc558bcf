"""Chakra protobuf traces (`.et`): a GlobalMetadata message, then one Node message per node.

Every message follows its length as a varint. Source: field names and numbers of
github.com/mlcommons/chakra, schema/protobuf/et_def.proto (package ChakraProtoMsg, commit
6dc63e147b9d); storage details (field 11 of Node) are left out. Chakra's converter from PyTorch
keeps what the JSON had: the arguments as text, everything else as attributes of the node.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.errors import TraceError
from perfmodel.trace.execution_trace import RawNode, build_execution_trace
from perfmodel.trace.execution_trace_arguments import PARTS, json_list

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace

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
_FIELDS = {
    **{f"{scalar.capitalize()}List": f"1 values* {scalar}" for scalar in _SCALARS},
    "AttributeProto": "1 name string, 2 doc_string string",
    "GlobalMetadata": "1 version string, 2 attr* AttributeProto",
    "IOInfo": "1 values string, 2 shapes string, 3 types string",
    "Node": (
        "1 id uint64, 2 name string, 3 type NodeType, 4 ctrl_deps* uint64, 5 data_deps* uint64, "
        "6 start_time_micros uint64, 7 duration_micros uint64, 8 inputs IOInfo, 9 outputs IOInfo, "
        "10 attr* AttributeProto"
    ),
}
"""Fields of each message as number, name and type; those with a `*` are repeated. One value of an
attribute, of any scalar type or a list of it, is added by `messages`."""
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
    node_types = file.enum_type.add(name="NodeType")
    for code, name in enumerate(NODE_TYPES):
        node_types.value.add(name=name, number=code)

    def add(message: Any, number: int, name: str, kind: str) -> Any:
        label = kinds.LABEL_REPEATED if name.endswith("*") else kinds.LABEL_OPTIONAL
        added = message.field.add(name=name.rstrip("*"), number=number, label=label)
        if kind in _SCALARS:
            added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
        else:
            added.type = kinds.TYPE_ENUM if kind == "NodeType" else kinds.TYPE_MESSAGE
            added.type_name = f".{PACKAGE}.{kind}"
        return added

    added = {name: file.message_type.add(name=name) for name in _FIELDS}
    for message, fields in _FIELDS.items():
        for field in fields.split(", "):
            number, name, kind = field.split()
            add(added[message], int(number), name, kind)
    attribute = added["AttributeProto"]
    attribute.oneof_decl.add(name="value")
    for at, scalar in enumerate(_SCALARS):
        first = _FIRST_VALUE_FIELD + 2 * at
        add(attribute, first, f"{scalar}_val", scalar).oneof_index = 0
        add(attribute, first + 1, f"{scalar}_list", f"{scalar.capitalize()}List").oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    metadata, node = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("GlobalMetadata", "Node")
    )
    return Messages(metadata, node)


_VERSION = re.compile(r"[\w.+-]{0,64}", re.ASCII)


def looks_like_chakra(content: bytes) -> bool:
    """Whether the first two messages of `content` are GlobalMetadata and Node; never raises."""
    if content[:1] in (b"", b"{", b"["):
        return False
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed
    from google.protobuf.unknown_fields import UnknownFieldSet

    stream = BytesIO(content)
    try:
        found = [parse_length_prefixed(kind, stream) for kind in messages()]
    except (DecodeError, ValueError):
        return False
    for each in filter(None, found):  # a field that is known has another type
        unknown = {field.field_number for field in UnknownFieldSet(each)}
        if unknown & {*each.DESCRIPTOR.fields_by_number}:
            return False
    metadata, node = found
    if not metadata.ByteSize():
        return node is not None and node.ByteSize() > 0
    return bool(metadata.version or metadata.attr) and bool(_VERSION.fullmatch(metadata.version))


def decode_chakra(content: bytes, where: str) -> ExecutionTrace:
    """The execution trace in a Chakra stream; `where` names it in messages.

    Raises `TraceError`, naming the byte or the node: lengths beyond the content, messages that
    are no protobuf, numbers that are none, and whatever `decode_execution_trace` refuses.
    """
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    kinds, stream = messages(), BytesIO(content)
    schema: str | None = None
    raw: list[RawNode] = []
    while (start := stream.tell()) < len(content):
        place = "the metadata" if schema is None else f"nodes[{len(raw)}]"
        try:
            kind = kinds.metadata if schema is None else kinds.node
            message = parse_length_prefixed(kind, stream)
        except (DecodeError, ValueError) as error:
            said = (str(error).splitlines() or ["no protobuf message"])[0]
            why = f"{said}: the file was cut, is damaged, or is not a Chakra trace"
            raise TraceError(f"{where}: {place} at byte {start}: {why}") from None
        if schema is None:
            attributes = _attributes(message, f"{where}: {place}")
            schema = str(attributes.get("schema", f"chakra.{message.version}"))
        else:
            raw.append(_node(message, f"{where}: {place}"))
    if schema is None:
        raise TraceError(f"{where}: empty, not a Chakra trace")
    return build_execution_trace(raw, where, schema, [])


def _node(message: Any, place: str) -> RawNode:
    """A node message; its times are the profile's to know."""
    attributes = _attributes(message, place)
    texts = []
    for key, given in (("input", message.inputs), ("output", message.outputs)):
        strides, parts = attributes.pop(f"{key}_strides", ""), []
        written = (given.values, given.shapes, given.types, strides)
        for part, text in zip(PARTS, written, strict=True):
            try:
                parts.append(json_list(text))
            except (ValueError, RecursionError, AttributeError) as error:
                raise TraceError(f"{place}.{key}s.{part}: {error}") from None
        texts.append(tuple(parts))
    first, *others = message.ctrl_deps or [message.id]
    after = (*others, *message.data_deps)
    return RawNode(message.id, message.name, first, attributes, texts[0], texts[1], after)


def _attributes(message: Any, place: str) -> dict[str, Any]:
    """The attributes of a message by name; raises `TraceError` for NaN and infinities."""
    result = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        if kind is None:
            continue
        value = getattr(attribute, kind)
        values = list(value.values) if kind.endswith("_list") else [value]
        if kind.startswith("bytes"):
            values = [each.hex() for each in values]
        if not all(math.isfinite(each) for each in values if isinstance(each, float)):
            raise TraceError(f"{place}.attr.{attribute.name}: {values[0]} is not a finite number")
        result[attribute.name] = values if kind.endswith("_list") else values[0]
    return result
