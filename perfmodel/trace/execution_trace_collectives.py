"""Collectives in an execution trace: what `record_param_comms` says, in every layout it has had.

Arguments after the tensors are, before schema 1.1.0: sequence, pointer of the group, rank, name,
input splits, output splits; later: sequence (or a tuple that begins with it), (group name,
description), rank, name, splits, first rank, stride, group size. From 1.1.0 on, attributes say the
same of collectives that have a group, except that they shorten long split lists.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE, Strings
from perfmodel.trace.execution_trace_columns import Collectives, ProcessGroup, Tensors
from perfmodel.trace.execution_trace_tensors import RawArguments

_NAME = "record_param_comms"
_META_ENDINGS = ("|process]", "|thread]", "process_group:init ##")
_INT64_MAX = 2**63 - 1
_NOT_TRANSFERS = ("wait", "init", "")


_COLUMNS = [f.name for f in fields(Collectives) if not f.name.endswith("_split")]


class _Group(msgspec.Struct):
    pg_name: str = ""
    pg_desc: str = ""
    backend_config: str = ""
    ranks: list[int] = []
    group_size: int = 0


def is_collective(name: str, attributes: dict[str, Any]) -> bool:
    """Whether a node is the record of a collective."""
    return name == _NAME or "collective_name" in attributes


def node_type(name: str, collective: str | None) -> str:
    """Chakra's node type for a node of PyTorch, given the name of its collective if it is one."""
    if collective is not None:
        if collective in ("send", "recv"):
            return f"COMM_{collective.upper()}_NODE"
        return "COMP_NODE" if collective in _NOT_TRANSFERS else "COMM_COLL_NODE"
    return "METADATA_NODE" if name.endswith(_META_ENDINGS) else "COMP_NODE"


def process_groups(values: bytes, warnings: list[str]) -> list[ProcessGroup]:
    """The groups that one `## process_group:init ##` node lists, a JSON text in its first input."""
    try:
        (text,) = msgspec.json.decode(values, type=list[str])
        groups = msgspec.json.decode(text, type=list[_Group])
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        warnings.append(f"process groups cannot be read: {str(error).splitlines()[0]:.100}")
        return []
    return [
        ProcessGroup(g.pg_name, g.pg_desc, g.backend_config, tuple(g.ranks), g.group_size)
        for g in groups
    ]


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
    ) -> str:
        """Add node `row` (`nodes[position]` of the file) with the inputs of all nodes; its name."""
        try:
            stated = _from_arguments(arguments, position)
            self._add(row, stated, attributes, inputs, outputs)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{self._where}: nodes[{position}] ({_NAME}): {error}") from None
        return self._strings[self._columns["name"][-1]]

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
            "group_description": text("group_description", "pg_desc"),
            "group_size": number("group_size", "pg_size"),
            "rank": number("rank", "rank"),
            "sequence": number("sequence", "seq"),
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
    sequence, group, rank, name, in_split, out_split, *more = values
    result = {
        "sequence": sequence[0] if isinstance(sequence, list) and sequence else sequence,
        "rank": rank,
        "name": name,
        "in_split": in_split,
        "out_split": out_split,
    }
    if types[1] == "Tuple[String,String]":
        result["group"], result["group_description"] = group
    else:
        result["group"] = group
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
