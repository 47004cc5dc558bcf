"""Execution traces written as Chakra protobuf: what its reader is tried on."""

from __future__ import annotations

import math
from operator import mul
from typing import Any

import msgspec
import numpy as np

from perfmodel.errors import TraceError
from perfmodel.reporting.perfetto import CHAKRA_VERSION, COLLECTIVE_TYPES, framed, set_attributes
from perfmodel.trace.chakra import NODE_TYPES, messages
from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace_columns import ExecutionTrace

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
    set_attributes(metadata, known)
    out = [framed(metadata)]
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
        set_attributes(node, _node_attributes(trace, row) | derived.get(row, {}))
        out.append(framed(node))
    return b"".join(out)


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
            found[row] = {"comm_type": COLLECTIVE_TYPES.index(kind.lower()), "comm_size": size}
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


def _type_code(name: str) -> int:
    return NODE_TYPES.index(name) if name in NODE_TYPES else int(name.rpartition("_")[2])
