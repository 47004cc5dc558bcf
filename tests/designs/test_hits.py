"""Shares of lookups that each tier answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.designs.deployment import Deployment
from perfmodel.designs.device_caches import SoftwareCache
from perfmodel.designs.hits import overall_hits, tier_hits
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.designs.software_memory import SoftwareMemory
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload

WORKLOAD = """
batch = 512
[model]
dense_features = 13
bottom_mlp = [64, 64]
top_mlp = [64, 1]
[[tables]]
count = 8
rows = 1000000
dim = 64
pooling = 4
alpha = 1.05
[implementation]
name = "torchrec"
"""


@pytest.fixture
def plain(tmp_path: Path) -> Deployment:
    (tmp_path / "w.toml").write_text(WORKLOAD)
    machine = cluster("dgx-a100-80gb")
    return deployment_of(load_workload(tmp_path / "w.toml"), machine)


def test_all_lookups_are_in_device_memory_by_default(plain: Deployment) -> None:
    assert overall_hits(plain) == pytest.approx({"hbm": 1.0})


@pytest.mark.parametrize("design", [SoftwareCache(cache_frac=0.05), SoftwareMemory(cache_gib=0.08)])
def test_shares_sum_to_one_and_rise_with_the_cache(
    plain: Deployment, design: SoftwareCache | SoftwareMemory
) -> None:
    found = overall_hits(design.apply(plain))
    assert sum(found.values()) == pytest.approx(1.0)
    fast = "hbm" if isinstance(design, SoftwareCache) else "host"
    bigger = (
        replace(design, cache_frac=0.5)
        if isinstance(design, SoftwareCache)
        else replace(design, cache_gib=0.8)
    )
    assert overall_hits(bigger.apply(plain))[fast] > found[fast] > 0.3


def test_the_most_popular_rows_are_what_a_static_cache_answers(plain: Deployment) -> None:
    found = tier_hits(SoftwareCache("operators", 0.01, "static").apply(plain)).iloc[0]
    table = plain.workload.tables[0]
    covered = float(table.popularity().covered_frac(10_000))
    assert found.hbm_frac == pytest.approx(covered, rel=1e-6)
    assert found.fetched_bytes == found.fetched_rows * 256


def test_the_frame_has_a_column_per_tier(plain: Deployment) -> None:
    frame = tier_hits(SoftwareCache().apply(plain))
    assert list(frame.columns) == [
        "table",
        "lookups",
        "hbm_frac",
        "host_frac",
        "fetched_rows",
        "fetched_bytes",
    ]
    assert len(frame) == 8
