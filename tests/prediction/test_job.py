"""All ranks of a job: as many graphs as ranks, and the time that one rank of each class tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.hardware import cluster
from perfmodel.prediction import predict_workload
from perfmodel.prediction.job import job_graph
from perfmodel.timeline.schedule import schedule
from perfmodel.timeline.steady import steady_state
from perfmodel.workload import Table, Workload
from perfmodel.workload.model import Model

MODEL = Model(13, (64, 32), (64, 1))
UNEVEN = Workload("uneven", MODEL, (*[Table(1000, 32, 4)] * 7, Table(1000, 32, 200)))
MACHINE = cluster("dgx-a100-80gb")


def test_every_rank_is_there_and_all_take_as_long_as_the_slowest() -> None:
    graph = job_graph(UNEVEN, MACHINE, 65536)
    assert set(graph.nodes_.rank.tolist()) == set(range(8))
    assert [name.partition("/")[0] for name in dict.fromkeys(graph.resources)] == [
        str(rank) for rank in range(8) for _ in range(len(graph.resources) // 8)
    ]
    ends = schedule(graph).end_us
    transfers = np.flatnonzero(np.isin(np.arange(len(graph)), graph.arrivals))
    assert len(transfers)
    predicted = predict_workload(UNEVEN, hardware=[MACHINE], batch=65536, every_rank=True)
    assert steady_state(graph).period_us == pytest.approx(predicted.results[0].step_us)
    assert ends.max() == pytest.approx(predicted.results[0].latency_us)


def test_one_device_is_one_rank() -> None:
    alone = replace(MACHINE, node=replace(MACHINE.node, gpus=1))
    graph = job_graph(UNEVEN, alone, 4096)
    assert set(graph.nodes_.rank.tolist()) == {0}
