"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration."""

from perfmodel.prediction.run import MODES, predict
from perfmodel.prediction.types import Prediction, Result
from perfmodel.prediction.whatif import Scale
from perfmodel.prediction.workload import predict_workload

__all__ = ["MODES", "Prediction", "Result", "Scale", "predict", "predict_workload"]
