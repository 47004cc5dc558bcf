"""What tests of designs with hot rows start from: four tables of a million rows on four V100."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from perfmodel.designs import Deployment, Design, deployment_of
from perfmodel.designs.baselines import Hybrid
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.lowering.piece import Piece
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result
from perfmodel.workload import load_workload, op_graph

BATCH = 65_536
"""Large enough for kernels and copies to take longer than their launches."""
ROWS = 1_000_000
BASE = Hybrid(pooled_on="operators")
"""A process for each GPU, as Hotline's: what is left is the design's."""


@cache
def start(alpha: float = 1.05, batch: int = BATCH, top: int = 64, tables: int = 4) -> Deployment:
    """Four tables of a million rows of 64 elements, on four V100."""
    workload = load_workload("hotline-rm3").with_(
        model__bottom_mlp=[64], model__top_mlp=[top, 1], table__rows=ROWS, table__alpha=alpha
    )
    workload = replace(workload, tables=workload.tables[:tables])
    return deployment_of(workload, cluster("hotline-server"), batch)


def predicted(design: Design, deployment: Deployment) -> Result:
    return predict(design.apply(deployment)).results[0]


def pieces(deployment: Deployment) -> list[Piece]:
    graph = op_graph(
        deployment.workload,
        deployment.batch,
        ranks=deployment.ranks,
        placement=deployment.placement,
        pipeline=deployment.pipeline,
    )
    return list(lower(graph, "cuda").pieces)
