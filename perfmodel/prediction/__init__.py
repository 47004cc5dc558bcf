"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration.

The names load on first use: a breakdown asks for what-ifs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.prediction.gains import Gain
    from perfmodel.prediction.run import MODES, Request, predict, predicted
    from perfmodel.prediction.types import Prediction, Result
    from perfmodel.prediction.what_if import Scale

__all__ = [
    "MODES",
    "Gain",
    "Prediction",
    "Request",
    "Result",
    "Scale",
    "predict",
    "predicted",
]


__getattr__ = exports(
    __name__,
    {
        "MODES": "perfmodel.prediction.run",
        "Gain": "perfmodel.prediction.gains",
        "Prediction": "perfmodel.prediction.types",
        "Request": "perfmodel.prediction.run",
        "Result": "perfmodel.prediction.types",
        "Scale": "perfmodel.prediction.what_if",
        "predict": "perfmodel.prediction.run",
        "predicted": "perfmodel.prediction.run",
    },
)
