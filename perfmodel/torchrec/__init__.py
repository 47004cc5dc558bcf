"""TorchRec's sharding planner with perfmodel's durations, and plans of either as the other's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.torchrec.plans import deployment as deployment
    from perfmodel.torchrec.plans import document as document
    from perfmodel.torchrec.plans import sharding_plan as sharding_plan
    from perfmodel.torchrec.shards import PerfEstimator as PerfEstimator
    from perfmodel.torchrec.shards import StorageEstimator as StorageEstimator
    from perfmodel.torchrec.shards import estimators as estimators
    from perfmodel.torchrec.shards import topology as topology

__getattr__, __dir__, __all__ = exports(__name__)
