"""perfmodel: how long will one batch take on this hardware, and why?

The public names load on first use, so that importing the package costs nothing and the collector
runs where only PyTorch and NumPy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel import (
        cost,
        designs,
        embedding,
        explore,
        graph,
        hardware,
        ops,
        plot,
        prediction,
        workload,
    )
    from perfmodel.api import check, compare, diff, evaluate, plan, predict_module, sweep
    from perfmodel.calibrate.fit import fit
    from perfmodel.cost.durations import durations
    from perfmodel.cost.host.profile import Profile, load_profile
    from perfmodel.designs.deployment import deployment_of
    from perfmodel.errors import PerfmodelError
    from perfmodel.graph import build_graph
    from perfmodel.graph.types import ExecutionGraph
    from perfmodel.prediction.run import predict
    from perfmodel.prediction.types import Prediction
    from perfmodel.reporting.written import export, report
    from perfmodel.timeline.breakdown import Breakdown, breakdown
    from perfmodel.timeline.schedule import Timeline, schedule
    from perfmodel.trace.read import Trace, read
    from perfmodel.workload.load import load_workload

__all__ = [
    "Breakdown",
    "ExecutionGraph",
    "PerfmodelError",
    "Prediction",
    "Profile",
    "Timeline",
    "Trace",
    "__version__",
    "breakdown",
    "build_graph",
    "check",
    "compare",
    "cost",
    "deployment_of",
    "designs",
    "diff",
    "durations",
    "embedding",
    "evaluate",
    "explore",
    "export",
    "fit",
    "graph",
    "hardware",
    "load_profile",
    "load_workload",
    "ops",
    "plan",
    "plot",
    "predict",
    "predict_module",
    "prediction",
    "read",
    "report",
    "schedule",
    "sweep",
    "workload",
]


__version__ = "0.1.0"

_PUBLIC = {
    "Breakdown": "perfmodel.timeline.breakdown",
    "ExecutionGraph": "perfmodel.graph",
    "PerfmodelError": "perfmodel.errors",
    "Prediction": "perfmodel.prediction",
    "Profile": "perfmodel.cost.host",
    "Timeline": "perfmodel.timeline",
    "Trace": "perfmodel.trace",
    "breakdown": "perfmodel.timeline.breakdown",
    "build_graph": "perfmodel.graph",
    "check": "perfmodel.api",
    "compare": "perfmodel.api",
    "deployment_of": "perfmodel.designs",
    "diff": "perfmodel.api",
    "durations": "perfmodel.cost.durations",
    "evaluate": "perfmodel.api",
    "export": "perfmodel.reporting.written",
    "fit": "perfmodel.calibrate.fit",
    "load_profile": "perfmodel.cost.host",
    "load_workload": "perfmodel.workload",
    "plan": "perfmodel.api",
    "predict": "perfmodel.prediction",
    "predict_module": "perfmodel.api",
    "read": "perfmodel.trace",
    "report": "perfmodel.reporting.written",
    "schedule": "perfmodel.timeline",
    "sweep": "perfmodel.api",
}


_PACKAGES = (
    *("cost", "designs", "embedding", "explore", "graph", "hardware", "ops", "plot"),
    *("prediction", "workload"),
)
"""Packages whose own names are public: `perfmodel.hardware.cluster`."""

__getattr__ = exports(__name__, _PUBLIC, _PACKAGES)


def __dir__() -> list[str]:
    return sorted(__all__)
