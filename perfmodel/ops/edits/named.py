"""Edits by the text of a what-if, `KIND` or `KIND=VALUE`, as `--edit` has them: narrower number
types; CUDA graphs; other numbers of ranks; ops taken out, whose users then wait for their
producers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.ops.graph import NO_OP, OPTIMIZER, WAITING, Op, OpGraph, Tensor, with_tensors


class Edited(NamedTuple):
    """The graph after an edit, and what of it could not be done, in words."""

    graph: OpGraph
    skipped: tuple[str, ...] = ()


def remove(graph: OpGraph, pattern: str) -> Edited:
    """`graph` without the ops whose name fits `pattern` (`aten::dropout*`), and what they call.

    Calls of an op that stays which are gone are remembered (`removed`).
    """
    gone: set[int] = set()
    for at, op in enumerate(graph.ops):  # callers stand before what they call
        if op.parent in gone or fnmatchcase(op.name, pattern):
            gone.add(at)
    if not gone:
        return Edited(graph, (f"no op is called {pattern}",))
    kept = [at for at in range(len(graph)) if at not in gone]
    new_of = {old: new for new, old in enumerate(kept)}
    ops = [graph.ops[at] for at in kept]
    removed: list[Op] = []
    place: dict[int, int] = {}
    for old, op in enumerate((*graph.ops, *graph.removed)):
        above = place.get(op.parent, new_of.get(op.parent))
        if old not in new_of and above is not None:  # what an op that stays calls no more
            place[old] = len(new_of) + len(removed)
            removed.append(replace(op, parent=above))
    edited = replace(
        graph,
        ops=tuple(replace(op, parent=new_of.get(op.parent, NO_OP)) for op in ops),
        data=_between(graph.data, new_of),
        waits=None if graph.waits is None else _between(graph.waits, new_of),
        removed=tuple(removed),
        held={},
        notes=(*graph.notes, f"{len(gone)} ops removed ({pattern})"),
    )
    return Edited(edited)


def _between(edges: NDArray[np.int64], new_of: Mapping[int, int]) -> NDArray[np.int64]:
    """Dependencies by new indices, those through ops that are gone joined."""
    between: set[tuple[int, int]] = set()
    producers: defaultdict[int, list[int]] = defaultdict(list)
    for producer, consumer in sorted(edges.tolist(), key=lambda edge: edge[1]):
        sources = [producer] if producer in new_of else producers[producer]
        if consumer in new_of:
            between.update((new_of[source], new_of[consumer]) for source in sources)
        else:
            producers[consumer] += [s for s in sources if s not in producers[consumer]]
    return np.array(sorted(between), np.int64).reshape(-1, 2)


FLOAT_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Types of whole models; the narrow ones are for what matrix products read."""
NARROW = ("fp8", "int8")
_DTYPES = (*FLOAT_DTYPES, *NARROW)
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm")


def cast(graph: OpGraph, dtype: str, *, optimizer: bool = True) -> Edited:
    """`graph` with its floating tensors as `dtype`; integers and bools stay.

    `fp8` and `int8` are taken by the inputs of matrix products only. With `optimizer=False` the
    optimizer keeps its types (fp32 states and master weights). Raises `WorkloadError` for a type
    that is none of these.
    """
    if dtype not in _DTYPES:
        raise WorkloadError(f"unknown dtype {dtype!r}; one of {', '.join(_DTYPES)}")

    def as_dtype(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype=dtype) if tensor.dtype in FLOAT_DTYPES else tensor

    narrow = dtype in NARROW
    ops = []
    for op in graph.ops:
        is_product, new = op.name.removeprefix("aten::") in _PRODUCTS, op
        if (optimizer or op.phase != OPTIMIZER) and (is_product or not narrow):
            new = replace(op, inputs=with_tensors(op.inputs, as_dtype))
        if new is not op and not narrow:
            about = {"dtype": dtype} if op.attributes.get("dtype") in FLOAT_DTYPES else {}
            outputs = with_tensors(op.outputs, as_dtype)
            new = replace(new, outputs=outputs, attributes={**op.attributes, **about})
        ops.append(op if new == op else new)
    if all(new is old for new, old in zip(ops, graph.ops, strict=True)):
        what = "no matrix product has" if narrow else "no op has"
        return Edited(graph, (f"{what} floating tensors of another type than {dtype}",))
    skipped = []
    if narrow:
        skipped.append(f"only what matrix products read is {dtype}; no op quantises it")
    if not optimizer:
        skipped.append("no op casts between the optimizer's types and the model's")
    notes = (*graph.notes, f"cast to {dtype}")
    return Edited(replace(graph, ops=tuple(ops), notes=notes), tuple(skipped))


def cuda_graphs(graph: OpGraph) -> Edited:
    """`graph` marked to be launched as CUDA graphs; lowering to a GPU honours it.

    `skipped` names the ops that no graph can hold: one ends before them, another begins behind.
    """
    if graph.cuda_graphs:
        return Edited(graph, ("each step is launched as CUDA graphs already",))
    waiting = Counter(op.name for op in graph.ops if op.name in WAITING)
    skipped = tuple(
        f"{count} calls of {name} wait for the device: a CUDA graph cannot hold them"
        for name, count in waiting.most_common()
    )
    return Edited(replace(graph, cuda_graphs=True, notes=(*graph.notes, "CUDA graphs")), skipped)


GROWING = {"all_gather": "out_elements", "gather": "out_elements", "reduce_scatter": "in_elements"}
"""Collectives whose size, on one side, is as many times what a rank gives or gets as there are
ranks."""
_OF_GROUP = ("in_split", "out_split", "group_ranks")


def ranks(graph: OpGraph, value: str) -> Edited:
    """`graph` as one of `value` ranks, each of which has the work that it has now.

    Batch and tables grow with the ranks, or tables are dealt out anew: a rank looks up, computes,
    gives to all-to-all and all-reduce, and gets of reduce-scatter as much as before. Collectives
    among some of the ranks stay as they are and are named in `skipped`. All-to-alls become even.
    """
    if not value.isdecimal() or int(value) < 2:
        raise UsageError(f"--edit 'ranks={value}': expected ranks=COUNT, a number of 2 or more")
    count, before = int(value), graph.world_size
    ops, apart = list(graph.ops), Counter[str]()
    for at, op in enumerate(graph.ops):
        about = {k: v for k, v in op.attributes.items() if k not in _OF_GROUP}
        if "collective" not in about:
            continue
        if int(op.attributes.get("group_size", before)) != before:
            apart[about["collective"]] += 1
        elif before > 1:
            grows = GROWING.get(about["collective"])
            if grows in about:
                about[grows] = str(round(float(about[grows]) * count / before))
            ops[at] = replace(op, attributes={**about, "group_size": str(count)})
    skipped = tuple(f"{n} calls of {name} are among some ranks only" for name, n in apart.items())
    if count == before or all(op is old for op, old in zip(ops, graph.ops, strict=True)):
        return Edited(graph, skipped or ("no collective among all ranks",))
    notes = (*graph.notes, f"{count} ranks instead of {before}, each with the work it had")
    return Edited(replace(graph, ops=tuple(ops), world_size=count, notes=notes), skipped)


KEEP_OPTIMIZER = "keep-optimizer"


class Kind(NamedTuple):
    """A kind of edit: its text in words, its values where they are a closed list, what it does."""

    usage: str
    values: tuple[str, ...]
    apply: Callable[[OpGraph, str], Edited]


KINDS: dict[str, Kind] = {
    "cast": Kind(
        f"cast=DTYPE[,{KEEP_OPTIMIZER}]",
        (*_DTYPES, *(f"{dtype},{KEEP_OPTIMIZER}" for dtype in _DTYPES)),
        lambda graph, value: cast(graph, value.split(",")[0], optimizer="," not in value),
    ),
    "cuda-graphs": Kind("cuda-graphs", (), lambda graph, _: cuda_graphs(graph)),
    "remove": Kind("remove=PATTERN", (), remove),
    "ranks": Kind("ranks=COUNT", (), ranks),
}


@dataclass(frozen=True)
class NamedEdit:
    """One edit of an op graph, from its text."""

    text: str
    kind: str
    value: str

    @classmethod
    def parse(cls, text: str) -> NamedEdit:
        """From the command line's `--edit`; raises `UsageError` saying what is wrong."""
        name, equals, value = text.partition("=")
        kind = KINDS.get(name)
        if kind is None:
            known = ", ".join(each.usage for each in KINDS.values())
            raise UsageError(f"--edit {text!r}: unknown edit {name!r}; one of {known}")
        if ("=" in kind.usage) != bool(equals) or (equals and not value):
            raise UsageError(f"--edit {text!r}: expected {kind.usage}")
        if kind.values and value not in kind.values:
            known = ", ".join(each for each in kind.values if "," not in each)
            raise UsageError(f"--edit {text!r}: expected {kind.usage}, of {known}")
        return cls(text, name, value)

    def __call__(self, graph: OpGraph) -> Edited:
        """`graph` edited; the very same graph where there is nothing to edit."""
        return KINDS[self.kind].apply(graph, self.value)


def apply_edits(
    graphs: Iterable[OpGraph], edits: Iterable[NamedEdit], *, must_change: bool = True
) -> tuple[list[OpGraph], list[str]]:
    """All ranks' graphs with every edit applied, in turn, and what of them could not be done.

    Raises `WorkloadError` for an edit that changes no rank's graph, unless not `must_change`.
    """
    edited, skipped = list(graphs), list[str]()
    for edit in edits:
        after = [edit(graph) for graph in edited]
        lines = [f"{edit.text}: {line}" for one in after for line in one.skipped]
        changed = any(one.graph is not before for one, before in zip(after, edited, strict=True))
        if must_change and not changed:
            why = "; ".join(dict.fromkeys(line for one in after for line in one.skipped))
            raise WorkloadError(f"--edit {edit.text!r} changes nothing: {why}")
        skipped += dict.fromkeys(lines)
        edited = [one.graph for one in after]
    return edited, skipped
