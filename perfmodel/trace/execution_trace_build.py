"""Checked columns from the node lists that a reader hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from perfmodel.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE, Strings
from perfmodel.trace.execution_trace_collectives import (
    CollectiveReader,
    is_collective,
    node_type,
    process_groups,
)
from perfmodel.trace.execution_trace_columns import Arguments, ExecutionTrace
from perfmodel.trace.execution_trace_tensors import InternedTexts, RawArguments, read_tensors

_INT64_MAX = 2**63 - 1
_LOWEST_SEQUENCE = -(2**63)
_MAX_SCOPE = 255


@dataclass
class RawNodes:
    """The nodes of a file in its own order, one list per column; not yet checked."""

    node_id: list[Any] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    parent: list[Any] = field(default_factory=list)
    rf_id: list[Any] = field(default_factory=list)
    fw_parent: list[Any] = field(default_factory=list)
    sequence: list[Any] = field(default_factory=list)
    scope: list[Any] = field(default_factory=list)
    thread: list[Any] = field(default_factory=list)
    fw_thread: list[Any] = field(default_factory=list)
    op_schema: list[Any] = field(default_factory=list)
    kernel_backend: list[Any] = field(default_factory=list)
    kernel_file: list[Any] = field(default_factory=list)
    node_type: list[str] = field(default_factory=list)
    """Empty text: derived from the name."""
    attributes: list[dict[str, Any]] = field(default_factory=list)
    inputs: RawArguments = field(default_factory=lambda: RawArguments([], [], [], []))
    outputs: RawArguments = field(default_factory=lambda: RawArguments([], [], [], []))
    start_us: list[float] = field(default_factory=list)
    """NaN without; the whole list is empty where no node has times."""
    duration_us: list[float] = field(default_factory=list)
    declared: list[tuple[int, int]] = field(default_factory=list)
    """(id before, id after)"""


ATTRIBUTE_COLUMNS = {
    "rf_id": ("rf_id", 0),
    "fw_parent": ("fw_parent", 0),
    "sequence": ("seq_id", NONE),
    "scope": ("scope", 0),
    "thread": ("tid", 0),
    "fw_thread": ("fw_tid", 0),
    "op_schema": ("op_schema", ""),
    "kernel_backend": ("kernel_backend", ""),
    "kernel_file": ("kernel_file", ""),
}
"""Lists of `RawNodes` that nested schemas write as attributes: key and default."""


@dataclass
class Header:
    """What a file says of itself."""

    where: str
    schema: str
    pid: int = NONE
    recorded: str = ""
    start_ms: int = NONE
    finish_ms: int = NONE
    warnings: list[str] = field(default_factory=list)


def build_execution_trace(raw: RawNodes, header: Header) -> ExecutionTrace:
    """The execution trace of `raw`; raises `TraceError` naming the node and the key."""
    where, warnings = header.where, header.warnings
    strings = Strings()
    unsorted_id = as_int64(raw.node_id, "id", where)
    order = np.argsort(unsorted_id, kind="stable")
    position = order.tolist()
    node_id = unsorted_id[order]
    twice = np.flatnonzero(node_id[1:] == node_id[:-1])
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        raise TraceError(
            f"{where}: nodes[{second}].id: id {node_id[twice[0]]} is already that of nodes[{first}]"
        )

    def numbers(values: list[Any], key: str, low: int = 0, high: int = _INT64_MAX) -> Ints:
        return as_int64(values, key, where, low, high)[order]

    def texts(values: list[Any], key: str) -> Ints:
        index = next((i for i, value in enumerate(values) if type(value) is not str), None)
        if index is not None:
            got = f"{values[index]!r:.60}"
            raise TraceError(f"{where}: nodes[{index}].{key}: expected a text, got {got}")
        return np.array([strings.intern(text) for text in values], np.int64)[order]

    def arguments(raw_arguments: RawArguments, key: str) -> Arguments:
        in_order = raw_arguments.reordered(position)
        tensors = read_tensors(in_order, key, position, strings, where)
        values, shapes, types, strides = map(documents.add, in_order)
        return Arguments(values, shapes, types, strides, tensors)

    name = texts(raw.name, "name")
    thread = numbers(raw.thread, "tid")
    parent = _parents(numbers(raw.parent, "parent", NONE), node_id, name, thread, strings, header)
    fw_parent_id = numbers(raw.fw_parent, "fw_parent")
    fw_parent = _rows(fw_parent_id, node_id)
    lost = int(np.count_nonzero((fw_parent == NONE) & (fw_parent_id > 0)))
    if lost:
        warnings.append(f"{lost} nodes name a forward parent that is not in the file")

    documents = InternedTexts()
    inputs, outputs = arguments(raw.inputs, "inputs"), arguments(raw.outputs, "outputs")
    reader = CollectiveReader(where, strings, warnings)
    rest: list[bytes] = [b"{}"] * len(position)
    types: list[int] = []
    groups = []
    for row, at in enumerate(position):
        attributes, node_name = raw.attributes[at], raw.name[at]
        collective = None
        if is_collective(node_name, attributes):
            collective = reader.read(
                row, at, raw.inputs, attributes, inputs.tensors, outputs.tensors
            )
        if "process_group:init" in node_name:
            groups += process_groups(raw.inputs.values[at], warnings)
        if attributes:
            try:
                rest[row] = msgspec.json.encode(attributes)
            except (msgspec.MsgspecError, TypeError, UnicodeEncodeError, RecursionError) as error:
                raise TraceError(f"{where}: nodes[{at}].attrs: {error}") from None
        types.append(strings.intern(raw.node_type[at] or node_type(node_name, collective)))
    start_us, duration_us, origin_ns = _times(raw, order)
    return ExecutionTrace(
        where=where,
        schema=header.schema,
        pid=header.pid,
        recorded=header.recorded,
        start_ms=header.start_ms,
        finish_ms=header.finish_ms,
        strings=strings,
        node_id=node_id,
        name=name,
        parent=parent,
        rf_id=numbers(raw.rf_id, "rf_id"),
        fw_parent=fw_parent,
        sequence=numbers(raw.sequence, "seq_id", _LOWEST_SEQUENCE),
        scope=numbers(raw.scope, "scope", 0, _MAX_SCOPE),
        thread=thread,
        fw_thread=numbers(raw.fw_thread, "fw_tid"),
        op_schema=texts(raw.op_schema, "op_schema"),
        kernel_backend=texts(raw.kernel_backend, "kernel_backend"),
        kernel_file=texts(raw.kernel_file, "kernel_file"),
        node_type=np.array(types, np.int64),
        attributes=documents.add(rest),
        inputs=inputs,
        outputs=outputs,
        collectives=reader.table(),
        process_groups=tuple(groups),
        declared=_declared(raw.declared, node_id, warnings),
        origin_ns=origin_ns,
        start_us=start_us,
        duration_us=duration_us,
        documents=tuple(documents.texts),
        warnings=warnings,
    )


def as_int64(
    values: Sequence[Any], key: str, where: str, low: int = 0, high: int = _INT64_MAX
) -> Ints:
    """`values` as int64; raises `TraceError` at the first that is no integer from low to high."""
    is_plain = set(map(type, values)) <= {int}
    if not is_plain or (values and not low <= min(values) <= max(values) <= high):
        for index, value in enumerate(values):
            if type(value) is not int:
                raise TraceError(
                    f"{where}: nodes[{index}].{key}: expected an integer, got {value!r:.60}"
                )
            if not low <= value <= high:
                allowed = f"at least {low}" if value < low else f"at most {high}"
                raise TraceError(f"{where}: nodes[{index}].{key}: {value} must be {allowed}")
    return np.array(values, np.int64)


def _rows(ids: Ints, node_id: Ints) -> Ints:
    """Row of each id, `NONE` where no node has it."""
    if not len(node_id):
        return np.full(len(ids), NONE, np.int64)
    row = np.minimum(np.searchsorted(node_id, ids), len(node_id) - 1)
    return np.where(node_id[row] == ids, row, NONE)


def _parents(
    parent_id: Ints,
    node_id: Ints,
    name: Ints,
    thread: Ints,
    strings: Strings,
    header: Header,
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
        for row in np.flatnonzero(lost).tolist():
            parent[row] = home_of.get(int(thread[row]), NONE)
        is_later = bool((parent_id > node_id)[lost].any())
        why = "" if is_later else " (still open when recording stopped)"
        header.warnings.append(
            f"{int(lost.sum())} nodes were called by {len(np.unique(parent_id[lost]))} ops that "
            f"are not in the file{why}"
        )
    _refuse_cycle(parent, node_id, header.where)
    return parent


def _refuse_cycle(parent: Ints, node_id: Ints, where: str) -> None:
    if not (parent >= np.arange(len(parent))).any():
        return
    reached = parent.copy()
    for _ in range(max(1, len(parent).bit_length())):
        reached = np.where(reached >= 0, reached[reached], NONE)
    looping = np.flatnonzero(reached >= 0)
    if len(looping):
        start = row = int(reached[looping[0]])
        ids = []
        while True:
            ids.append(int(node_id[row]))
            row = int(parent[row])
            if row == start:
                break
        ids.append(ids[0])
        shown = " -> ".join(map(str, ids[:6])) + (" -> ..." if len(ids) > 6 else "")
        raise TraceError(f"{where}: the parents of nodes form a cycle: {shown}")


def _declared(pairs: list[tuple[int, int]], node_id: Ints, warnings: list[str]) -> Ints:
    if not pairs:
        return np.zeros((0, 2), np.int64)
    ids = np.array(pairs, np.uint64)
    rows = _rows(ids.astype(np.int64).ravel(), node_id).reshape(-1, 2)
    is_known = rows[:, 0] != NONE
    if not is_known.all():
        before, after = pairs[int(np.argmin(is_known))]
        warnings.append(
            f"{int((~is_known).sum())} dependencies are on nodes that are not in the file: left "
            f"out (node {after} on {before})"
        )
    return np.unique(rows[is_known], axis=0)


def _times(
    raw: RawNodes, order: Ints
) -> tuple[np.ndarray[Any, np.dtype[np.float64]] | None, Any, int]:
    if not raw.start_us:
        return None, None, 0
    start = np.array(raw.start_us, np.float64)[order]
    duration = np.array(raw.duration_us, np.float64)[order]
    origin_us = int(np.nanmin(start)) if not np.isnan(start).all() else 0
    return start - origin_us, duration, origin_us * 1000
