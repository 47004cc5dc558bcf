"""Edits by the text of a what-if, `KIND` or `KIND=VALUE`, as `--edit` has them: narrower number
types, of a whole graph or of its all-to-all alone; CUDA graphs; other numbers of ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.ops.edits.assemble import Edited, PlacedOp, assemble, fuse_tables, move, remove
from perfmodel.ops.graph import (
    NO_OP,
    OPTIMIZER,
    WAITING,
    Argument,
    Op,
    OpGraph,
    Tensor,
    last_called,
    outermost_of,
)

FLOAT_DTYPES = ("fp64", "fp32", "fp16", "bf16")
"""Types of whole models; the narrow ones are for what matrix products read."""
NARROW = ("fp8", "int8")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm")


def cast(graph: OpGraph, dtype: str, *, optimizer: bool = True) -> Edited:
    """`graph` with its floating tensors as `dtype`; integers and bools stay.

    `fp8` and `int8` are taken by the inputs of matrix products only. With `optimizer=False` the
    optimizer keeps its types (fp32 states and master weights). Raises `WorkloadError` for a type
    that is none of these.
    """
    if dtype not in (*FLOAT_DTYPES, *NARROW):
        raise WorkloadError(
            f"unknown dtype {dtype!r}; one of {', '.join((*FLOAT_DTYPES, *NARROW))}"
        )
    narrow = dtype in NARROW
    ops = []
    for op in graph.ops:
        if op.phase == OPTIMIZER and not optimizer:
            ops.append(op)
        elif narrow:
            is_product = op.name.removeprefix("aten::") in _PRODUCTS
            inputs = _as_dtype(op.inputs, dtype) if is_product else op.inputs
            ops.append(op if inputs == op.inputs else replace(op, inputs=inputs))
        else:
            about = op.attributes
            if about.get("dtype") in FLOAT_DTYPES:
                about = {**about, "dtype": dtype}
            inputs, outputs = _as_dtype(op.inputs, dtype), _as_dtype(op.outputs, dtype)
            is_same = about is op.attributes and (inputs, outputs) == (op.inputs, op.outputs)
            ops.append(
                op if is_same else replace(op, inputs=inputs, outputs=outputs, attributes=about)
            )
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


def _as_dtype(arguments: tuple[Argument, ...], dtype: str) -> tuple[Argument, ...]:
    return tuple(
        _as_dtype(each, dtype)
        if isinstance(each, tuple)
        else replace(each, dtype=dtype)
        if isinstance(each, Tensor) and each.dtype in FLOAT_DTYPES
        else each
        for each in arguments
    )


CLAMPED = {"fp16": True, "bf16": False}
"""Types that a payload may take, and whether values are clamped to their range before."""
WIDE_DTYPE = "fp32"


def exchange(graph: OpGraph, dtype: str) -> Edited:
    """`graph` whose all-to-alls of fp32 send `dtype`: encoded before the call, and decoded before
    the first op that reads or waits for what came (where that is unknown, after the call).

    Raises `WorkloadError` for another type.
    """
    if dtype not in CLAMPED:
        raise WorkloadError(f"cannot exchange {dtype!r}; one of {', '.join(CLAMPED)}")
    wide = [at for at, op in enumerate(graph.ops) if _is_wide(op)]
    if not wide:
        return Edited(graph, (f"no all-to-all of {WIDE_DTYPE}",))
    outermost, last = outermost_of(graph.ops), last_called(graph.ops)
    calls = {outermost[at]: at for at in wide}
    reader: dict[int, int] = {}
    for source, target in (graph.data if graph.waits is None else graph.waits).tolist():
        top, later = outermost[source], outermost[target]
        if top in calls and later > top:
            reader[top] = min(reader.get(top, later), later)
    before: defaultdict[int, list[Op]] = defaultdict(list)
    behind: defaultdict[int, list[tuple[Op, int]]] = defaultdict(list)
    for top, at in calls.items():
        around, about = graph.ops[top], graph.ops[at].attributes
        place = next((t.device for t in graph.ops[at].tensors if t.device), "")
        sent, got = (  # as the program has it, and as it is sent
            [
                Tensor((int(about[f"{side}_elements"]),), t, device=place)
                for t in (WIDE_DTYPE, dtype)
            ]
            for side in ("in", "out")
        )
        if CLAMPED[dtype]:
            before[top].append(_op(around, "aten::clamp", (sent[0], None, None), sent[0]))
        before[top].append(_op(around, "aten::copy_", (sent[1], sent[0], False), sent[1]))
        like = graph.ops[reader.get(top, top)]
        decoding = _op(like, "aten::copy_", (got[0], got[1], False), got[0])
        behind[reader.get(top, last[top] + 1)].append((decoding, at))
    placed: list[PlacedOp] = []
    decoded: list[tuple[int, int]] = []
    for at in range(len(graph) + 1):
        for op, source in behind.get(at, ()):
            decoded.append((source, len(placed)))
            placed.append(PlacedOp(op))
        if at < len(graph):
            placed += [PlacedOp(op) for op in before.get(at, ())]
            op = graph.ops[at]
            narrow = replace(op, attributes={**op.attributes, "dtype": dtype})
            placed.append(PlacedOp(narrow if _is_wide(op) else op, (at,)))
    note = f"{len(calls)} all-to-alls of {dtype} instead of {WIDE_DTYPE}"
    edited = assemble(graph, placed, note)
    new_of = {one.covers[0]: at for at, one in enumerate(placed) if one.covers}
    edges = np.array([(new_of[source], target) for source, target in decoded], np.int64)
    data, waits = (
        np.concatenate([each, edges.reshape(-1, 2)]) if each is not None else None
        for each in (edited.data if len(edited.data) else None, edited.waits)
    )
    edited = replace(edited, data=edited.data if data is None else data, waits=waits)
    return Edited(edited, ("no gradient of a clamp",) if CLAMPED[dtype] else ())


def _is_wide(op: Op) -> bool:
    about = op.attributes
    has_sizes = "in_elements" in about and "out_elements" in about
    return (
        about.get("collective") == "all_to_all" and about.get("dtype") == WIDE_DTYPE and has_sizes
    )


def _op(like: Op, name: str, inputs: tuple[Tensor | bool | None, ...], output: Tensor) -> Op:
    """An op of the same thread, phase and step; on the stream of the kernels."""
    about = {key: text for key, text in like.attributes.items() if key == "annotation"}
    return Op(name, inputs, (output,), NO_OP, like.thread, like.phase, like.step, -1, about)


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
    note = f"{count} ranks instead of {before}, each with the work it had"
    return Edited(
        replace(graph, ops=tuple(ops), world_size=count, notes=(*graph.notes, note)), skipped
    )


KEEP_OPTIMIZER = "keep-optimizer"


class Kind(NamedTuple):
    """A kind of edit: what it takes, its values where they are a closed list, and what it does."""

    value: str
    """What stands behind the `=`, in words; empty where nothing does."""
    values: tuple[str, ...]
    apply: Callable[[OpGraph, str], Edited]


def _cast(graph: OpGraph, value: str) -> Edited:
    dtype, _, keep = value.partition(",")
    return cast(graph, dtype, optimizer=not keep)


def _move(graph: OpGraph, value: str) -> Edited:
    op, comma, before = value.partition(",")
    if not (op and comma and before):
        raise UsageError(f"--edit 'move={value}': expected move=OP,BEFORE")
    places = (int(text) if text.isdecimal() else text for text in (op, before))
    return move(graph, *places)


_DTYPES = (*FLOAT_DTYPES, *NARROW)
KINDS: dict[str, Kind] = {
    "fuse": Kind("KIND", ("embeddings",), lambda graph, _: fuse_tables(graph)),
    "cast": Kind(
        f"DTYPE[,{KEEP_OPTIMIZER}]",
        (*_DTYPES, *(f"{dtype},{KEEP_OPTIMIZER}" for dtype in _DTYPES)),
        _cast,
    ),
    "exchange": Kind("DTYPE", tuple(CLAMPED), exchange),
    "cuda-graphs": Kind("", (), lambda graph, _: cuda_graphs(graph)),
    "remove": Kind("PATTERN", (), remove),
    "move": Kind("OP,BEFORE", (), _move),
    "ranks": Kind("COUNT", (), ranks),
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
            raise UsageError(f"--edit {text!r}: unknown edit {name!r}; one of {usage()}")
        if bool(kind.value) != bool(equals) or (equals and not value):
            raise UsageError(f"--edit {text!r}: expected {_usage(name)}")
        if kind.values and value not in kind.values:
            known = ", ".join(each for each in kind.values if "," not in each)
            raise UsageError(f"--edit {text!r}: expected {_usage(name)}, {kind.value}: {known}")
        return cls(text, name, value)

    def __call__(self, graph: OpGraph) -> Edited:
        """`graph` edited; the very same graph where there is nothing to edit."""
        return KINDS[self.kind].apply(graph, self.value)


def usage() -> str:
    """All kinds with what they take, in a line."""
    return ", ".join(map(_usage, KINDS))


def _usage(name: str) -> str:
    value = KINDS[name].value
    return f"{name}={value}" if value else name


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
