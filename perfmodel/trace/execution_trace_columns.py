"""One execution trace as columns, the data dependencies between its nodes, and which event of a
profile each node is.

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
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Ints
from perfmodel.base.calls import last_writers
from perfmodel.base.units import counted
from perfmodel.trace.categories import STEP_NAME, Category
from perfmodel.trace.columns import NONE, RankTrace, Strings

_decode = msgspec.json.Decoder(list[Any]).decode


@dataclass(frozen=True, eq=False)
class Tensors:
    """The tensors among the arguments of all nodes, flattened: `T` rows, `N` nodes.

    Node `i` owns rows `bounds[i]:bounds[i + 1]`, in the order of its arguments; lists of tensors
    are opened. All columns are int64.
    """

    bounds: Ints
    """`[N + 1]`: where each node's rows begin."""
    argument: Ints
    """`[T]`: position of the argument that is, or holds, the tensor."""
    tensor_id: Ints
    storage_id: Ints
    """0: the tensor has no storage of its own (undefined, symbolic or sparse)."""
    elements: Ints
    dtype: Ints
    """Index into the trace's `strings` (`float`, `long int`, `c10::Half`)."""

    def __len__(self) -> int:
        return len(self.tensor_id)

    def of(self, row: int) -> slice:
        return slice(*self.bounds[row : row + 2].tolist())

    @cached_property
    def row(self) -> Ints:
        """`[T]`: the node row that owns each tensor."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))


@dataclass(frozen=True, eq=False)
class Arguments:
    """Inputs or outputs of all nodes: the JSON of four parallel lists of each, and the tensors."""

    values: list[bytes]
    shapes: list[bytes]
    types: list[bytes]
    strides: list[bytes]
    """`[]` where the schema has no strides (before 1.1.1)."""
    tensors: Tensors


@dataclass(frozen=True)
class ProcessGroup:
    """What `## process_group:init ##` says of one group; no ranks there means all ranks."""

    name: str
    ranks: tuple[int, ...]
    size: int


_Number = Annotated[int, msgspec.Meta(ge=NONE, le=2**63 - 1)]


class Collective(msgspec.Struct):
    """What a `record_param_comms` node says (`wait` and `barrier` too), by the names of the file's
    attributes; `NONE` or nothing where it does not."""

    in_msg_nelems: _Number
    out_msg_nelems: _Number
    dtype: str = ""
    collective_name: str = ""
    pg_name: str | int = ""
    """Process group: its name, or before schema 1.1.0 a pointer."""
    pg_size: _Number = NONE
    global_rank_start: _Number = NONE
    global_rank_stride: _Number = NONE
    in_split: list[_Number] = []
    """Elements (or rows) for each peer; empty: equal parts, or the file does not say."""
    out_split: list[_Number] = []


@dataclass(frozen=True, eq=False)
class ExecutionTrace:
    """One rank's execution trace, one row per node, in order of node id (the order of entry).

    Text columns are indices into `strings`.
    """

    where: str
    schema: str
    strings: Strings
    node_id: Ints
    name: Ints
    parent: Ints
    """Row of the node that called this one; `NONE` at a root."""
    rf_id: Ints
    """Record-function id; 0 where the node is no host event (process and threads)."""
    scope: Ints
    """PyTorch's `RecordScope`: 0 function, 1 backward function, 7 user scope."""
    thread: Ints
    op_schema: Ints
    inputs: Arguments
    outputs: Arguments
    collectives: dict[int, Collective]
    """By node row, ascending."""
    process_groups: tuple[ProcessGroup, ...]
    declared: Ints
    """`[D, 2]` rows (before, after): dependencies the file itself lists (Chakra's `data_deps`)."""
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.node_id)

    def __repr__(self) -> str:
        return (
            f"ExecutionTrace({self.where!r}, schema {self.schema}, {len(self)} nodes, "
            f"{len(self.inputs.tensors)} + {len(self.outputs.tensors)} tensors, "
            f"{len(self.collectives)} collectives, {counted(len(self.warnings), 'warning')})"
        )

    def text(self, row: int) -> str:
        return self.strings[int(self.name[row])]

    def names(self, rows: NDArray[np.integer[Any]]) -> list[str]:
        return [self.strings[i] for i in self.name[rows].tolist()]

    def linkable(self) -> dict[int, Ints]:
        """For each thread the rows of its host events (rf_id > 0), in order of rf_id."""
        order = np.argsort(self.rf_id, kind="stable")
        order = order[self.rf_id[order] > 0]
        thread = self.thread[order]
        return {int(t): order[thread == t] for t in np.unique(thread)}

    def data_dependencies(self) -> tuple[Ints, Ints]:
        """Rows (producer, consumer): the last writer of a storage, and the node that reads it.

        See `perfmodel.trace.execution_trace_columns` for what counts as a write. Declared
        dependencies are included; pairs are unique, sorted by consumer. A node never depends on
        itself or on a node that called it.
        """
        read = _storage_keys(self, self.inputs.tensors)
        writes = _writes(self, read, _storage_keys(self, self.outputs.tensors))
        keys, bounds = read.tolist(), self.inputs.tensors.bounds.tolist()
        reads = (keys[start:end] for start, end in pairwise(bounds))
        edges = last_writers(self.parent.tolist(), self.thread.tolist(), reads, writes)
        pairs = np.unique(np.concatenate([edges, self.declared])[:, ::-1], axis=0)
        return pairs[:, 1].copy(), pairs[:, 0].copy()

    def input_shapes(self, row: int) -> list[Any]:
        """Shapes of the inputs of one node: a list of ints per tensor, nested for lists."""
        return _decode(self.inputs.shapes[row])

    def input_types(self, row: int) -> list[Any]:
        """Types of the inputs of one node, such as `Tensor(float)` or `GenericList[Int,Int]`."""
        return _decode(self.inputs.types[row])

    def input_values(self, row: int) -> list[Any]:
        """Values of the inputs of one node; tensors are [id, storage, offset, elements, ...]."""
        return _decode(self.inputs.values[row])

    def group_ranks(self, said: Collective) -> tuple[int, ...]:
        """Global ranks of the group of a collective; empty where unknown."""
        for group in self.process_groups:
            if group.name == str(said.pg_name):
                return group.ranks or tuple(range(group.size))
        start, stride, size = said.global_rank_start, said.global_rank_stride, said.pg_size
        if start < 0 or size <= 0 or stride <= 0:
            return ()
        return tuple(range(start, start + stride * size, stride))


_UNDEFINED = "nullptr"
_NOTHING = 0
_ALIAS = re.compile(r"Tensor\([^()!]*\)")


def _storage_keys(trace: ExecutionTrace, tensors: Tensors) -> Ints:
    """What each tensor stands for: its storage, minus its id without one, 0 for nothing."""
    undefined = [i for i, text in enumerate(trace.strings.texts) if text.startswith(_UNDEFINED)]
    key = np.where(tensors.storage_id > 0, tensors.storage_id, -tensors.tensor_id)
    empty = (tensors.elements == 0) & (tensors.storage_id > 0)
    return np.where(empty | np.isin(tensors.dtype, undefined), _NOTHING, key)


def _writes(trace: ExecutionTrace, reads: Ints, returned: Ints) -> dict[int, set[int]]:
    inputs, outputs = trace.inputs.tensors, trace.outputs.tensors
    written: defaultdict[int, set[int]] = defaultdict(set)
    schemas = [_schema_effects(trace.strings[i]) for i in range(len(trace.strings))]
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
def _schema_effects(schema: str) -> tuple[bool, frozenset[int]]:
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


# Which node each host event of a profile is. Three regimes of ids occur, of which the one counts
# under which most names agree: `Record function id` is the node's `rf_id` (2024 and later);
# `External id` is; neither: the n-th host event of a thread is its n-th node, in order of entry
# (2023). The execution trace may be of one iteration and the profile of many, and of another one:
# ids are never compared across iterations in the third, only the order of names.

RECORD_FUNCTION_ID, EXTERNAL_ID, ORDINAL = ("record function id", "external id", "order per thread")
MIN_SAME_FRAC = 0.9
"""Of paired events and nodes, how many have one name before a way to pair them is believed."""


@dataclass(frozen=True)
class Pairing:
    """Rows of host events and, for each, the row of its node."""

    regime: str
    event: Ints
    node: Ints
    events: int
    """Host events that could have been matched."""

    @property
    def matched_frac(self) -> float:
        return len(self.event) / self.events if self.events else 0.0


def pair(rank: RankTrace, execution_trace: ExecutionTrace) -> Pairing:
    """Pair the host events of a rank with the nodes of its execution trace, by equal names."""
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    host = host[~rank.name_matches(STEP_NAME)[host]]
    result = [
        _by_id(RECORD_FUNCTION_ID, rank, host, rank.op_id[host], execution_trace),
        _by_id(EXTERNAL_ID, rank, host, rank.external_id[host], execution_trace),
    ]
    best = max(result, key=lambda pairing: len(pairing.event))
    if best.matched_frac >= MIN_SAME_FRAC:
        return best
    return max(best, _by_order(rank, host, execution_trace), key=lambda p: len(p.event))


def _by_id(
    regime: str, rank: RankTrace, host: Ints, ids: Ints, execution_trace: ExecutionTrace
) -> Pairing:
    """Events and nodes of one id whose names agree; nothing where most do not."""
    order = np.argsort(execution_trace.rf_id, kind="stable")
    keys = execution_trace.rf_id[order]
    at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
    hit = (keys[at] == ids) & (ids > 0)
    event, node = host[hit], order[at[hit]]
    same = np.array(
        [rank.text(e) == execution_trace.text(n) for e, n in zip(event, node, strict=True)], bool
    )
    if not len(same) or same.mean() < MIN_SAME_FRAC:
        same = np.zeros(len(event), bool)
    return Pairing(regime, event[same], node[same], len(host))


def _by_order(rank: RankTrace, host: Ints, execution_trace: ExecutionTrace) -> Pairing:
    """Threads whose names fit in order: the nodes as a run of the events, once or often."""
    entered = host[np.lexsort((rank.event_index[host], rank.start_us[host]))]
    codes = Strings()
    nodes = {
        thread: (rows, codes.of(execution_trace.names(rows)))
        for thread, rows in execution_trace.linkable().items()
    }
    event, node = [], []
    for thread in np.unique(rank.thread[host]):
        rows = entered[rank.thread[entered] == thread]
        rows = rows[np.argsort(rank.event_index[rows], kind="stable")]
        names = codes.of([rank.text(row) for row in rows])
        fits = [(_occurrences(names, theirs), their_rows) for their_rows, theirs in nodes.values()]
        starts, their_rows = max(
            fits, key=lambda fit: len(fit[0]) * len(fit[1]), default=([], rows)
        )
        for start in starts:
            event.append(rows[start : start + len(their_rows)])
            node.append(their_rows)
    empty = [np.zeros(0, np.int64)]
    return Pairing(
        ORDINAL, np.concatenate(event or empty), np.concatenate(node or empty), len(host)
    )


def _occurrences(names: Ints, part: Ints) -> list[int]:
    """Where `part` stands in `names` as a run, without overlaps."""
    if not len(part) or len(part) > len(names):
        return []
    text, wanted = names.tobytes(), part.tobytes()
    width, result, at = names.itemsize, [], text.find(wanted)
    while at >= 0:
        if at % width == 0:
            result.append(at // width)
            at = text.find(wanted, at + len(wanted))
        else:
            at = text.find(wanted, at + 1)
    return result
