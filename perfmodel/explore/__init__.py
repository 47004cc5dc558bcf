"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from __future__ import annotations

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
    "reach",
    "sensitivity",
    "sobol",
    "sweep",
]
