"""Where each embedding table lies, and how a step is laid out in time: values that designs edit."""

from perfmodel.placement.pipeline import MicroBatch, Pipeline
from perfmodel.placement.types import (
    CacheAt,
    Placement,
    RowCache,
    RowDtype,
    Sharding,
    TablePlacement,
    Tier,
)

__all__ = [
    "CacheAt",
    "MicroBatch",
    "Pipeline",
    "Placement",
    "RowCache",
    "RowDtype",
    "Sharding",
    "TablePlacement",
    "Tier",
]
