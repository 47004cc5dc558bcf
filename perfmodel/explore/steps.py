"""Step times of a trace on the machines of many points, block by block."""

from __future__ import annotations

import numpy as np

from perfmodel.attribution.steps import ranks_of, steady_steps
from perfmodel.explore.machines import Machines
from perfmodel.explore.points import Points
from perfmodel.explore.transfers import Transfers
from perfmodel.graph import build_graph
from perfmodel.timeline.batched import Walk
from perfmodel.timeline.schedule import measured
from perfmodel.trace import Trace
from perfmodel.trace.columns import Floats

WIDTH, LEAST_WIDTH = 4096, 64
"""Points that are scheduled at once, of small graphs and of large ones."""
BLOCK = 1 << 23
"""Durations that are held at once: 32 MB."""


class TraceSteps:
    """What `predict(trace, hardware=…)` says of the step of each point: the slowest rank's median
    over the steady steps."""

    def __init__(self, trace: Trace, machines: Machines) -> None:
        """Raises `TraceError` where the trace does not name one GPU."""
        graph = build_graph(trace)
        self.transfers = Transfers(trace, graph, machines)
        self.walk = Walk.of(graph)
        self.ranks = len(ranks_of(graph))
        self.steady = steady_steps(measured(graph))

    def __len__(self) -> int:
        return len(self.walk.graph)

    @property
    def width(self) -> int:
        """How many points are scheduled at once, so that memory is bounded for any graph."""
        return int(np.clip(BLOCK // max(1, len(self)), LEAST_WIDTH, WIDTH))

    def step_us(self, points: Points) -> Floats:
        """Per point."""
        found = np.empty(len(points))
        for places, block in self.transfers.blocks(points, self.width):
            found[places] = self.of_marks(self.walk.step_us(block))
        return found

    def of_marks(self, step_us: Floats) -> Floats:
        """From the durations of the graph's marks `[marks, points]`."""
        by_rank = step_us.reshape(self.ranks, -1, step_us.shape[1])
        slowest: Floats = np.median(by_rank[:, self.steady], axis=1).max(axis=0)
        return slowest
