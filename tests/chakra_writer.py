"""Execution traces written as Chakra protobuf: what its reader is tried on."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from google.protobuf.proto import serialize_length_prefixed

from perfmodel.reporting.perfetto import CHAKRA_VERSION, set_attributes
from perfmodel.trace.chakra import NODE_TYPES, messages
from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace_columns import ExecutionTrace


def encode_chakra(trace: ExecutionTrace) -> bytes:
    """`trace` as a Chakra stream, nodes in order of id; `decode_chakra` gives the same trace back.

    Except that `data_deps` holds all data dependencies, and warnings are not carried.
    """
    kinds = messages()
    metadata = kinds.metadata(version=CHAKRA_VERSION)
    set_attributes(metadata, {"schema": trace.schema})
    nodes = []
    producer, consumer = trace.data_dependencies()
    first = np.searchsorted(consumer, np.arange(len(trace) + 1)).tolist()
    producer_id = trace.node_id[producer].tolist()
    for row in range(len(trace)):
        node = kinds.node(
            id=int(trace.node_id[row]),
            name=trace.text(row),
            type=NODE_TYPES.index("COMP_NODE"),
            data_deps=producer_id[first[row] : first[row + 1]],
        )
        if trace.parent[row] != NONE:
            node.ctrl_deps.append(int(trace.node_id[trace.parent[row]]))
        for target, source in ((node.inputs, trace.inputs), (node.outputs, trace.outputs)):
            target.values = source.values[row].decode()
            target.shapes = source.shapes[row].decode()
            target.types = source.types[row].decode()
        set_attributes(node, _node_attributes(trace, row))
        nodes.append(node)
    return framed(metadata, *nodes)


def framed(*parts: Any) -> bytes:
    """Messages, each behind its length."""
    out = BytesIO()
    for part in parts:
        serialize_length_prefixed(part, out)
    return out.getvalue()


def _node_attributes(trace: ExecutionTrace, row: int) -> dict[str, Any]:
    found = {
        "rf_id": int(trace.rf_id[row]),
        "scope": int(trace.scope[row]),
        "tid": int(trace.thread[row]),
        "op_schema": trace.strings[int(trace.op_schema[row])],
        "input_strides": trace.inputs.strides[row].decode(),
        "output_strides": trace.outputs.strides[row].decode(),
    }
    return {key: value for key, value in found.items() if value not in ("", "[]")}
