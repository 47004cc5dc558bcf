"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.explore.planner import plan_deployment
    from perfmodel.explore.result import Sweep
    from perfmodel.explore.run import sweep
    from perfmodel.explore.sensitivities import Reach, Sensitivity, reach, sensitivity, sobol
    from perfmodel.explore.spec import Spec, load_spec

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
        "Reach": "perfmodel.explore.sensitivities",
        "Sensitivity": "perfmodel.explore.sensitivities",
        "Spec": "perfmodel.explore.spec",
        "Sweep": "perfmodel.explore.result",
        "load_spec": "perfmodel.explore.spec",
        "plan_deployment": "perfmodel.explore.planner",
        "reach": "perfmodel.explore.sensitivities",
        "sensitivity": "perfmodel.explore.sensitivities",
        "sobol": "perfmodel.explore.sensitivities",
        "sweep": "perfmodel.explore.run",
    },
)
