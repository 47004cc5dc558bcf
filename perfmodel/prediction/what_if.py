"""What-ifs: parts of a graph scaled or taken out, by what they are, where they run and their names;
and collectives that send a narrower type.

Durations and the lags of launches are scaled; a wait has no length of its own. Where a call that
blocks is taken out, its step still ends no earlier than what the call waited for. Transfers under a
codec shrink, and the operations before and behind them also take what its kernels would take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask, distinct, has_code
from perfmodel.errors import UsageError
from perfmodel.ops.families import FAMILIES, family_of_kernel
from perfmodel.timeline.graph.kinds import (
    CAUSE_OF_EDGE,
    HANDED,
    SCOPES,
    STREAM_KINDS,
    Cause,
    EdgeKind,
    NodeKind,
    Scope,
)
from perfmodel.timeline.graph.types import Edges, ExecutionGraph
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import rows_around

FORM = "SCOPE[/THREAD][:REGEX][@RANK]"
_THREAD = r"main|autograd|other(?::\d+)?|stream\d+"
_HEAD = re.compile(rf"([^:/]*)(?:/({_THREAD}))?(?::(.*))?", re.DOTALL)
_RANK = re.compile(r"@(\d+)$")


@dataclass(frozen=True)
class _Part:
    """What the name of a scope stands for."""

    scopes: tuple[Scope, ...] = ()
    """Nodes that are scaled: of these scopes and, where named, of these causes or that family."""
    causes: tuple[Cause, ...] = ()
    family: str = ""
    waits: tuple[EdgeKind, ...] = ()
    """Edges by which calls wait; gone where the calls are."""
    lags: tuple[EdgeKind, ...] = ()
    """Edges whose lag is scaled, where it is a delay."""


HOST_CAUSES = (
    *(Cause.HOST_T1, Cause.HOST_T2, Cause.HOST_T3, Cause.HOST_T4, Cause.HOST_T5),
    *(Cause.HOST_OP_WITHOUT_LAUNCH, Cause.DATA_LOADING),
)
_OF_OPERATORS = (*HOST_CAUSES[1:-1],)
_LAUNCHES = tuple(kind for kind, cause in CAUSE_OF_EDGE.items() if cause is Cause.LAUNCH_LATENCY)
IN_DEVICE = "memcpy_device"
"""The family `memcpy`, whose name is that of a scope."""
PARTS: dict[str, _Part] = {
    **{name: _Part(scopes) for name, scopes in SCOPES.items()},
    "allocator": _Part(SCOPES["allocator"], waits=(EdgeKind.ALLOCATOR,)),
    **{cause.name.lower(): _Part((Scope.HOST,), (cause,)) for cause in HOST_CAUSES},
    "operators": _Part((Scope.HOST,), _OF_OPERATORS),
    "blocking_call": _Part(
        (Scope.HOST,), (Cause.BLOCKING_CALL,), waits=(EdgeKind.HOST_SYNC, EdgeKind.BLOCKING_COPY)
    ),
    "hidden_sync": _Part(waits=(EdgeKind.HIDDEN_SYNC,)),
    "launch_queue_full": _Part(waits=(EdgeKind.LAUNCH_QUEUE,)),
    "launch_latency": _Part(lags=_LAUNCHES),
    **{
        IN_DEVICE if name in SCOPES else name: _Part(SCOPES["gpu"], family=name)
        for name in FAMILIES
    },
}
"""Scopes, then causes and kernel families, as a breakdown names them."""


@dataclass(frozen=True)
class Scale:
    """Multiply the durations of a part by a factor: `SCOPE[/THREAD][:REGEX][@RANK]=FACTOR`."""

    text: str
    scope: str
    pattern: re.Pattern[str] | None
    rank: int | None
    factor: float
    thread: str = ""

    @classmethod
    def parse(cls, text: str) -> Scale:
        """From the command line's `--scale`; raises `UsageError` saying what is wrong."""
        what, equals, number = text.rpartition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = float("nan")
        if not equals or not 0 <= factor < float("inf"):
            raise UsageError(f"--scale {text!r}: expected {FORM}=FACTOR, FACTOR a number >= 0")
        return cls._of(text, what, factor, "--scale")

    @classmethod
    def parse_removal(cls, text: str) -> Scale:
        """From the command line's `--remove SCOPE[/THREAD][:REGEX][@RANK]`."""
        return cls._of(text, text, 0.0, "--remove")

    @classmethod
    def _of(cls, text: str, what: str, factor: float, option: str) -> Scale:
        at = _RANK.search(what)
        match = _HEAD.fullmatch(what[: at.start()] if at else what)
        if match is None:
            raise UsageError(
                f"{option} {text!r}: unknown thread; expected SCOPE/THREAD, THREAD main, autograd, "
                "other, other:N or streamN"
            )
        scope, thread, regex = match.groups()
        if scope not in PARTS:
            raise UsageError(
                f"{option} {text!r}: unknown scope {scope!r}; one of {', '.join(PARTS)}"
            )
        part = PARTS[scope]
        if part.waits and scope not in SCOPES and factor:
            raise UsageError(
                f"{option} {text!r}: a wait follows from what is waited for and has no length to "
                f"scale; take it out: --remove {scope}"
            )
        try:
            pattern = None if regex is None else re.compile(regex)
        except re.error as error:
            raise UsageError(f"{option} {text!r}: not a regular expression: {error}") from None
        return cls(text, scope, pattern, int(at.group(1)) if at else None, factor, thread or "")

    def matches(self, graph: ExecutionGraph) -> Mask:
        """Which nodes it scales. Raises `UsageError` when it acts on nothing at all.

        The expression is searched in a node's label; a host node's is its overhead type, its
        operator and the annotation around it, as in `T1 aten::linear in ## forward ##`.
        """
        chosen = np.zeros(len(graph), bool)
        chosen[self.among(graph, np.arange(len(graph)))] = True
        if not chosen.any() and not len(self.edges(graph)):
            raise UsageError(f"{self.text!r} matches nothing in this trace")
        return chosen

    def among(self, graph: ExecutionGraph, rows: Ints) -> Ints:
        nodes, part = graph.nodes_, PARTS[self.scope]
        rows = rows[has_code(nodes.scope[rows], part.scopes)]
        if part.causes:
            rows = rows[has_code(nodes.cause[rows], part.causes)]
        if part.family:
            labels = [graph.labels[row] for row in rows.tolist()]
            hit = {label: family_of_kernel(label) == part.family for label in set(labels)}
            rows = rows[np.array([hit[label] for label in labels], bool)]
        return self._fitting(graph, rows)

    def edges(self, graph: ExecutionGraph) -> Ints:
        """The edges that it changes: what leads to the nodes that it fits."""
        part, edges = PARTS[self.scope], graph.edges_
        kinds = part.lags or (() if self.factor else part.waits)
        if not kinds:
            return np.zeros(0, np.int64)
        chosen = has_code(edges.kind, kinds)
        if part.lags:
            chosen &= edges.lag_us > 0
        rows = np.flatnonzero(chosen)
        fits = np.zeros(len(graph), bool)
        fits[self._fitting(graph, distinct(edges.target[rows]))] = True
        return rows[fits[edges.target[rows]]]

    def _fitting(self, graph: ExecutionGraph, rows: Ints) -> Ints:
        """Which of these nodes are of the rank and thread, and of such a name."""
        nodes = graph.nodes_
        if self.rank is not None:
            rows = rows[nodes.rank[rows] == self.rank]
        if self.thread:  # `other` stands for all of `other:0`, `other:1`, ...
            names = map(thread_of, graph.resources)
            there = [self.thread in (name, name.partition(":")[0]) for name in names]
            rows = rows[np.array(there, bool)[nodes.resource[rows]]]
        if self.pattern is not None:
            texts = node_texts(graph, rows)
            hit = {text: bool(self.pattern.search(text)) for text in set(texts)}
            rows = rows[np.array([hit[text] for text in texts], bool)]
        return rows


def thread_of(resource: str) -> str:
    """`main` of `0/main`, `stream7` of `0/gpu0/stream7`: what a what-if calls a resource."""
    return resource.rpartition("/")[2]


def node_texts(graph: ExecutionGraph, rows: Ints) -> list[str]:
    """What a what-if's expression is searched in: per row its label; of a host node, its overhead
    type before and its annotation behind it."""
    nodes, texts = graph.nodes_, [graph.labels[row] for row in rows.tolist()]
    for at in np.flatnonzero(nodes.scope[rows] == Scope.HOST).tolist():
        around, kind = graph.annotations[rows[at]], Cause(nodes.cause[rows[at]]).name
        inside = f" in {around}" if around else ""
        texts[at] = f"{kind.removeprefix('HOST_')} {texts[at]}{inside}"
    return texts


def what_if(
    graph: ExecutionGraph, duration_us: Floats, scales: Sequence[Scale]
) -> tuple[ExecutionGraph, Floats]:
    """The graph and `duration_us` of its nodes with every what-if applied, in turn.

    Its nodes stay the same, and it is the same graph where no what-if changes its edges.
    """
    edges = graph.edges_
    for scale in scales:
        duration_us = np.where(scale.matches(graph), duration_us * scale.factor, duration_us)
        rows = scale.edges(graph)
        if len(rows) and PARTS[scale.scope].lags:
            lag_us = edges.lag_us.copy()
            lag_us[rows] *= scale.factor
            edges = replace(edges, lag_us=lag_us)
        elif len(rows):
            edges = _until_step_end(graph, edges, rows)
    if edges is graph.edges_:
        return graph, duration_us
    return replace(graph, edges_=edges), duration_us


def from_window_start(graph: ExecutionGraph) -> ExecutionGraph:
    """`graph` without what its device had left to do when the recording began."""
    nodes = graph.nodes_
    pinned = np.isfinite(nodes.release_us) & graph.on_device
    if not pinned.any():
        return graph
    release_us = np.where(pinned, nodes.start_us.min(), nodes.release_us)
    return replace(graph, nodes_=replace(nodes, release_us=release_us))


def _until_step_end(graph: ExecutionGraph, edges: Edges, rows: Ints) -> Edges:
    """`edges`, those of `rows` leading to the end of the step in which their targets began: it
    comes no earlier than what they wait for.

    Behind the last step they stay; so do those whose source comes after that end.
    """
    nodes, marks = graph.nodes_, graph.marks
    position = np.empty(len(graph), np.int64)
    position[graph.order] = np.arange(len(graph))
    target, lag_us = edges.target.copy(), edges.lag_us.copy()
    overlap_frac = edges.overlap_frac.copy()
    for rank in distinct(marks.rank).tolist():
        ends = marks.end[marks.rank == rank]
        ends = ends[np.argsort(nodes.start_us[ends], kind="stable")]
        own = rows[nodes.rank[edges.target[rows]] == rank]
        at = np.searchsorted(nodes.start_us[ends], nodes.start_us[edges.target[own]])
        own, end = own[at < len(ends)], ends[at[at < len(ends)]]
        before = position[edges.source[own]] < position[end]
        target[own[before]] = end[before]
        lag_us[own[before]] = overlap_frac[own[before]] = 0.0
    return replace(edges, target=target, lag_us=lag_us, overlap_frac=overlap_frac)


CLAMP, ENCODE, DECODE = (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)
"""Each kernel streams the payload: shares of its fp32 bytes read, and written.
Source: FBGEMM's `fp32_to_fp16_with_clamp`, recalled; TorchRec's `QuantizedCommCodecs`."""
CLAMP_GRADIENT = ((1.0, 0.25), (1.0, 0.25), (0.5, 0.25), (1.25, 1.0))
"""What autograd does for a clamp: two comparisons, what is inside both, applied to the gradient."""


CLAMPED = {"fp16": True, "bf16": False}
"""Types that a payload may take, and whether values are clamped to their range before."""


@dataclass(frozen=True)
class Codec:
    """Collectives whose operators `pattern` fits send `dtype`: `REGEX=DTYPE[,elements=N]`.

    `elements` is 0 where it is what the trace records."""

    text: str
    pattern: re.Pattern[str]
    dtype: str
    elements: int

    @classmethod
    def parse(cls, text: str) -> Codec:
        """From the command line's `--codec`; raises `UsageError` saying what is wrong."""
        form = rf"(.+)=({'|'.join(CLAMPED)})(?:,elements=(0*[1-9]\d{{,17}}))?"
        if not (match := re.fullmatch(form, text, re.DOTALL)):
            raise UsageError(
                f"--codec {text!r}: expected REGEX=DTYPE[,elements=N], DTYPE one of "
                f"{', '.join(CLAMPED)}, N a whole number above 0"
            )
        try:
            return cls(text, re.compile(match[1]), match[2], int(match[3] or 0))
        except re.error as error:
            raise UsageError(f"--codec {text!r}: not a regular expression: {error}") from None


def with_codecs(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, codecs: Sequence[Codec]
) -> tuple[Floats, list[str]]:
    """`duration_us` of the nodes of `graph` under the codecs, and what a user should know.

    What encodes is added to the operation that a collective waited for, what decodes to the first
    that waited for it; else to the transfer. Raises `UsageError` where a codec matches no
    collective, or the size of a payload is neither recorded nor given.
    """
    from perfmodel.cost.durations import durations_of  # models of kernels: no other what-if asks
    from perfmodel.ops.rows import Rows
    from perfmodel.prediction.transferred import source_machine

    machine = source_machine(
        trace, "and a codec's kernels take what they take on it: name it with --source"
    )
    before, behind, collectives = *_neighbours(graph), list(_collectives(trace, graph))
    shrunk_us, added_us, notes = duration_us.copy(), np.zeros(len(graph)), []
    clamped = any(CLAMPED[codec.dtype] for codec in codecs)
    ranks = max(2, trace.world_size)
    for codec in codecs:
        if not (chosen := [one for one in collectives if codec.pattern.search(one[2])]):
            raise UsageError(f"--codec {codec.text!r} matches no collective of this trace")
        for arrival, transfer, stack, recorded in chosen:
            if not (elements := float(codec.elements or recorded)):
                raise UsageError(
                    f"--codec {codec.text!r}: the trace does not record how many elements "
                    f"{graph.labels[transfer][:60]!r} sends: say ,elements=N"
                )
            encode = (CLAMP, ENCODE) if CLAMPED[codec.dtype] else (ENCODE,)
            decode = (DECODE, *(CLAMP_GRADIENT if clamped and "Backward" in stack else ()))
            sent = {"op": "all_to_all", "ranks": float(ranks)}
            rows = [sent | {"size_bytes": elements * item} for item in (2.0, 4.0)]
            kernel = {"op": "elementwise", "elements": elements}
            rows += [kernel | {"reads": r, "writes": w} for r, w in (*encode, *decode)]
            narrow_us, wide_us, *taken_us = durations_of(Rows.of(rows), machine).duration_us
            shrunk_us[transfer] *= narrow_us / wide_us
            added_us[before.get(arrival, transfer)] += sum(taken_us[: len(encode)])
            added_us[behind.get(transfer, transfer)] += sum(taken_us[len(encode) :])
        notes.append(
            f"codec {codec.text}: {len(chosen)} collectives, {sum(taken_us):.0f} us of kernels "
            "around the last; their launches take the host no time"
        )
    return shrunk_us + added_us, notes


def _neighbours(graph: ExecutionGraph) -> tuple[dict[int, int], dict[int, int]]:
    """By operation: what it waited for last, else the one before it; what waited for it first."""
    edges = graph.edges_.where(has_code(graph.edges_.kind, (*HANDED, *STREAM_KINDS)))
    handed, ends = has_code(edges.kind, HANDED), np.stack([edges.source, edges.target], axis=1)
    last = np.lexsort((graph.nodes_.end_us[edges.source], handed))
    first = np.argsort(-graph.nodes_.start_us[edges.target], kind="stable")
    first = first[(handed & graph.on_device[edges.target])[first]]
    return dict(ends[last, ::-1].tolist()), dict(ends[first].tolist())


def _collectives(trace: Trace, graph: ExecutionGraph) -> Iterator[tuple[int, int, str, int]]:
    """(arrival, transfer, names around its launch, elements or 0) of each on a device whose launch
    was recorded; both are one node where ranks do not meet."""
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        launched = dict(zip(links.device_rows.tolist(), links.device_launch.tolist(), strict=True))
        for arrival, transfer in np.stack(graph.device_span(rank.rank), axis=1).tolist():
            launch = launched.get(row := int(graph.nodes_.row[transfer]), NONE)
            if graph.nodes_.kind[transfer] == NodeKind.COLLECTIVE and launch != NONE:
                around = rows_around(rank, launch).tolist()
                elements = max(0, int(rank.in_elements[[row, *around]].max()))
                yield arrival, transfer, " / ".join(map(rank.text, around)), elements
