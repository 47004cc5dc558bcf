"""Predictions: of a trace (replayed, edited, on other hardware) and of a configuration.

The names load on first use: a breakdown asks for what-ifs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.prediction.gains import Gain as Gain
    from perfmodel.prediction.request import Request as Request
    from perfmodel.prediction.run import predict as predict
    from perfmodel.prediction.run import predicted as predicted
    from perfmodel.prediction.running_cost import Activity as Activity
    from perfmodel.prediction.running_cost import operating_costs as operating_costs
    from perfmodel.prediction.serving import Service as Service
    from perfmodel.prediction.serving import latency_under as latency_under
    from perfmodel.prediction.types import MODES as MODES
    from perfmodel.prediction.types import Prediction as Prediction
    from perfmodel.prediction.types import Result as Result
    from perfmodel.prediction.what_if import Scale as Scale

__getattr__, __dir__, __all__ = exports(__name__)
