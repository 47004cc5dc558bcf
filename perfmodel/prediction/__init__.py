"""Predictions: a trace replayed, edited, or transferred to other hardware."""

from perfmodel.prediction.run import MODES, predict
from perfmodel.prediction.types import Prediction, Result
from perfmodel.prediction.whatif import Scale

__all__ = ["MODES", "Prediction", "Result", "Scale", "predict"]
