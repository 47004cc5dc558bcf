"""Chakra protobuf traces (`.et`): a GlobalMetadata message, then one Node message per node.

Every message follows its length as a varint. Chakra's converter from PyTorch keeps what the
JSON had: the arguments as text, everything else as attributes of the node.
"""

from __future__ import annotations

import math
import re
from operator import mul
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfmodel.errors import TraceError
from perfmodel.trace.chakra_messages import (
    COLLECTIVE_TYPES,
    NODE_TYPES,
    StreamError,
    delimited_messages,
    encode_varint,
    message_fields,
    messages,
)
from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace import json_list
from perfmodel.trace.execution_trace_build import Header, RawNodes, as_int64, build_execution_trace
from perfmodel.trace.execution_trace_tensors import RawArguments

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace


CHAKRA_VERSION = "0.0.4"

_VERSION_FIELD, _ATTRIBUTE_FIELD = 1, 2
_LAST_NODE_FIELD = 11
_MAX_VERSION_BYTES = 64
_VERSION = re.compile(rb"[\w.+-]*")
_NaN = float("nan")
_INT64_MAX = 2**63 - 1
_COLLECTIVE_OF_NAME = {
    "allreduce": "ALL_REDUCE",
    "allreduce_coalesced": "ALL_REDUCE",
    "reduce": "REDUCE",
    "allgather": "ALL_GATHER",
    "_allgather_base": "ALL_GATHER",
    "allgather_into_tensor_coalesced": "ALL_GATHER",
    "gather": "GATHER",
    "scatter": "SCATTER",
    "broadcast": "BROADCAST",
    "all_to_all": "ALL_TO_ALL",
    "all_to_allv": "ALL_TO_ALL",
    "reduce_scatter": "REDUCE_SCATTER",
    "_reduce_scatter_base": "REDUCE_SCATTER",
    "reduce_scatter_tensor_coalesced": "REDUCE_SCATTER",
    "barrier": "BARRIER",
}
_COLUMNS = (
    ("rf_id", 0),
    ("fw_parent", 0),
    ("seq_id", NONE),
    ("scope", 0),
    ("tid", 0),
    ("fw_tid", 0),
    ("op_schema", ""),
    ("kernel_backend", ""),
    ("kernel_file", ""),
    ("input_strides", ""),
    ("output_strides", ""),
)
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
    reader = _NodeReader(raw, where)
    try:
        for start, body in delimited_messages(content):
            try:
                if header is None:
                    header = _header(kinds.metadata.FromString(bytes(body)), where)
                else:
                    reader.add(kinds.node.FromString(bytes(body)))
            except DecodeError as error:
                which = "the metadata" if header is None else f"nodes[{len(raw.node_id)}]"
                message = (str(error).splitlines() or ["no protobuf message"])[0]
                raise TraceError(f"{where}: {which} at byte {start}: {message}") from None
    except StreamError as error:
        raise TraceError(f"{where}: {error}") from None
    if header is None:
        raise TraceError(f"{where}: empty, not a Chakra trace")
    reader.finish(header)
    return build_execution_trace(raw, header)


def encode_chakra(trace: ExecutionTrace) -> bytes:
    """`trace` as a Chakra stream, nodes in order of id; `decode_chakra` gives the same trace back.

    Except that `data_deps` holds all data dependencies, times are rounded to whole microseconds,
    attributes that are JSON objects or mixed lists become texts, and warnings are not carried.
    Raises `TraceError` for a negative time.
    """
    kinds = messages()
    metadata = kinds.metadata(version=CHAKRA_VERSION)
    known = {"schema": trace.schema, "time": trace.recorded} | {
        key: value
        for key, value in (
            ("pid", trace.pid),
            ("start_ts", trace.start_ms),
            ("finish_ts", trace.finish_ms),
        )
        if value != NONE
    }
    _set_attributes(metadata, known)
    out = [_framed(metadata)]
    producer, consumer = trace.data_dependencies()
    first = np.searchsorted(consumer, np.arange(len(trace) + 1)).tolist()
    producer_id = trace.node_id[producer].tolist()
    derived = _derived_attributes(trace)
    for row in range(len(trace)):
        node = kinds.node(
            id=int(trace.node_id[row]),
            name=trace.text(row),
            type=_type_code(trace.strings[int(trace.node_type[row])]),
            data_deps=producer_id[first[row] : first[row + 1]],
        )
        if trace.parent[row] != NONE:
            node.ctrl_deps.append(int(trace.node_id[trace.parent[row]]))
        _set_times(node, trace, row)
        for target, source in ((node.inputs, trace.inputs), (node.outputs, trace.outputs)):
            target.values = trace.documents[source.values[row]].decode()
            target.shapes = trace.documents[source.shapes[row]].decode()
            target.types = trace.documents[source.types[row]].decode()
        _set_attributes(node, _node_attributes(trace, row) | derived.get(row, {}))
        out.append(_framed(node))
    return b"".join(out)


class _NodeReader:
    """Node messages to raw lists."""

    def __init__(self, raw: RawNodes, where: str) -> None:
        self._raw = raw
        self._where = where
        self._columns: dict[str, list[Any]] = {key: [] for key, _ in _COLUMNS}
        self._start: list[int] = []
        self._duration: list[int] = []

    def add(self, node: Any) -> None:
        raw = self._raw
        place = f"{self._where}: nodes[{len(raw.node_id)}]"
        attributes = _attributes(node, place)
        raw.node_id.append(node.id)
        raw.name.append(node.name)
        raw.parent.append(node.ctrl_deps[0] if node.ctrl_deps else node.id)
        raw.declared += ((before, node.id) for before in node.ctrl_deps[1:])
        raw.declared += ((before, node.id) for before in node.data_deps)
        raw.node_type.append(_type_name(node.type))
        for key, default in _COLUMNS:
            self._columns[key].append(attributes.pop(key, default))
        for key in _DERIVED if "collective_name" in attributes or _is_record(node) else ():
            attributes.pop(key, None)
        raw.attributes.append(attributes)
        self._start.append(node.start_time_micros)
        self._duration.append(node.duration_micros)
        for key, target, source in (
            ("input", raw.inputs, node.inputs),
            ("output", raw.outputs, node.outputs),
        ):
            texts = (
                source.values,
                source.shapes,
                source.types,
                self._columns[f"{key}_strides"][-1],
            )
            for part, into, text in zip(RawArguments._fields, target, texts, strict=True):
                try:
                    into.append(json_list(text))
                except (msgspec.MsgspecError, RecursionError, AttributeError) as error:
                    raise TraceError(f"{place}.{key}s.{part}: {error}") from None

    def finish(self, header: Header) -> None:
        """Move what was gathered on the way into the raw lists."""
        raw, columns = self._raw, self._columns
        raw.rf_id = columns["rf_id"]
        raw.fw_parent = columns["fw_parent"]
        raw.sequence = columns["seq_id"]
        raw.scope = columns["scope"]
        raw.thread = columns["tid"]
        raw.fw_thread = columns["fw_tid"]
        raw.op_schema = columns["op_schema"]
        raw.kernel_backend = columns["kernel_backend"]
        raw.kernel_file = columns["kernel_file"]
        if any(self._start) or any(self._duration):
            start = as_int64(self._start, "start_time_micros", header.where, 0, 2**53)
            duration = as_int64(self._duration, "duration_micros", header.where, 0, 2**53)
            without = (start == 0) & (duration == 0)
            raw.start_us = np.where(without, _NaN, start).tolist()
            raw.duration_us = np.where(without, _NaN, duration).tolist()


def _is_record(node: Any) -> bool:
    return bool(node.name == "record_param_comms")


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


def _set_attributes(message: Any, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        items = value if isinstance(value, list) else [value]
        kind = _scalar_kind(items)
        if kind is None:
            items, value, kind = [], msgspec.json.encode(value).decode(), "string"
        attribute = message.attr.add(name=name)
        if isinstance(value, list):
            getattr(attribute, f"{kind}_list").values.extend(items)
            getattr(attribute, f"{kind}_list").SetInParent()
        else:
            setattr(attribute, f"{kind}_val", value)


def _scalar_kind(items: list[Any]) -> str | None:
    types = set(map(type, items))
    if types <= {bool}:
        return "bool"
    if types == {int}:
        low, high = min(items), max(items)
        if low >= -_INT64_MAX - 1 and high <= _INT64_MAX:
            return "int64"
        return "uint64" if low >= 0 and high <= 2 * _INT64_MAX + 1 else None
    return {float: "double", str: "string"}.get(types.pop()) if len(types) == 1 else None


def _node_attributes(trace: ExecutionTrace, row: int) -> dict[str, Any]:
    parent = int(trace.fw_parent[row])
    found = {
        "rf_id": int(trace.rf_id[row]),
        "fw_parent": int(trace.node_id[parent]) if parent != NONE else 0,
        "seq_id": int(trace.sequence[row]),
        "scope": int(trace.scope[row]),
        "tid": int(trace.thread[row]),
        "fw_tid": int(trace.fw_thread[row]),
        "op_schema": trace.strings[int(trace.op_schema[row])],
        "kernel_backend": trace.strings[int(trace.kernel_backend[row])],
        "kernel_file": trace.strings[int(trace.kernel_file[row])],
        "input_strides": trace.documents[trace.inputs.strides[row]].decode(),
        "output_strides": trace.documents[trace.outputs.strides[row]].decode(),
    }
    kept = {key: value for key, value in found.items() if value not in ("", "[]")}
    rest = msgspec.json.decode(trace.documents[trace.attributes[row]], type=dict[str, Any])
    return kept | rest


def _derived_attributes(trace: ExecutionTrace) -> dict[int, dict[str, int]]:
    """What simulators want of collectives: kind and bytes."""
    found: dict[int, dict[str, int]] = {}
    table, tensors = trace.collectives, trace.inputs.tensors
    for index, row in enumerate(table.row.tolist()):
        kind = _COLLECTIVE_OF_NAME.get(trace.strings[int(table.name[index])])
        if kind is not None:
            start, end = tensors.bounds[row : row + 2]
            elements, item_bytes = tensors.elements[start:end], tensors.item_bytes[start:end]
            size = sum(map(mul, elements.tolist(), item_bytes.tolist()))
            found[row] = {"comm_type": COLLECTIVE_TYPES.index(kind), "comm_size": size}
    return found


def _set_times(node: Any, trace: ExecutionTrace, row: int) -> None:
    if trace.start_us is None or trace.duration_us is None or math.isnan(trace.start_us[row]):
        return
    start_us = trace.origin_ns / 1000 + float(trace.start_us[row])
    duration_us = float(trace.duration_us[row])
    if start_us < 0 or duration_us < 0:
        raise TraceError(f"{trace.where}: node {trace.node_id[row]} has a negative time")
    node.start_time_micros = round(start_us)
    node.duration_micros = 0 if math.isnan(duration_us) else round(duration_us)


def _type_name(code: int) -> str:
    return NODE_TYPES[code] if 0 <= code < len(NODE_TYPES) else f"NODE_TYPE_{code}"


def _type_code(name: str) -> int:
    return NODE_TYPES.index(name) if name in NODE_TYPES else int(name.rpartition("_")[2])


def _framed(message: Any) -> bytes:
    body: bytes = message.SerializeToString()
    return encode_varint(len(body)) + body
