"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration.

The names load on first use: a breakdown asks for what-ifs alone, a trace needs nothing of what
configurations are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

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


__getattr__ = exports(
    __name__,
    {
        "MODES": "perfmodel.prediction.run",
        "Gain": "perfmodel.prediction.gains",
        "Prediction": "perfmodel.prediction.types",
        "Result": "perfmodel.prediction.types",
        "Scale": "perfmodel.prediction.what_if",
        "predict": "perfmodel.prediction.run",
        "predict_deployment": "perfmodel.prediction.deployment",
        "predict_workload": "perfmodel.prediction.configuration",
    },
)
