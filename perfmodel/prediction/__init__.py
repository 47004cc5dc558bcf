"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration.

The names load on first use: a breakdown asks for what-ifs alone, a trace needs nothing of what
configurations are made of.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.prediction.configuration import predict_workload
    from perfmodel.prediction.deployment import predict_deployment
    from perfmodel.prediction.gains import Gain
    from perfmodel.prediction.run import MODES, predict
    from perfmodel.prediction.types import Prediction, Result
    from perfmodel.prediction.what_if import Scale

__all__ = [
    "MODES",
    "Gain",
    "Prediction",
    "Result",
    "Scale",
    "predict",
    "predict_deployment",
    "predict_workload",
]


_HOMES = {
    "MODES": "run",
    "Gain": "gains",
    "Prediction": "types",
    "Result": "types",
    "Scale": "what_if",
    "predict": "run",
    "predict_deployment": "deployment",
    "predict_workload": "configuration",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"perfmodel.prediction.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'perfmodel.prediction' has no attribute {name!r}")
