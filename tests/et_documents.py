"""Execution traces in the schemas that PyTorch has written, from a few nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfmodel.trace.execution_trace import NESTED_SCHEMAS, decode_execution_trace
from perfmodel.trace.execution_trace_columns import ExecutionTrace


def tensor(number: int, storage: int, elements: int, offset: int = 0) -> list[Any]:
    return [number, storage, offset, elements, 4, "cuda:0"]


def node(
    node_id: int,
    name: str,
    parent: int,
    inputs: tuple[Any, ...] = (),
    outputs: tuple[Any, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """A node whose arguments are all float tensors of one dimension, in schema-free form."""
    return {
        "id": node_id,
        "name": name,
        "parent": parent,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "rf_id": node_id - 2 if node_id > 2 else 0,
        "tid": 1 if node_id > 1 else 0,
        **more,
    }


def flat(*nodes: dict[str, Any], schema: str = "1.0.1", **more: Any) -> dict[str, Any]:
    written = []
    for one in nodes:
        full = {"fw_parent": 0, "scope": 0, "fw_tid": 0, "op_schema": "", **one}
        if schema == "1.0.1":
            full.setdefault("seq_id", -1)
        for key in ("input", "output"):
            values = full[f"{key}s"]
            if schema == "1.0.0":
                values = full[f"{key}s"] = [value[:5] for value in values]
            if f"{key}_types" not in full:
                full[f"{key}_types"] = ["Tensor(float)"] * len(values)
                full[f"{key}_shapes"] = [[value[3]] for value in values]
        written.append(full)
    return {"schema": schema, "pid": 7, "time": "now", "start_ts": 5, "nodes": written, **more}


def nested(*nodes: dict[str, Any], schema: str = "1.1.1-chakra.0.0.4") -> dict[str, Any]:
    written = []
    for one in nodes:
        full: dict[str, Any] = {
            "id": one["id"],
            "name": one["name"],
            "ctrl_deps": one["parent"],
            "attrs": [],
        }
        for key in ("inputs", "outputs"):
            values = one[key]
            singular = key[:-1]
            types = one.get(f"{singular}_types", ["Tensor(float)"] * len(values))
            shapes = one.get(f"{singular}_shapes") or [[value[3]] for value in values]
            full[key] = {"values": values, "shapes": shapes, "types": types}
            if schema.startswith("1.1.1"):
                full[key]["strides"] = [[1] for _ in values]
        for key, value in one.items():
            if key not in ("id", "name", "parent") and not key.startswith(("input", "output")):
                kind = "string" if isinstance(value, str) else "uint64"
                full["attrs"].append({"name": key, "type": kind, "value": value})
        written.append(full)
    return {"schema": schema, "pid": 7, "time": "now", "start_ts": 5, "nodes": written}


A, B, C, D = (tensor(20 + i, 30 + i, 8 * (i + 1)) for i in range(4))
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
FOUR = (
    node(4, "aten::mm", 2, (A, B), (C,), op_schema="aten::mm(Tensor self, Tensor mat2) -> Tensor"),
    node(3, "aten::empty", 2, (), (A,)),
    node(6, "aten::add_", 2, (C, A), (C,), op_schema=ADD_, scope=1),
    node(5, "aten::view", 2, (C,), (tensor(40, 32, 24),), op_schema=VIEW),
    node(2, "[pytorch|profiler|execution_trace|thread]", 1, scope=7),
    node(1, "[pytorch|profiler|execution_trace|process]", 1, scope=7),
)
"""empty -> A; mm(A, B) -> C; view(C); add_(C, A), in no order; B is written by nobody."""


def read(document: Any) -> ExecutionTrace:
    return decode_execution_trace(json.dumps(document).encode(), "t.json")


def comms(types: list[str], values: list[Any], **more: Any) -> dict[str, Any]:
    shapes = [
        [value[3]] if kind.startswith("Tensor") else []
        for kind, value in zip(types, values, strict=True)
    ]
    return node(
        3, "record_param_comms", 1, tuple(values), input_types=types, input_shapes=shapes, **more
    )


def spellings() -> list[Any]:
    """Parameters: `FOUR` in every schema."""
    return [
        pytest.param(flat(*FOUR, schema="1.0.0"), id="1.0.0"),
        pytest.param(flat(*FOUR), id="1.0.1"),
        *(pytest.param(nested(*FOUR, schema=schema), id=schema) for schema in NESTED_SCHEMAS),
    ]
