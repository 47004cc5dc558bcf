"""TorchRec's pipelines: what of a step runs beside the one before."""

from __future__ import annotations

from itertools import pairwise

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.cached_tables import SoftwareCache
from perfmodel.designs.training_systems import PrefetchPipeline
from perfmodel.embedding import Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.workload import load_workload

BASE, SPARSE, PREFETCH = (
    PrefetchPipeline(input_ahead=False, rows_ahead=False),
    PrefetchPipeline(rows_ahead=False),
    PrefetchPipeline(),
)


def start() -> Deployment:
    workload = load_workload("dlrm-dcnv2").with_(implementation__prefetch=False)
    return deployment_of(workload, cluster("dgx-a100-80gb"))


def test_with_nothing_ahead_it_is_the_step_as_it_is() -> None:
    found = BASE.apply(start())
    assert (found, found.without_gain) == (start(), ("the step has that pipeline already",))
    assert PREFETCH.apply(start()).pipeline == Pipeline(input_ahead=True, rows_ahead=True)


def test_each_pipeline_takes_no_longer_than_the_one_with_less_ahead() -> None:
    """What is fetched ahead costs at most what it took before, and at best nothing of the step: of
    27 ms 12 are rows over the bus, beside 15 ms of the other work."""
    cached = SoftwareCache().apply(start())
    steps = [predict(each.apply(cached)).results[0].step_us for each in (BASE, SPARSE, PREFETCH)]
    assert all(later < earlier for earlier, later in pairwise(steps))
    assert steps[-1] > steps[0] / 2  # two resources at most take turns


def test_a_cache_of_operators_cannot_fetch_ahead() -> None:
    kept = SoftwareCache(kept_by="operators").apply(start())
    with pytest.raises(WorkloadError, match="waits for every count"):
        PREFETCH.apply(kept)
