"""One built step as one of many that follow one another: what it waits for of those before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Ints, distinct
from perfmodel.lowering.arguments import OWN_STREAM
from perfmodel.lowering.build import COPY_STREAM, DISTRIBUTION_STREAM, FETCH
from perfmodel.lowering.draft import KINDS, LAG_US, Built
from perfmodel.lowering.lower import Lowered
from perfmodel.timeline.graph.kinds import DEVICE_KINDS, EdgeKind, NodeKind
from perfmodel.timeline.graph.types import CarriedEdges, Edges, ExecutionGraph
from perfmodel.trace.columns import NONE

_WAITS = (EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE)
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
    apart = np.isin(kept.kind, _WAITS) & (stage[kept.source] != stage[kept.target])
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
