"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.lazy import exports

if TYPE_CHECKING:
    from perfmodel.explore.planner import plan_deployment as plan_deployment
    from perfmodel.explore.result import Sweep as Sweep
    from perfmodel.explore.result import sensitivity as sensitivity
    from perfmodel.explore.result import sweep as sweep
    from perfmodel.explore.spec import Spec as Spec
    from perfmodel.explore.spec import load_spec as load_spec

__getattr__, __dir__, __all__ = exports(__name__)
