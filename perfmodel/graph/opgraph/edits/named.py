"""Edits by the text of a what-if, `KIND` or `KIND=VALUE`, as `--edit` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.opgraph.edits.exchange import CLAMPED, exchange
from perfmodel.graph.opgraph.edits.fuse import KINDS as FUSED
from perfmodel.graph.opgraph.edits.fuse import fuse
from perfmodel.graph.opgraph.edits.launch import cuda_graphs
from perfmodel.graph.opgraph.edits.optimizers import MODES, optimizer
from perfmodel.graph.opgraph.edits.precision import NARROW, WIDE, cast
from perfmodel.graph.opgraph.edits.ranks import ranks
from perfmodel.graph.opgraph.edits.structure import move, remove
from perfmodel.graph.ops import OpGraph

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
    return move(graph, _index_or_name(op), _index_or_name(before))


def _index_or_name(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


_DTYPES = (*WIDE, *NARROW)
KINDS: dict[str, Kind] = {
    "fuse": Kind("KIND", tuple(FUSED), fuse),
    "cast": Kind(
        f"DTYPE[,{KEEP_OPTIMIZER}]",
        (*_DTYPES, *(f"{dtype},{KEEP_OPTIMIZER}" for dtype in _DTYPES)),
        _cast,
    ),
    "optimizer": Kind("MODE", MODES, optimizer),
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


def edited(
    graphs: Iterable[OpGraph], edits: Iterable[NamedEdit], *, must_change: bool = True
) -> tuple[list[OpGraph], list[str]]:
    """All ranks' graphs with every edit applied, in turn, and what of them could not be done.

    Raises `WorkloadError` for an edit that changes no rank's graph, unless not `must_change`.
    """
    found, undone = list(graphs), list[str]()
    for edit in edits:
        after = [edit(graph) for graph in found]
        lines = [f"{edit.text}: {line}" for one in after for line in one.undone]
        changed = any(one.graph is not before for one, before in zip(after, found, strict=True))
        if must_change and not changed:
            why = "; ".join(dict.fromkeys(line for one in after for line in one.undone))
            raise WorkloadError(f"--edit {edit.text!r} changes nothing: {why}")
        undone += dict.fromkeys(lines)
        found = [one.graph for one in after]
    return found, undone
