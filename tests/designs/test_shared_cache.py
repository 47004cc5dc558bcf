"""A cache of rows beside a KV cache: what is left for it, and what that costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.cached_tables import SharedCache, SoftwareCache
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.workload import load_workload


def start() -> Deployment:
    """105 GB of tables on eight A100 of 80 GiB, 13.1 GB on each."""
    return deployment_of(load_workload("dlrm-dcnv2"), cluster("dgx-a100-80gb"), train=False)


def capacity_bytes(found: Deployment) -> float:
    (cache,) = found.placement.caches
    return cache.capacity_bytes


def test_the_cache_has_what_the_kv_cache_leaves() -> None:
    """Of 80 GiB 70 are the KV cache's, a tenth stays free, and 0.5 GB are the driver's. Small
    tables, a thousandth of all, are on every rank and not cached."""
    found = SharedCache(kv_gib=70.0).apply(start())
    assert capacity_bytes(found) == pytest.approx(2 * 2**30 - 0.5e9, rel=1e-3)
    assert found.machine.node.device.hbm_bytes == 10 * 2**30


def test_without_a_kv_cache_all_rows_fit_and_it_is_a_software_cache_of_all() -> None:
    found, all_rows = SharedCache(kv_gib=0.0).apply(start()), SoftwareCache(cache_frac=1.0)
    expected = all_rows.apply(start())
    assert (found.placement, found.machine) == (expected.placement, expected.machine)
    assert capacity_bytes(found) == pytest.approx(sum(start().table_bytes) / 8, rel=1e-3)


def test_more_of_the_kv_cache_is_less_of_the_rows_and_a_longer_step() -> None:
    found = [SharedCache(kv_gib=gib).apply(start()) for gib in (50.0, 60.0, 65.0, 70.0)]
    sizes = [capacity_bytes(each) for each in found]
    assert all(less < more for more, less in pairwise(sizes))
    steps = [predict(each).results[0].step_us for each in found]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]


def test_a_kv_cache_that_takes_all_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"leaves no rows room in the 85\.9 GB"):
        SharedCache(kv_gib=72.0).apply(start())
