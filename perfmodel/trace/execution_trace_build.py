"""Checked columns from the node lists that a reader hands over, and the collectives among nodes.

What `record_param_comms` says, in every layout it has had: arguments after the tensors are, before
schema 1.1.0, sequence, pointer of the group, rank, name, input splits, output splits; later
sequence (or a tuple that begins with it), (group name, description), rank, name, splits, first
rank, stride, group size. From 1.1.0 on, attributes say the same of collectives that have a group,
except that they shorten long split lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np

from perfmodel.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE, Strings
from perfmodel.trace.execution_trace_columns import (
    Arguments,
    Collectives,
    ExecutionTrace,
    ProcessGroup,
    Tensors,
)
from perfmodel.trace.execution_trace_tensors import InternedTexts, RawArguments, read_tensors

_INT64_MAX = 2**63 - 1
_MAX_SCOPE = 255


@dataclass
class RawNodes:
    """The nodes of a file in its own order, one list per column; not yet checked."""

    node_id: list[Any] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    parent: list[Any] = field(default_factory=list)
    rf_id: list[Any] = field(default_factory=list)
    scope: list[Any] = field(default_factory=list)
    thread: list[Any] = field(default_factory=list)
    op_schema: list[Any] = field(default_factory=list)
    attributes: list[dict[str, Any]] = field(default_factory=list)
    inputs: RawArguments = field(default_factory=lambda: RawArguments([], [], [], []))
    outputs: RawArguments = field(default_factory=lambda: RawArguments([], [], [], []))
    declared: list[tuple[int, int]] = field(default_factory=list)
    """(id before, id after)"""


ATTRIBUTE_COLUMNS = {
    "rf_id": ("rf_id", 0),
    "scope": ("scope", 0),
    "thread": ("tid", 0),
    "op_schema": ("op_schema", ""),
}
"""Lists of `RawNodes` that nested schemas write as attributes: key and default."""


def build_execution_trace(
    raw: RawNodes, where: str, schema: str, warnings: list[str]
) -> ExecutionTrace:
    """The execution trace of `raw`; raises `TraceError` naming the node and the key."""
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
    parent_id = numbers(raw.parent, "parent", NONE)
    parent = _parents(parent_id, node_id, name, thread, strings, warnings)
    _refuse_cycle(parent, node_id, where)
    documents = InternedTexts()
    inputs, outputs = arguments(raw.inputs, "inputs"), arguments(raw.outputs, "outputs")
    reader = CollectiveReader(where, strings, warnings)
    groups = []
    for row, at in enumerate(position):
        attributes, node_name = raw.attributes[at], raw.name[at]
        if is_collective(node_name, attributes):
            reader.read(row, at, raw.inputs, attributes, inputs.tensors, outputs.tensors)
        if "process_group:init" in node_name:
            groups += process_groups(raw.inputs.values[at], warnings)
    return ExecutionTrace(
        where=where,
        schema=schema,
        strings=strings,
        node_id=node_id,
        name=name,
        parent=parent,
        rf_id=numbers(raw.rf_id, "rf_id"),
        scope=numbers(raw.scope, "scope", 0, _MAX_SCOPE),
        thread=thread,
        op_schema=texts(raw.op_schema, "op_schema"),
        inputs=inputs,
        outputs=outputs,
        collectives=reader.table(),
        process_groups=tuple(groups),
        declared=_declared(raw.declared, node_id, warnings),
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
    warnings: list[str],
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
        warnings.append(
            f"{int(lost.sum())} nodes were called by {len(np.unique(parent_id[lost]))} ops that "
            f"are not in the file{why}"
        )
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


_NAME = "record_param_comms"


_COLUMNS = [f.name for f in fields(Collectives) if not f.name.endswith("_split")]


class _Group(msgspec.Struct):
    pg_name: str = ""
    ranks: list[int] = []
    group_size: int = 0


def is_collective(name: str, attributes: dict[str, Any]) -> bool:
    """Whether a node is the record of a collective."""
    return name == _NAME or "collective_name" in attributes


def process_groups(values: bytes, warnings: list[str]) -> list[ProcessGroup]:
    """The groups that one `## process_group:init ##` node lists, a JSON text in its first input."""
    try:
        (text,) = msgspec.json.decode(values, type=list[str])
        groups = msgspec.json.decode(text, type=list[_Group])
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        warnings.append(f"process groups cannot be read: {str(error).splitlines()[0]:.100}")
        return []
    return [ProcessGroup(g.pg_name, tuple(g.ranks), g.group_size) for g in groups]


class CollectiveReader:
    """Gathers the collectives of one trace."""

    def __init__(self, where: str, strings: Strings, warnings: list[str]) -> None:
        self._where = where
        self._strings = strings
        self._warnings = warnings
        self._columns: defaultdict[str, list[int]] = defaultdict(list)
        self._splits: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])

    def read(
        self,
        row: int,
        position: int,
        arguments: RawArguments,
        attributes: dict[str, Any],
        inputs: Tensors,
        outputs: Tensors,
    ) -> None:
        """Add node `row` (`nodes[position]` of the file) with the inputs of all nodes."""
        try:
            stated = _from_arguments(arguments, position)
            self._add(row, stated, attributes, inputs, outputs)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{self._where}: nodes[{position}] ({_NAME}): {error}") from None

    def table(self) -> Collectives:
        """What was read, as columns."""
        columns = {key: np.array(self._columns[key], np.int64) for key in _COLUMNS}
        in_split, out_split = map(tuple, self._splits)
        return Collectives(**columns, in_split=in_split, out_split=out_split)

    def _add(
        self,
        row: int,
        result: dict[str, Any],
        attributes: dict[str, Any],
        inputs: Tensors,
        outputs: Tensors,
    ) -> None:
        def text(key: str, attribute: str, default: str = "") -> int:
            value = attributes.get(attribute, result.get(key, default))
            return self._strings.intern(str(value) if type(value) is int else _text(value, key))

        def number(key: str, attribute: str, default: int = NONE) -> int:
            return _number(attributes.get(attribute, result.get(key, default)), key)

        one = {
            "row": row,
            "name": text("name", "collective_name"),
            "group": text("group", "pg_name"),
            "group_size": number("group_size", "pg_size"),
            "dtype": self._dtype(row, attributes, inputs, outputs),
            "in_elements": number("in", "in_msg_nelems", _elements(row, inputs)),
            "out_elements": number("out", "out_msg_nelems", _elements(row, outputs)),
            "rank_start": number("rank_start", "global_rank_start"),
            "rank_stride": number("rank_stride", "global_rank_stride"),
        }
        for key, value in one.items():
            self._columns[key].append(value)
        for splits, key in zip(self._splits, ("in_split", "out_split"), strict=True):
            splits.append(_split(result.get(key), attributes.get(f"{key}_size")))

    def _dtype(
        self, row: int, attributes: dict[str, Any], inputs: Tensors, outputs: Tensors
    ) -> int:
        for tensors in (inputs, outputs):
            start, end = tensors.bounds[row : row + 2]
            if end > start:
                return int(tensors.dtype[start])
        return self._strings.intern(_text(attributes.get("dtype", ""), "dtype"))


def _from_arguments(arguments: RawArguments, position: int) -> dict[str, Any]:
    """What the plain arguments say; nothing where the layout is not one of the known."""
    types = msgspec.json.decode(arguments.types[position], type=list[str])
    values = msgspec.json.decode(arguments.values[position], type=list[Any])
    tail = next(
        (i for i, kind in enumerate(types) if kind == "Int" or kind.startswith("Tuple[Int")),
        len(types),
    )
    types, values = types[tail:], values[tail:]
    if len(values) < 6 or types[3] != "String" or types[2] != "Int":
        return {}
    _sequence, group, _rank, name, in_split, out_split, *more = values
    result = {
        "name": name,
        "in_split": in_split,
        "out_split": out_split,
    }
    result["group"] = group[0] if types[1] == "Tuple[String,String]" else group
    if len(more) >= 3 and types[6:9] == ["Int"] * 3:
        result["rank_start"], result["rank_stride"], result["group_size"] = more[:3]
    return result


def _split(from_arguments: Any, from_attribute: Any) -> tuple[int, ...]:
    value = from_arguments
    if value is None and isinstance(from_attribute, str) and "..." not in from_attribute:
        value = msgspec.json.decode(from_attribute or "[]", type=list[int])
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"expected split sizes, got {value!r:.60}")
    return tuple(_number(size, "split") for size in value)


def _elements(row: int, tensors: Tensors) -> int:
    start, end = tensors.bounds[row : row + 2]
    return sum(tensors.elements[start:end].tolist()) if end > start else NONE


def _number(value: Any, key: str) -> int:
    if type(value) is not int or not -1 <= value <= _INT64_MAX:
        raise ValueError(f"{key}: expected an integer of at least -1, got {value!r:.60}")
    return value


def _text(value: Any, key: str) -> str:
    if type(value) is not str:
        raise ValueError(f"{key}: expected a text, got {value!r:.60}")
    return value
