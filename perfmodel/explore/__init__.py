"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from perfmodel.explore.reach import Reach, reach
from perfmodel.explore.result import Sweep
from perfmodel.explore.run import sweep
from perfmodel.explore.sensitivity import Sensitivity, sensitivity
from perfmodel.explore.sobol import sobol
from perfmodel.explore.spec import Spec, load_spec

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
