"""A prediction of a step that repeats: its period, and which resource decides it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.lowering.build import COPY_STREAM, DISTRIBUTION_STREAM
from perfmodel.lowering.draft import Built
from perfmodel.lowering.repeat import LOADER
from perfmodel.prediction.scheduled import Scheduled
from perfmodel.timeline.steady import SteadyState, steady_state

HOST = "host"
NAMES = {
    "compute": "compute",
    "comm": "network",
    COPY_STREAM: "input copies",
    DISTRIBUTION_STREAM: "input distribution",
    LOADER: "data loading",
}
"""What people call streams, and the loader's thread; other threads are the host."""


def repeated(found: Scheduled) -> tuple[Scheduled, dict[str, float]]:
    """One period of `found`, whose graph carries edges to later steps, and what decides it."""
    steady = steady_state(found.timeline.graph)
    window = steady.window()
    copies = len(window.graph) // len(steady.graph)
    built = Built(window.graph, np.tile(found.built.piece, copies))
    return replace(found, timeline=window, built=built, copies=copies), bound_by(steady)


def bound_by(steady: SteadyState) -> dict[str, float]:
    """Microseconds per step of the deciding cycle by resource, largest first."""
    found: dict[str, float] = {}
    for resource, taken_us in steady.by_resource().items():
        name = NAMES.get(resource.rpartition("/")[2], HOST)
        found[name] = found.get(name, 0.0) + taken_us
    return dict(sorted(found.items(), key=lambda item: -item[1]))
