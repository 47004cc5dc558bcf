"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.prediction.run import MODES, predict
from perfmodel.prediction.types import Prediction, Result
from perfmodel.prediction.whatif import Scale

if TYPE_CHECKING:
    from perfmodel.prediction.deployment import predict_deployment
    from perfmodel.prediction.workload import predict_workload

__all__ = [
    "MODES",
    "Prediction",
    "Result",
    "Scale",
    "predict",
    "predict_deployment",
    "predict_workload",
]


def __getattr__(name: str) -> object:
    """Configurations load on first use: a trace needs none of what they are made of."""
    if name == "predict_workload":
        from perfmodel.prediction.workload import predict_workload

        return predict_workload
    if name == "predict_deployment":
        from perfmodel.prediction.deployment import predict_deployment

        return predict_deployment
    raise AttributeError(f"module 'perfmodel.prediction' has no attribute {name!r}")
