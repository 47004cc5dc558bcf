"""Data dependencies between the nodes of an execution trace, from the storages they touch.

An op enters in order of node id and returns after everything it called. When it enters, it reads
the storages of its input tensors; when it returns, it has written

- the storages of its outputs, except of views: its schema's returns carry an alias annotation
  without `!`, and the storage is one of its inputs;
- the storages of inputs that its schema annotates as mutated (`Tensor(a!)`);

unless an op that it called has written them already: the innermost writer counts. A tensor
without a storage (sparse, symbolic) stands for itself; undefined and empty tensors carry nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.trace.columns import NONE, Ints

if TYPE_CHECKING:
    from perfmodel.trace.et_table import ExecutionTrace, Tensors

_UNDEFINED = "nullptr"
_NOTHING = 0
_ALIAS = re.compile(r"Tensor\([^()!]*\)")


def data_dependencies(trace: ExecutionTrace) -> tuple[Ints, Ints]:
    """Rows (producer, consumer), int64, unique, sorted by consumer; declared pairs included.

    A node never depends on itself or on a node that called it.
    """
    reads = _keys(trace, trace.inputs.tensors)
    returned = _keys(trace, trace.outputs.tensors)
    writes = _writes(trace, reads, returned)
    read_bounds = trace.inputs.tensors.bounds.tolist()
    read_keys = reads.tolist()
    thread = trace.thread.tolist()
    last = subtree_last(trace.parent)
    returning = np.lexsort((-np.arange(len(last)), last)).tolist()
    returns_after = last[returning].tolist() if len(last) else []
    writer: dict[int, int] = {}
    pairs: set[tuple[int, int]] = {(a, b) for a, b in trace.declared.tolist()}
    done = 0
    for row in range(len(trace)):
        for key in read_keys[read_bounds[row] : read_bounds[row + 1]]:
            source = writer.get(key)
            if source is not None and source != row:
                pairs.add((source, row))
        while done < len(returning) and returns_after[done] <= row:
            op = returning[done]
            done += 1
            for key in writes.get(op, ()):
                before = writer.get(key)
                if before is None or before < op or thread[before] != thread[op]:
                    writer[key] = op
    table = np.array(sorted(pairs, key=lambda pair: pair[::-1]), np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def subtree_last(parent: Ints) -> Ints:
    """`[N]`: for each row the highest row that it called, directly or not (itself, for a leaf)."""
    above = parent.tolist()
    last = [NONE] * len(above)
    for highest in range(len(above) - 1, -1, -1):
        row = highest
        while row != NONE and last[row] == NONE:
            last[row] = highest
            row = above[row]
    return np.array(last, np.int64)


def _keys(trace: ExecutionTrace, tensors: Tensors) -> Ints:
    """What each tensor stands for: its storage, minus its id without one, 0 for nothing."""
    undefined = [i for i, text in enumerate(trace.strings.texts) if text.startswith(_UNDEFINED)]
    key = np.where(tensors.storage_id > 0, tensors.storage_id, -tensors.tensor_id)
    empty = (tensors.elements == 0) & (tensors.storage_id > 0)
    return np.where(empty | np.isin(tensors.dtype, undefined), _NOTHING, key)


def _writes(trace: ExecutionTrace, reads: Ints, returned: Ints) -> dict[int, set[int]]:
    inputs, outputs = trace.inputs.tensors, trace.outputs.tensors
    written: defaultdict[int, set[int]] = defaultdict(set)
    schemas = [_effects(trace.strings[i]) for i in range(len(trace.strings))]
    schema_of = trace.op_schema.tolist()
    in_bounds = inputs.bounds.tolist()
    read_keys = reads.tolist()
    for row, key in zip(outputs.row.tolist(), returned.tolist(), strict=True):
        is_view = schemas[schema_of[row]][0] and (
            key in read_keys[in_bounds[row] : in_bounds[row + 1]]
        )
        if key != _NOTHING and not is_view:
            written[row].add(key)
    for row, key, argument in zip(
        inputs.row.tolist(), read_keys, inputs.argument.tolist(), strict=True
    ):
        if key != _NOTHING and argument in schemas[schema_of[row]][1]:
            written[row].add(key)
    return written


@lru_cache(maxsize=4096)
def _effects(schema: str) -> tuple[bool, frozenset[int]]:
    """Whether an op returns a view of an input, and the positions of arguments that it mutates."""
    arguments, arrow, returns = schema.rpartition(" -> ")
    if not arrow:
        return False, frozenset()
    mutated = set()
    position = depth = 0
    start = arguments.find("(") + 1
    if arguments.startswith("*,", start):
        position = -1
    for at in range(start, len(arguments)):
        character = arguments[at]
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "!":
            mutated.add(position)
        elif character == "," and depth == 0:
            position += arguments[at + 1 : at + 9].lstrip()[:2] != "*,"
    return _ALIAS.search(returns) is not None, frozenset(mutated)
