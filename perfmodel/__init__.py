"""perfmodel: how long will one batch take on this hardware, and why?

The public names load on first use, so that importing the package costs nothing and the collector
runs where only PyTorch and NumPy are installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.attribution import Breakdown, breakdown
    from perfmodel.duration import durations
    from perfmodel.errors import PerfmodelError
    from perfmodel.graph import ExecutionGraph, build_graph
    from perfmodel.overheads import Profile, load_profile
    from perfmodel.prediction import Prediction, predict
    from perfmodel.timeline import Timeline, schedule
    from perfmodel.trace import Trace, read

__version__ = "0.1.0"

_PUBLIC = {
    "Breakdown": "perfmodel.attribution",
    "ExecutionGraph": "perfmodel.graph",
    "PerfmodelError": "perfmodel.errors",
    "Prediction": "perfmodel.prediction",
    "Profile": "perfmodel.overheads",
    "Timeline": "perfmodel.timeline",
    "Trace": "perfmodel.trace",
    "breakdown": "perfmodel.attribution",
    "build_graph": "perfmodel.graph",
    "durations": "perfmodel.duration",
    "load_profile": "perfmodel.overheads",
    "predict": "perfmodel.prediction",
    "read": "perfmodel.trace",
    "schedule": "perfmodel.timeline",
}

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
    "durations",
    "load_profile",
    "predict",
    "read",
    "schedule",
]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
