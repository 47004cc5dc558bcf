"""A prediction of a step that repeats: its period, and which resource decides it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.errors import PerfmodelError
from perfmodel.graph.kinds import NodeKind
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import Read
from perfmodel.lowering.build import COPY_STREAM, DISTRIBUTION_STREAM
from perfmodel.lowering.draft import Built
from perfmodel.lowering.repeat import LOADER
from perfmodel.ops.spec import Floats
from perfmodel.prediction.beside import has_contention, load_of, rescheduled
from perfmodel.prediction.scheduled import Scheduled
from perfmodel.timeline.contention import lost_us, settled
from perfmodel.timeline.schedule import Timeline
from perfmodel.timeline.steady import STEPS_AHEAD, Recurrence, SteadyState

HOST = "host"
NAMES = {
    "compute": "compute",
    "comm": "network",
    COPY_STREAM: "input copies",
    DISTRIBUTION_STREAM: "input distribution",
    LOADER: "data loading",
}
"""What people call streams, and the loader's thread; other threads are the host."""


class NotFaster(PerfmodelError):
    """A step takes no less than is asked for, whatever else is found of it."""

    def __init__(self, reads: tuple[Read, ...] = ()) -> None:
        super().__init__("not faster")
        self.reads = reads
        """What says so."""


def require_faster(found: Scheduled, than_us: float) -> None:
    """Raise `NotFaster` where a period of `found`, whose graph carries edges to later steps, is
    `than_us` or more even without what its kernels lose to collectives."""
    graph = found.timeline.graph
    if np.isfinite(than_us) and Recurrence.of(graph).period_us(graph.nodes_.duration_us) >= than_us:
        raise NotFaster


def repeated(found: Scheduled, machine: Cluster) -> tuple[Scheduled, dict[str, float]]:
    """One period of `found`, whose graph carries edges to later steps, and what decides it.

    What its kernels lose to collectives beside them, of their own step or of others, is counted.
    """
    graph = found.timeline.graph
    step = Recurrence.of(graph)
    load = load_of(found, machine) if has_contention(found, machine) else None
    last: list[SteadyState] = []

    def run(duration_us: Floats) -> tuple[Timeline, Floats]:
        last[:] = [step.steady_state(duration_us)]
        window = last[0].window()
        if load is None:
            return window, np.zeros(len(graph))
        lost = lost_us(window, load.tiled(len(window.graph) // len(graph)))
        return window, lost.reshape(-1, len(graph))[STEPS_AHEAD]

    window, taken_us = settled(run, graph.nodes_.duration_us)
    copies = len(window.graph) // len(graph)
    one = rescheduled(found, found.timeline, taken_us)
    built = Built(window.graph, np.tile(found.built.piece, copies))
    return replace(one, timeline=window, built=built, copies=copies), bound_by(last[0])


def bound_by(steady: SteadyState) -> dict[str, float]:
    """Microseconds per step of the deciding cycle by resource, largest first."""
    nodes, found = steady.graph.nodes_, dict[str, float]()
    beside = set(nodes.resource[nodes.kind == NodeKind.OFFLOAD].tolist())
    offloads = {steady.graph.resources[row].rpartition("/")[2] for row in beside}
    for resource, taken_us in steady.by_resource().items():
        stream = resource.rpartition("/")[2]
        kind = stream.partition(" ")[0]
        name = stream.replace("_", " ") if stream in offloads else NAMES.get(kind, HOST)
        found[name] = found.get(name, 0.0) + taken_us
    return dict(sorted(found.items(), key=lambda item: -item[1]))
