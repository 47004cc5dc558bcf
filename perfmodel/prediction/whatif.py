"""What-ifs: durations of a graph scaled or removed by scope, name and rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.graph.kinds import SCOPES, Cause, Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.trace.columns import Floats, Mask

_RANK = re.compile(r"@(\d+)$")


@dataclass(frozen=True)
class Scale:
    """Multiply the durations of a scope by a factor: `SCOPE[:REGEX][@RANK]=FACTOR`."""

    text: str
    scope: str
    pattern: re.Pattern[str] | None
    rank: int | None
    factor: float

    @classmethod
    def parse(cls, text: str) -> Scale:
        """From the command line's `--scale`; raises `UsageError` saying what is wrong."""
        what, equals, number = text.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = float("nan")
        if not equals or not 0 <= factor < float("inf"):
            raise UsageError(
                f"--scale {text!r}: expected SCOPE[:REGEX][@RANK]=FACTOR, FACTOR a number >= 0"
            )
        return cls._of(text, what, factor, "--scale")

    @classmethod
    def parse_removal(cls, text: str) -> Scale:
        """From the command line's `--remove SCOPE:REGEX[@RANK]`."""
        return cls._of(text, text, 0.0, "--remove")

    @classmethod
    def _of(cls, text: str, what: str, factor: float, option: str) -> Scale:
        at = _RANK.search(what)
        scope, colon, regex = (what[: at.start()] if at else what).partition(":")
        if scope not in SCOPES:
            raise UsageError(
                f"{option} {text!r}: unknown scope {scope!r}; one of {', '.join(SCOPES)}"
            )
        try:
            pattern = re.compile(regex) if colon else None
        except re.error as error:
            raise UsageError(f"{option} {text!r}: not a regular expression: {error}") from None
        return cls(text, scope, pattern, int(at.group(1)) if at else None, factor)

    def matches(self, graph: ExecutionGraph) -> Mask:
        """Which nodes it acts on. Raises `UsageError` when there is none.

        The expression is searched in a node's label; a host node's is its overhead type, its
        operator and the annotation around it, as in `T1 aten::linear in ## forward ##`.
        """
        nodes = graph.nodes_
        chosen = np.isin(nodes.scope, SCOPES[self.scope])
        if self.rank is not None:
            chosen &= nodes.rank == self.rank
        if self.pattern is not None:
            rows = np.flatnonzero(chosen).tolist()
            texts = [node_text(graph, row) for row in rows]
            hit = {text: bool(self.pattern.search(text)) for text in set(texts)}
            chosen[rows] = [hit[text] for text in texts]
        if not chosen.any():
            raise UsageError(f"{self.text!r} matches nothing in this trace")
        return chosen


def node_text(graph: ExecutionGraph, node: int) -> str:
    """What a what-if's expression is searched in."""
    if graph.nodes_.scope[node] != Scope.HOST:
        return graph.labels[node]
    kind = Cause(int(graph.nodes_.cause[node])).name.removeprefix("HOST_")
    around = graph.annotations[node]
    return f"{kind} {graph.labels[node]}" + (f" in {around}" if around else "")


def scaled(graph: ExecutionGraph, duration_us: Floats, scales: list[Scale]) -> Floats:
    """`duration_us` with every scale applied, in turn; waits follow and are never scaled."""
    for scale in scales:
        duration_us = np.where(scale.matches(graph), duration_us * scale.factor, duration_us)
    return duration_us
