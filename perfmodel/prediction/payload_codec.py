"""What if the payload of collectives were sent in a narrower type? Codecs cost kernels.

They are put into the measured graph before and behind each collective.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.graph.types import Edges, ExecutionGraph
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.prediction.explain.node import call_stack, enclosing_rows
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE

KernelWork = tuple[str, float]
"""A kernel's name and its microseconds."""
_OUTPUT_EDGES = (EdgeKind.EVENT_WAIT, EdgeKind.DATA)
"""Edges by which other streams take what a collective brought."""
_INPUT_EDGES = (EdgeKind.EVENT_WAIT_COLLECTIVE, EdgeKind.EVENT_WAIT, EdgeKind.DATA)


@dataclass(frozen=True)
class CollectiveNeighbours:
    """Kernels around one collective: what it waits for, what overlaps it, what follows it."""

    arrival: int
    transfer: int
    """The same node where ranks do not meet."""
    before: Sequence[KernelWork] = ()
    beside: Sequence[KernelWork] = ()
    """On the stream of `before`, behind it; the collective does not wait for these."""
    behind: Sequence[KernelWork] = ()


def with_kernels(graph: ExecutionGraph, around: Sequence[CollectiveNeighbours]) -> ExecutionGraph:
    """`graph` with the kernels of `around` in it.

    Those before a collective run on the stream that made its input, behind the operation that the
    collective waited for; those behind it on the stream of the first operation that waited for it,
    which now waits for them. Those between the same two operations of a stream follow one another.
    Lags between them are those of a stream. Where nothing of another stream is known to come before
    or behind a collective, they run on the collective's own.
    """
    draft, nodes = _Draft(graph), graph.nodes_
    for one in sorted(around, key=lambda one: nodes.start_us[one.arrival]):
        draft.put_before(one)
    for one in sorted(around, key=lambda one: nodes.end_us[one.transfer]):
        draft.put_behind(one)
    return draft.graph()


class _Draft:
    """The graph's edges as lists, and the nodes that are new.

    `gaps` has the last new node between an operation and the next one of its stream, by the former;
    by the latter, less the number of nodes, where it is the first of its stream.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        self.of = graph
        edges = graph.edges_
        self.source, self.kind = edges.source.copy(), edges.kind
        self.new_nodes: list[tuple[str, float, int, int, float]] = []
        self.new_edges: list[tuple[int, int, int]] = []
        self.gaps: dict[int, int] = {}
        self.by_target = graph.predecessors
        self.leaving = np.argsort(edges.source, kind="stable")
        self.first_leaving = np.searchsorted(edges.source[self.leaving], np.arange(len(graph) + 1))
        pairs = graph.neighbours
        self.next = dict(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))
        self.previous = {after: before for before, after in self.next.items()}

    def put_before(self, one: CollectiveNeighbours) -> None:
        """What the collective waits for, and what runs beside it."""
        nodes = self.of.nodes_
        produced = [e for e in self._into(one.arrival) if self.kind[e] in _INPUT_EDGES]
        made_by = max(
            self.of.edges_.source[produced].tolist(),
            key=lambda node: nodes.end_us[node],
            default=self.previous.get(one.arrival, NONE),
        )
        if made_by == NONE:
            return
        at_us = float(nodes.start_us[one.arrival])
        last = self._chain(made_by, made_by, one.before, at_us)
        if one.before:
            self.new_edges.append((last, one.arrival, EdgeKind.EVENT_WAIT_COLLECTIVE))
        self._chain(made_by, made_by, one.beside, at_us)

    def put_behind(self, one: CollectiveNeighbours) -> None:
        """What those who waited for the collective now wait for."""
        if not one.behind:
            return
        nodes, transfer = self.of.nodes_, one.transfer
        handed = [e for e in self._out_of(transfer) if self.kind[e] in _OUTPUT_EDGES]
        taken = self.of.edges_.target[handed].tolist()
        first = min(taken, key=lambda node: nodes.start_us[node], default=NONE)
        gap = transfer if first == NONE else self.previous.get(first, first - len(self.of))
        begin = len(self.of) + len(self.new_nodes)
        like = transfer if first == NONE else first
        last = self._chain(gap, like, one.behind, float(nodes.end_us[transfer]))
        self.new_edges.append((transfer, begin, EdgeKind.EVENT_WAIT))
        if first == NONE:
            handed = [e for e in self._out_of(transfer) if self.kind[e] != EdgeKind.RENDEZVOUS]
        self.source[handed] = last

    def _chain(self, gap: int, like: int, work: Sequence[KernelWork], at_us: float) -> int:
        """Kernels one after another in `gap`, on the stream of `like`; the last one in the gap."""
        nodes = self.of.nodes_
        rank, resource = int(nodes.rank[like]), int(nodes.resource[like])
        for label, duration_us in work:
            node, behind = len(self.of) + len(self.new_nodes), self.gaps.get(gap, gap)
            self.new_nodes.append((label, duration_us, rank, resource, at_us))
            if behind >= 0:
                self.new_edges.append((behind, node, EdgeKind.STREAM))
            self.gaps[gap] = node
        return self.gaps.get(gap, gap)

    def _into(self, node: int) -> list[int]:
        first, by_target = self.by_target
        result: list[int] = by_target[first[node] : first[node + 1]].tolist()
        return result

    def _out_of(self, node: int) -> list[int]:
        result: list[int] = self.leaving[
            self.first_leaving[node] : self.first_leaving[node + 1]
        ].tolist()
        return result

    def graph(self) -> ExecutionGraph:
        """The graph in which the next operation of each stream waits for what is new before it."""
        of, count = self.of, len(self.new_nodes)
        if not count:
            return of
        for gap, last in self.gaps.items():
            follower = self.next.get(gap) if gap >= 0 else gap + len(of)
            if follower is not None:
                self.new_edges.append((last, follower, EdgeKind.STREAM))
        labels, taken, rank, resource, start = zip(*self.new_nodes, strict=True)
        source, target, kind = np.array(self.new_edges, np.int64).reshape(-1, 3).T
        lag_us = np.zeros(len(kind))
        for code in np.unique(kind):
            known_us = of.edges_.lag_us[of.edges_.kind == code]
            lag_us[kind == code] = np.median(known_us) if len(known_us) else 0.0
        return replace(
            of,
            nodes_=of.nodes_.with_more(
                count,
                kind=NodeKind.KERNEL,
                cause=Cause.COMPUTE,
                scope=Scope.COMPUTE,
                rank=rank,
                resource=resource,
                row=NONE,
                start_us=start,
                duration_us=taken,
                release_us=-np.inf,
            ),
            edges_=replace(of.edges_, source=self.source).and_(
                Edges.of(source, target, kind, lag_us=lag_us)
            ),
            labels=(*of.labels, *labels),
            annotations=(*of.annotations, *("",) * count),
        )


WIDE_BYTES, BOOL_BYTES = 4.0, 1.0
BACKWARD = "Backward"
"""In the operators around an exchange of gradients."""


@dataclass(frozen=True)
class _Stream:
    """A kernel that streams the payload once: bytes read and written per element."""

    name: str
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class _Codec:
    """A type for payloads: its bytes, and whether values are clamped to its range before."""

    item_bytes: float
    clamps: bool


CODECS = {"fp16": _Codec(2.0, clamps=True), "bf16": _Codec(2.0, clamps=False)}
"""bf16 reaches as far as fp32, so nothing is clamped.
Source: FBGEMM's `fp32_to_fp16_with_clamp`, recalled; TorchRec's `QuantizedCommCodecs`."""
_MASKS = (
    _Stream("elementwise codec: compare", WIDE_BYTES, BOOL_BYTES),
    _Stream("elementwise codec: compare", WIDE_BYTES, BOOL_BYTES),
    _Stream("elementwise codec: and", 2 * BOOL_BYTES, BOOL_BYTES),
)
_MASKED = (_Stream("elementwise codec: where", WIDE_BYTES + BOOL_BYTES, WIDE_BYTES),)
"""What autograd does for a clamp: masks of what was inside the range, applied to the gradient."""


@dataclass(frozen=True)
class Codec:
    """Collectives whose operators `pattern` fits send `dtype`: `REGEX=DTYPE[,elements=N]`."""

    text: str
    pattern: re.Pattern[str]
    dtype: str
    elements: int | None

    @classmethod
    def parse(cls, text: str) -> Codec:
        """From the command line's `--codec`; raises `UsageError` saying what is wrong."""
        what, equals, how = text.rpartition("=")
        elements = None
        if what.endswith(",elements") and how.isdecimal() and int(how) > 0:
            elements = int(how)
            what, equals, how = what.removesuffix(",elements").rpartition("=")
        if not (what and equals) or how not in CODECS:
            raise UsageError(
                f"--codec {text!r}: expected REGEX=DTYPE[,elements=N], DTYPE one of "
                f"{', '.join(CODECS)}, N a whole number above 0"
            )
        try:
            return cls(text, re.compile(what), how, elements)
        except re.error as error:
            raise UsageError(f"--codec {text!r}: not a regular expression: {error}") from None


def with_codecs(
    trace: Trace,
    graph: ExecutionGraph,
    duration_us: Floats,
    codecs: Sequence[Codec],
    machine: Cluster,
) -> tuple[ExecutionGraph, Floats, list[str]]:
    """The graph with the codecs' kernels, the durations of its nodes with shorter transfers, and
    what a user should know.

    A codec is matched against the operators and annotations around a collective's launch, as in
    `forward / _AlltoAllSingle / c10d::alltoall_base_`. A transfer shrinks as the model of its
    collective says for the smaller payload. Raises `UsageError` where a codec matches no
    collective, or the size of a payload is neither recorded nor given.
    """
    ranks = {rank.rank: rank for rank in trace.ranks}
    collectives = _collectives(trace, graph)
    taken = duration_us.copy()
    added: list[CollectiveNeighbours] = []
    notes = []
    clamped = any(CODECS[codec.dtype].clamps for codec in codecs)
    for codec in codecs:
        chosen = [one for one in collectives if codec.pattern.search(one.stack)]
        if not chosen:
            raise UsageError(f"--codec {codec.text!r} matches no collective of this trace")
        for one in chosen:
            elements = codec.elements or one.elements
            if not elements:
                raise UsageError(
                    f"--codec {codec.text!r}: the trace does not record how many elements "
                    f"{graph.labels[one.transfer][:60]!r} sends: say ,elements=N"
                )
            rank = ranks[int(graph.nodes_.rank[one.transfer])]
            taken[one.transfer] *= _shrinkage(codec.dtype, elements, trace, rank, machine)
            added.append(_codec_kernels(one, codec.dtype, elements, clamped, machine))
        last = added[-1]
        added_us = sum(us for _, us in (*last.before, *last.beside, *last.behind))
        notes.append(
            f"codec {codec.text}: {len(chosen)} collectives, {added_us:.0f} us of kernels around "
            "the last; their launches take the host no time"
        )
    edited = with_kernels(graph, added)
    return edited, np.append(taken, edited.nodes_.duration_us[len(graph) :]), notes


@dataclass(frozen=True)
class _Collective:
    """A collective on a device: its nodes, the operators around its launch, and what it sends."""

    arrival: int
    transfer: int
    stack: str
    elements: int
    """0 where it is not recorded."""


def _collectives(trace: Trace, graph: ExecutionGraph) -> list[_Collective]:
    """Every collective on a device whose launch was recorded."""
    arrivals = np.zeros((0, 2), np.int64) if graph.arrivals is None else graph.arrivals
    met = dict(zip(*arrivals.T.tolist(), strict=True))
    of_rank = {
        rank.rank: (
            rank,
            dict(zip(links.device_rows.tolist(), links.device_launch.tolist(), strict=True)),
        )
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    }
    collectives = []
    is_collective = (graph.nodes_.kind == NodeKind.COLLECTIVE) & graph.on_device
    is_collective[arrivals[:, 1]] = False
    for node in np.flatnonzero(is_collective).tolist():
        rank, launched = of_rank[int(graph.nodes_.rank[node])]
        row = int(graph.nodes_.row[node])
        launch = launched.get(row, NONE)
        if launch != NONE:
            events = [row, *enclosing_rows(rank, launch).tolist()]
            elements = max(0, int(rank.in_elements[events].max()))
            stack = call_stack(rank, launch)
            collectives.append(_Collective(met.get(node, node), node, stack, elements))
    return collectives


def _shrinkage(dtype: str, elements: int, trace: Trace, rank: RankTrace, machine: Cluster) -> float:
    """Modelled time of the narrow payload over that of the wide one."""
    ranks = float(max(rank.world_size or 1, len(trace.ranks), 2))
    rows = Rows.of(
        [
            {"op": "all_to_all", "dtype": "fp32", "direction": "fwd", "ranks": ranks}
            | {"size_bytes": elements * item}
            for item in (CODECS[dtype].item_bytes, WIDE_BYTES)
        ]
    )
    narrow, wide = durations_of(rows, machine).duration_us.tolist()
    return float(narrow / wide)


def _codec_kernels(
    one: _Collective, dtype: str, elements: int, clamped: bool, machine: Cluster
) -> CollectiveNeighbours:
    """Encoding before a collective and decoding behind it; behind an exchange of gradients also
    what the gradient of a clamp takes."""
    item = CODECS[dtype].item_bytes
    narrow = _Stream("elementwise codec: encode", WIDE_BYTES, item)
    widen = _Stream("elementwise codec: decode", item, WIDE_BYTES)
    clamp = (
        (_Stream("elementwise codec: clamp", WIDE_BYTES, WIDE_BYTES),)
        if CODECS[dtype].clamps
        else ()
    )
    is_backward = BACKWARD in one.stack
    masks, masked = (_MASKS, _MASKED) if is_backward and clamped else ((), ())
    parts = ((*clamp, narrow), masks, (widen, *masked))
    streams = [stream for part in parts for stream in part]
    times = iter(_times_us(streams, elements, machine))
    before, beside, behind = ([(each.name, next(times)) for each in part] for part in parts)
    return CollectiveNeighbours(one.arrival, one.transfer, before, beside, behind)


def _times_us(streams: Sequence[_Stream], elements: int, machine: Cluster) -> list[float]:
    rows = Rows.of(
        [
            {
                "op": "elementwise",
                "dtype": "fp32",
                "direction": "fwd",
                "elements": float(elements),
                "reads": one.read_bytes / WIDE_BYTES,
                "writes": one.written_bytes / WIDE_BYTES,
            }
            for one in streams
        ]
    )
    times_us: list[float] = durations_of(rows, machine).duration_us.tolist()
    return times_us
