"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.explore.planner import plan_deployment
    from perfmodel.explore.result import Sweep
    from perfmodel.explore.run import sweep
    from perfmodel.explore.sensitivities import Sensitivity, sensitivity, sobol
    from perfmodel.explore.spec import Spec, load_spec
    from perfmodel.explore.target import Reach, reach

__all__ = [
    "Reach",
    "Sensitivity",
    "Spec",
    "Sweep",
    "load_spec",
    "plan_deployment",
    "reach",
    "sensitivity",
    "sobol",
    "sweep",
]


__getattr__ = exports(
    __name__,
    {
        "Reach": "perfmodel.explore.target",
        "Sensitivity": "perfmodel.explore.sensitivities",
        "Spec": "perfmodel.explore.spec",
        "Sweep": "perfmodel.explore.result",
        "load_spec": "perfmodel.explore.spec",
        "plan_deployment": "perfmodel.explore.planner",
        "reach": "perfmodel.explore.target",
        "sensitivity": "perfmodel.explore.sensitivities",
        "sobol": "perfmodel.explore.sensitivities",
        "sweep": "perfmodel.explore.run",
    },
)
