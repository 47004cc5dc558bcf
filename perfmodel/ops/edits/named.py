"""Edits by the text of a what-if, `KIND` or `KIND=VALUE`, as `--edit` has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.ops.edits.assemble import Edited, move, remove
from perfmodel.ops.edits.fuse import fuse_tables
from perfmodel.ops.edits.precision import CLAMPED, FLOAT_DTYPES, NARROW, cast, exchange
from perfmodel.ops.graph import WAITING, OpGraph


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


def ranks(graph: OpGraph, value: str) -> Edited:
    """`graph` as one of `value` ranks, each of which has the work that it has now.

    Batch and tables grow with the ranks, or tables are dealt out anew: a rank looks up, computes,
    gives to all-to-all and all-reduce, and gets of reduce-scatter as much as before. Collectives
    among some of the ranks stay as they are and are named in `skipped`. All-to-alls become even.
    """
    if not value.isdecimal() or int(value) < 2:
        raise UsageError(f"--edit 'ranks={value}': expected ranks=COUNT, a number of 2 or more")
    count, before = int(value), graph.world_size
    edited = [
        _among(op.attributes, before, count) if "collective" in op.attributes else None
        for op in graph.ops
    ]
    apart = Counter(
        op.attributes["collective"]
        for op in graph.ops
        if "collective" in op.attributes and int(op.attributes.get("group_size", before)) != before
    )
    skipped = tuple(f"{n} calls of {name} are among some ranks only" for name, n in apart.items())
    if count == before or not any(edited):
        return Edited(graph, skipped or ("no collective among all ranks",))
    ops = tuple(
        op if about is None else replace(op, attributes=about)
        for op, about in zip(graph.ops, edited, strict=True)
    )
    note = f"{count} ranks instead of {before}, each with the work it had"
    return Edited(replace(graph, ops=ops, world_size=count, notes=(*graph.notes, note)), skipped)


def _among(about: Mapping[str, str], before: int, count: int) -> dict[str, str] | None:
    """The attributes of a collective among `count` ranks; None where it is not among all."""
    if int(about.get("group_size", before)) != before or before < 2:
        return None
    kept = {key: text for key, text in about.items() if key not in ("in_split", "out_split")}
    grows = GROWING.get(about["collective"])
    if grows in kept:
        kept[grows] = str(round(float(kept[grows]) * count / before))
    kept.pop("group_ranks", None)
    return {**kept, "group_size": str(count)}


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
