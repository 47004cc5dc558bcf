"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration.

The names load on first use: a breakdown asks for what-ifs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.prediction.compare import break_even_frac
    from perfmodel.prediction.gains import Gain
    from perfmodel.prediction.run import MODES, Request, predict, predicted
    from perfmodel.prediction.running_cost import Activity, operating_costs
    from perfmodel.prediction.types import Prediction, Result
    from perfmodel.prediction.what_if import Scale

__all__ = [
    "MODES",
    "Activity",
    "Gain",
    "Prediction",
    "Request",
    "Result",
    "Scale",
    "break_even_frac",
    "operating_costs",
    "predict",
    "predicted",
]


__getattr__ = exports(
    __name__,
    {
        "MODES": "perfmodel.prediction.run",
        "Activity": "perfmodel.prediction.running_cost",
        "Gain": "perfmodel.prediction.gains",
        "Prediction": "perfmodel.prediction.types",
        "Request": "perfmodel.prediction.run",
        "Result": "perfmodel.prediction.types",
        "Scale": "perfmodel.prediction.what_if",
        "break_even_frac": "perfmodel.prediction.compare",
        "operating_costs": "perfmodel.prediction.running_cost",
        "predict": "perfmodel.prediction.run",
        "predicted": "perfmodel.prediction.run",
    },
)
