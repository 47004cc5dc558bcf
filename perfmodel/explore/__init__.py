"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from perfmodel.explore.elasticities import Sensitivity, sensitivity
from perfmodel.explore.indices import sobol
from perfmodel.explore.result import Sweep
from perfmodel.explore.run import sweep
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
