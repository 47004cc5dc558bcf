"""Nodes and edges of an execution graph as they are found, and lags between them; what a built step
waits for of those before it; and which ops of a step CUDA graphs launch: all in a row that ask
nothing of the host.

What stays alone is launched op by op: what brings a batch, whose keys are as many as they happen to
be; what the host waits for, does itself or hands over to a tier; a pipeline's work for later steps.
All but the pipeline's, which is no part of the step, cut the row: behind them another graph begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Ints, distinct
from perfmodel.errors import Note
from perfmodel.lowering.arguments import OWN_STREAM
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import TYPES
from perfmodel.lowering.lower import Lowered
from perfmodel.ops.edits.compiled import CALL
from perfmodel.ops.graph import DEVICE_WIDE, INPUT, LAUNCHED_ALONE, WAITING, outermost_of
from perfmodel.timeline.graph.kinds import DEVICE_KINDS, HANDED, Cause, EdgeKind, NodeKind, Scope
from perfmodel.timeline.graph.types import CarriedEdges, Edges, ExecutionGraph, Nodes, StepMarks
from perfmodel.trace.columns import NONE

LAG_US = {
    EdgeKind.PROGRAM: 0.0,
    EdgeKind.LAUNCH: 1.5,
    EdgeKind.LAUNCH_COPY: 2.0,
    EdgeKind.LAUNCH_COLLECTIVE: 2.0,
    EdgeKind.STREAM: 1.4,
    EdgeKind.STREAM_COPY: 1.4,
    EdgeKind.STREAM_COLLECTIVE: 1.4,
    EdgeKind.STREAM_GRAPH: 0.25,
    EdgeKind.EVENT_WAIT: 1.5,
    EdgeKind.EVENT_WAIT_COLLECTIVE: 1.5,
    EdgeKind.HOST_SYNC: 2.0,
    EdgeKind.BLOCKING_COPY: 8.0,
    EdgeKind.HAND_OVER: 0.0,
}
"""Near the middle of what replays of the shared NVIDIA traces find (V100, A100, H100, RTX 2080 Ti;
`build_graph(trace).edges`), whose whole microseconds and clocks leave each uncertain by one or two.
Within a graph: of 29 modules of five kernels and more on one H200 (traces/h200/modules_graphs.csv)
the median of a replay less the kernels of its eager call, per kernel.
Assumed: collectives as kernels (0 to 6 are found), and a host that wakes up within 2."""

_KERNEL = (NodeKind.KERNEL, Cause.COMPUTE, Scope.COMPUTE)
_COPY = (NodeKind.COPY, Cause.MEMCPY, Scope.MEMCPY)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)
_OFFLOAD = (NodeKind.OFFLOAD, Cause.DATA_LOADING, Scope.NONE)
KINDS = {
    "kernel": (*_KERNEL, EdgeKind.LAUNCH, EdgeKind.STREAM),
    "copy": (*_COPY, EdgeKind.LAUNCH_COPY, EdgeKind.STREAM_COPY),
    "collective": (*_COLLECTIVE, EdgeKind.LAUNCH_COLLECTIVE, EdgeKind.STREAM_COLLECTIVE),
    "offload": (*_OFFLOAD, EdgeKind.HAND_OVER, EdgeKind.PROGRAM),
}
"""What a piece's node is, how it is launched, and what it waits for on its stream."""
CAUSES = {kind: Cause[f"HOST_{kind.upper()}"] for kind in TYPES}


@dataclass(frozen=True)
class Built:
    """The graph, and per node the piece behind it, or -1 for the host's own work and marks."""

    graph: ExecutionGraph
    piece: Ints
    notes: tuple[str, ...] = ()


class _Node(NamedTuple):
    kind: NodeKind
    cause: Cause
    scope: Scope
    resource: int
    label: str
    duration_us: float
    piece: int
    row: int
    """Row of the trace that tells what a node takes, or -1."""


@dataclass
class Draft:
    """Nodes and edges as they are found; host nodes as (type, op, thread) until they are timed."""

    rank: int
    resources: dict[str, int] = field(default_factory=dict)
    nodes: list[_Node] = field(default_factory=list)
    overhead: list[tuple[int, str, str, str]] = field(default_factory=list)
    """(node, overhead type, operator, thread) of what a profile times."""
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    process_groups: dict[int, str] = field(default_factory=dict)
    """Node of a collective to its process group, where it is known."""

    def add(
        self,
        kind: NodeKind,
        cause: Cause,
        scope: Scope,
        resource: str,
        label: str,
        duration_us: float = 0.0,
        piece: int = NONE,
        row: int = NONE,
    ) -> int:
        place = self.resource_of(resource)
        self.nodes.append(_Node(kind, cause, scope, place, label, duration_us, piece, row))
        return len(self.nodes) - 1

    def resource_of(self, name: str) -> int:
        """The index of a thread or stream; one that is new is added."""
        return self.resources.setdefault(f"{self.rank}/{name}", len(self.resources))

    def edge(self, source: int | None, target: int, kind: EdgeKind) -> None:
        if source is not None:
            self.edges.append((source, target, kind))

    def built(
        self,
        marks: list[tuple[int, int, int]],
        profile: Profile | None = None,
        host_ratio: float = 1.0,
        statistic: str = "",
        notes: tuple[str, ...] = (),
    ) -> Built:
        """The graph with `marks` (step, start, end), its host timed by that of `profile`."""

        def column(name: str) -> Ints:
            return np.array([getattr(node, name) for node in self.nodes], np.int64)

        count = len(self.nodes)
        duration = np.array([node.duration_us for node in self.nodes], np.float64)
        if self.overhead:
            assert profile is not None
            node, kind, op, thread = zip(*self.overhead, strict=True)
            taken = profile.durations(kind, op, thread, statistic=statistic)
            duration[list(node)] = taken * host_ratio
        edges = np.array(self.edges, np.int64).reshape(-1, 3)
        has_edge = np.zeros(count, bool)
        has_edge[edges[:, 1]] = True
        nodes = Nodes(
            kind=column("kind"),
            cause=column("cause"),
            scope=column("scope"),
            rank=np.full(count, self.rank, np.int64),
            resource=column("resource"),
            row=column("row"),
            start_us=np.arange(count, dtype=np.float64),
            duration_us=duration,
            release_us=np.where(has_edge, -np.inf, 0.0),
        )
        lag = np.array([LAG_US[EdgeKind(kind)] for kind in edges[:, 2].tolist()], np.float64)
        bounds = np.array([(start, end) for _, start, end in marks], np.int64).reshape(-1, 2)
        names = tuple(f"step {step}" for step, _, _ in marks)
        graph = ExecutionGraph(
            nodes,
            Edges(edges[:, 0], edges[:, 1], edges[:, 2], np.zeros(len(edges)), lag),
            StepMarks(np.full(len(marks), self.rank, np.int64), names, bounds[:, 0], bounds[:, 1]),
            tuple(self.resources),
            tuple(node.label for node in self.nodes),
            ("",) * count,
            process_groups=self.process_groups,
        )
        return Built(graph, column("piece"), notes)


COPY_STREAM, DISTRIBUTION_STREAM = "copy", "input"
DISTRIBUTE, FETCH = "distribute", "fetch"
"""Values of `OWN_STREAM` where a pipeline has a stream for kernels too, and where it brings rows
that a later step looks up."""
_STREAM_EDGE = {int(kind): edge for kind, *_, edge in KINDS.values()}
OWN, FED, FETCHED = range(3)
"""Who started a node: the step; a pipeline that feeds it, by copies and distribution; one that
fetches rows for it."""
Link = tuple[int, int, EdgeKind, int]
"""Source, target, kind, and how many steps later the target is."""


def with_carried_edges(built: Built, lowered: Lowered) -> Built:
    """`built`, of one step, with what it carries to the steps after it; of several, as it is.

    The host goes on without waiting for the device, streams keep their order, and what a pipeline
    brings (ops marked so) is for later steps: a step's work waits for what the step before
    distributed or, where nothing is distributed, copied; what is distributed, for what the step
    before copied. Rows that are fetched ahead come between the two: for them a step waits, they
    for what was distributed. Within a step stages do not wait for one another.
    Source: `TrainPipelineSparseDist` of TorchRec, whose stages these are.
    """
    graph = built.graph
    if len(graph.marks.name) != 1:
        return built
    names = [op.attributes.get(OWN_STREAM) for op in lowered.graph.ops]
    of_op = np.array([{None: OWN, FETCH: FETCHED}.get(name, FED) for name in names], np.int64)
    stage, rows = np.full(len(built.piece), OWN), np.flatnonzero(built.piece != NONE)
    if len(rows):
        stage[rows] = of_op[lowered.owner][built.piece[rows]]
    kept = graph.edges_
    apart = np.isin(kept.kind, HANDED) & (stage[kept.source] != stage[kept.target])
    start, end = int(graph.marks.start[0]), int(graph.marks.end[0])
    last = kept.source[(kept.target == end) & (kept.kind == EdgeKind.PROGRAM)]
    of_host = (int(last[0]), start, EdgeKind.PROGRAM, 1)  # the host goes on with the next step
    links = [of_host, *_of_pipeline(graph, stage)]
    on_stream = np.flatnonzero(np.isin(graph.nodes_.kind, (*DEVICE_KINDS, NodeKind.OFFLOAD)))
    resource = graph.nodes_.resource[on_stream]
    for each in distinct(resource).tolist():  # from the last operation to the first of the next
        own = on_stream[resource == each]
        first = int(own[0])
        links.append((int(own[-1]), first, _STREAM_EDGE[int(graph.nodes_.kind[first])], 1))
    return replace(built, graph=replace(graph, edges_=kept.where(~apart), carried=_carried(links)))


def serial_steps(built: Built) -> Built:
    """`built`, of one step, as one that begins where the one before ended."""
    marks = built.graph.marks
    links = [(int(marks.end[0]), int(marks.start[0]), EdgeKind.PROGRAM, 1)]
    return replace(built, graph=replace(built.graph, carried=_carried(links)))


def _carried(links: list[Link]) -> CarriedEdges:
    """Carried edges with the lags of built graphs."""
    source, target, kind, distance = (list(column) for column in zip(*links, strict=True))
    edges = Edges(
        np.array(source, np.int64),
        np.array(target, np.int64),
        np.array(kind, np.int64),
        np.zeros(len(links)),
        np.array([LAG_US[each] for each in kind]),
    )
    return CarriedEdges(edges, np.array(distance, np.int64))


def _of_pipeline(graph: ExecutionGraph, stage: Ints) -> list[Link]:
    """Hand-overs between the pipeline's copies, its distribution, the rows that it fetches, and the
    step's own work."""
    nodes = graph.nodes_
    on_copy = np.array([name.endswith(f"/{COPY_STREAM}") for name in graph.resources], bool)
    copies = np.flatnonzero((stage == FED) & on_copy[nodes.resource])
    distributed = np.flatnonzero((stage == FED) & ~on_copy[nodes.resource])
    fetched = np.flatnonzero(stage == FETCHED)
    own = np.flatnonzero((stage == OWN) & np.isin(nodes.kind, DEVICE_KINDS))
    on_input = np.array(
        [name.endswith(f"/{DISTRIBUTION_STREAM}") for name in graph.resources], bool
    )
    takes = own[on_input[nodes.resource[own]]]
    last = takes if len(takes) else own
    stages = [each for each in (copies, distributed, fetched) if len(each)]
    links: list[Link] = []
    for number, given in enumerate(stages):
        end = own if given is copies else last
        streams = nodes.resource[given]
        last_given = [int(given[streams == stream][-1]) for stream in distinct(streams)]
        for later, taken in enumerate([*stages[number + 1 :], end], 1):
            if len(taken):
                first = int(taken[0])
                links += [(node, first, EdgeKind.EVENT_WAIT, later) for node in last_given]
    return links


BATCH, WAITS, AHEAD = "bring a batch", "wait for the device or the host", "are for later steps"


def captured(
    lowered: Lowered, launching: Mapping[int, bool]
) -> tuple[dict[int, bool], tuple[Note, ...]]:
    """Outermost ops that a CUDA graph launches, to whether one begins with them, and what these
    graphs hold; none unless the program asks. `launching`: all outermost ops in order, to whether
    they start anything."""
    graphs: dict[int, bool] = {}
    if not lowered.graph.cuda_graphs:
        return graphs, ()
    alone = _launched_alone(lowered)
    is_open, step = False, None
    for top, starts in launching.items():  # a graph begins with what starts something
        is_open = is_open and lowered.graph.ops[top].step == step
        step = lowered.graph.ops[top].step
        if lowered.graph.ops[top].name == CALL:  # it launches the graph
            continue
        if top in alone:
            is_open = is_open and alone[top] == AHEAD
            continue
        graphs[top] = starts and not is_open
        is_open = is_open or starts
    starting = [top for top, starts in launching.items() if starts]
    held = sum(top in graphs for top in starting)
    left = Counter(alone[top] for top in starting if top in alone)
    because = ", ".join(f"{count} that {why}" for why, count in left.most_common())
    told = f"CUDA graphs: {sum(graphs.values())} hold {held} calls"
    return graphs, (Note(f"{told}; launched alone: {because}" if because else told),)


def _launched_alone(lowered: Lowered) -> dict[int, str]:
    """Outermost ops that no graph can hold, to the reason."""
    ops = lowered.graph.ops
    outermost = outermost_of(ops)
    alone: dict[int, str] = {}
    for index, op in enumerate(ops):
        if OWN_STREAM in op.attributes:
            alone[outermost[index]] = AHEAD
        elif op.phase == INPUT:
            alone.setdefault(outermost[index], BATCH)
        elif LAUNCHED_ALONE.items() <= op.attributes.items():
            alone.setdefault(outermost[index], "the program leaves out")
        elif op.name in WAITING or DEVICE_WIDE.items() <= op.attributes.items():
            alone.setdefault(outermost[index], WAITS)
    for piece, top in zip(lowered.pieces, lowered.top_level.tolist(), strict=True):
        if piece.blocks or piece.kind in ("offload", "host"):
            alone.setdefault(top, WAITS)
    return alone
