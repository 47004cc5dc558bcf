"""Designs on top of others: what of the first is left, and combinations of which nothing is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.composed import composed, without_unused
from perfmodel.embedding import MicroBatch, Pipeline, RowCache
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload

SETTINGS = {
    "software_cache": {"rows_ahead": True},
    "software_memory": {"cache_gib": 0.8},
    "recshard": {"hbm_gb": 1.0},
    "hotline": {"hot_mib": 64.0},
    "fae": {"hot_mib": 64.0},
}


@cache
def start() -> Deployment:
    return deployment_of(load_workload("hotline-rm2"), cluster("hotline-server"))


def applied(text: str) -> Deployment:
    return composed(text, SETTINGS).apply(start())


UNDONE = [
    *(f"{first}+gpu_only" for first in ("software_cache", "software_memory", "hybrid")),
    *(f"software_cache+{second}" for second in ("fae", "hotline", "hybrid", "neo", "cpu_only")),
    *(f"software_memory+{second}" for second in ("hotline", "hybrid", "neo", "cpu_only")),
    *(f"{first}+cpu_only" for first in ("fae", "hotline", "hybrid")),
    "hybrid+neo",
]


@pytest.mark.parametrize("text", UNDONE)
def test_what_the_second_undoes_makes_no_sense(text: str) -> None:
    with pytest.raises(WorkloadError, match=f"{text.split('+')[0]} has no effect"):
        applied(text)


@pytest.mark.parametrize("first", ["fae", "hotline"])
@pytest.mark.parametrize("second", ["gpu_only", "hybrid", "neo", "recshard"])
def test_parted_samples_need_hot_rows(first: str, second: str) -> None:
    with pytest.raises(WorkloadError, match="no hot rows are left"):
        applied(f"{first}+{second}")


def test_replicas_that_training_updates_do_not_move_to_drives() -> None:
    one = {**SETTINGS, "hybrid": {"pooled_on": "one_process"}}
    with pytest.raises(WorkloadError, match="replicas that training updates stay"):
        composed("hybrid+software_memory", one).apply(start())


def test_tables_that_a_node_shared_are_shared_out_again() -> None:
    both = composed("low_precision+hybrid+neo").designs[:2]
    on_host = both[1].apply(both[0].apply(start()))
    found = composed("gpu_only").apply(on_host).placement.tables
    usual = start().placement.tables
    assert {table.dtype for table in found} == {"fp16"}
    assert [replace(table, dtype="fp32") for table in found] == list(usual)


def test_what_no_table_needs_is_left_out() -> None:
    named = RowCache("rows", "hbm", 1e6)
    beside = Pipeline(rows_ahead=True, rows_beside=True, writes_behind=True, input_ahead=True)
    plain = start().placement
    found = without_unused(
        start().with_(placement=replace(plain, caches=(named,)), pipeline=beside)
    )
    assert found.placement.caches == ()
    assert found.pipeline == Pipeline(input_ahead=True)
    used = plain.edited(lambda _n, _t: {"tier": "host", "caches": ("rows",)}, caches=(named,))
    kept = without_unused(start().with_(placement=used, pipeline=beside))
    assert kept.placement == used
    assert kept.pipeline == Pipeline(input_ahead=True, rows_ahead=True)


def test_popular_samples_without_hot_rows_are_refused() -> None:
    parted = Pipeline((MicroBatch(0.5, popular=True), MicroBatch(0.5)))
    with pytest.raises(WorkloadError, match="no hot rows are left"):
        without_unused(start().with_(pipeline=parted))
