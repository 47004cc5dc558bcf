"""perfmodel: how long will one batch take on this hardware, and why?

The public names load on first use, so that importing the package costs nothing and the collector
runs where only PyTorch and NumPy are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel import cost as cost
    from perfmodel import designs as designs
    from perfmodel import embedding as embedding
    from perfmodel import explore as explore
    from perfmodel import hardware as hardware
    from perfmodel import ops as ops
    from perfmodel import plot as plot
    from perfmodel import prediction as prediction
    from perfmodel import torchrec as torchrec
    from perfmodel import workload as workload
    from perfmodel.api import check as check
    from perfmodel.api import compare as compare
    from perfmodel.api import diff as diff
    from perfmodel.api import evaluate as evaluate
    from perfmodel.api import plan as plan
    from perfmodel.api import predict_module as predict_module
    from perfmodel.api import sweep as sweep
    from perfmodel.cost.durations import durations as durations
    from perfmodel.designs.layouts.default import deployment_of as deployment_of
    from perfmodel.errors import PerfmodelError as PerfmodelError
    from perfmodel.lowering.host.profile import Profile as Profile
    from perfmodel.lowering.host.profile import load_profile as load_profile
    from perfmodel.prediction.breakdown.job import Breakdown as Breakdown
    from perfmodel.prediction.breakdown.job import breakdown as breakdown
    from perfmodel.prediction.run import largest_batch as largest_batch
    from perfmodel.prediction.run import predict as predict
    from perfmodel.prediction.types import Prediction as Prediction
    from perfmodel.reporting.written import export as export
    from perfmodel.reporting.written import report as report
    from perfmodel.timeline import graph as graph
    from perfmodel.timeline.graph import build_graph as build_graph
    from perfmodel.timeline.graph.types import ExecutionGraph as ExecutionGraph
    from perfmodel.timeline.schedule import Timeline as Timeline
    from perfmodel.timeline.schedule import schedule as schedule
    from perfmodel.trace.read import Trace as Trace
    from perfmodel.trace.read import read as read
    from perfmodel.validate.calibrate.fit import fit as fit
    from perfmodel.workload.load import load_workload as load_workload
    from perfmodel.workload.load import workload_of as workload_of

__getattr__, __dir__, _later = exports(__name__)
__all__ = sorted([*_later, "__version__"])
__version__ = "0.2.0"
