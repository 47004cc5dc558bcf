"""Model configurations (the DLRM family) and the ops that they run, per implementation.

`load_workload` finds one in the catalogue or in a TOML file; `op_graph` gives the ops of one step.
"""

from __future__ import annotations

from perfmodel.workload.load import load_workload, workloads
from perfmodel.workload.model import Workload
from perfmodel.workload.step import op_graph
from perfmodel.workload.tables import Table

__all__ = ["Table", "Workload", "load_workload", "op_graph", "workloads"]
