"""Every setting of every design has an effect: for each, a value and a step that it moves.

On one node of V100 (`rm3`, six tables), inference on A100
(`kaggle`, `dense`), training there (`dcn`; `cached`: behind a cache),
16 nodes with an adapter (`nic`, `nic_train`), and two nodes that host memory must help
(`large`, forty tables of 13 GB).
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from slow import slow_but

from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.cached_tables import SoftwareCache
from perfmodel.errors import UsageError
from perfmodel.hardware import cluster, load, node
from perfmodel.hardware.parts import Nic
from perfmodel.prediction import predict
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.tables import Table

MAX_ROWS = 4_000_000


def _small(name: str, tables: int, **changes: Any) -> Workload:
    base = load_workload(name)
    workload = base.with_(
        implementation__name="torchrec",
        model__bottom_mlp=[64, base.dim],
        model__top_mlp=[128, 1],
        **changes,
    )
    return replace(
        workload,
        tables=tuple(
            replace(table, rows=min(4 * table.rows, MAX_ROWS) if table.rows > 1e5 else table.rows)
            for table in workload.tables[:tables]
        ),
    )


@cache
def start(name: str) -> Deployment:
    nic = load("u280")
    assert isinstance(nic, Nic)
    networked = cluster(replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=nic), 16)
    one_hot = load_workload("smartnic-rm").with_(table__pooling=1)
    zionex = cluster("zionex", 2)
    device = replace(zionex.node.device, hbm_bytes=30_000_000_000)
    small = replace(zionex, node=replace(zionex.node, device=device))
    large = replace(load_workload("neo-i"), tables=(Table(100_000_000, 64, 20.0, 1.05),) * 40)
    rm3 = _small("hotline-rm3", 6)
    padded = load_workload("smartnic-rm").with_(interaction__pad_to=16)
    v100, a100 = cluster("hotline-server"), cluster("dgx-a100-80gb")
    least = replace(a100.node, device=replace(a100.node.device, hbm_bytes=20 * 10**9))
    tight = replace(a100, node=least)
    mi350x = cluster("hgx-mi350x")
    made = {
        "rm3": lambda: deployment_of(rm3, v100, 65_536),
        "dcn": lambda: deployment_of(_small("dlrm-dcnv2", 6), a100, 55_296),
        "tight": lambda: deployment_of(start("dcn").workload, tight, 55_296),
        "sequences": lambda: deployment_of(load_workload("dlrm-v4-hstu"), mi350x, 1_024),
        "cached": lambda: SoftwareCache(cache_frac=0.1).apply(start("dcn")),
        "kaggle": lambda: deployment_of(_small("criteo-kaggle", 12), a100, 32_768, train=False),
        "dense": lambda: deployment_of(padded, a100, 16_384, train=False),
        "nic": lambda: deployment_of(one_hot, networked, 8_192, train=False),
        "nic_train": lambda: deployment_of(one_hot, networked, 65_536),
        "large": lambda: deployment_of(large, small, 131_072),
    }
    return made[name]()


CASES: list[tuple[str, str, Any, str]] = [
    ("hybrid", "device_table_bytes", 1e12, "rm3"),
    ("cpu_only", "nodes", 2, "kaggle"),
    ("cpu_only", "sockets", 1, "rm3"),
    ("hybrid", "pooled_on", "one_process", "rm3"),
    ("fae", "hot_mib", 1.0, "rm3"),
    ("fae", "sampled_frac", 5e-5, "rm3"),
    ("fae", "inputs", 39_300.0, "rm3"),
    ("fae", "popular_frac", 0.1, "rm3"),
    ("fae", "switch_every_steps", 1.0, "rm3"),
    ("fae", "pooled_on", "one_process", "rm3"),
    ("gradient_accumulation", "micro_batches", 2, "rm3"),
    ("hotline", "hot_mib", 1.0, "rm3"),
    ("hotline", "popular_frac", 0.1, "rm3"),
    ("hotline", "launches", "as_they_come", "rm3"),
    ("hotline", "accelerator", "none", "kaggle"),
    ("hotline", "learning_frac", 0.0, "rm3"),
    ("hotline", "inputs", 39_300.0, "rm3"),
    ("low_precision", "layer_errors", (1e-6,), "dense"),
    ("low_precision", "table_errors", (1e-6,), "dense"),
    ("low_precision", "ends_error", 0.0, "rm3"),
    ("low_precision", "exchange_errors", (1e-6,), "dense"),
    ("low_precision", "layer_dtypes", ("keep",), "dense"),
    ("low_precision", "row_dtypes", ("fp16",), "dense"),
    ("low_precision", "exchange", "fp32", "dense"),
    ("neo", "sharding", "as_deployed", "dcn"),
    ("neo", "rows", "fp32", "large"),
    ("neo", "wire", "fp32", "large"),
    ("neo", "cache_frac", 0.0, "large"),
    ("neo", "input_ahead", False, "dcn"),
    ("neo", "rows_ahead", False, "large"),
    ("prefetch_pipeline", "input_ahead", False, "dcn"),
    ("prefetch_pipeline", "rows_ahead", False, "cached"),
    ("recshard", "hbm_gb", 0.01, "rm3"),
    ("shared_cache", "kv_gib", 15.0, "tight"),
    ("shared_cache", "policy", "static", "tight"),
    ("smartnic", "adapter", "bluefield-2", "nic"),
    ("smartnic", "cache_gib", 0.01, "nic"),
    ("software_cache", "kept_by", "operators", "rm3"),
    ("software_cache", "cache_frac", 0.1, "dcn"),
    ("software_cache", "policy", "static", "dcn"),
    ("software_cache", "rows_ahead", True, "dcn"),
    ("software_memory", "drive", "p5800x", "rm3"),
    ("software_memory", "drives", 1, "rm3"),
    ("software_memory", "cache_gib", 0.2, "rm3"),
    ("software_memory", "rows_ahead", False, "rm3"),
    ("software_memory", "writes_behind", False, "rm3"),
    ("stashed_activations", "most_gib", 0.0, "dcn"),
    ("stashed_activations", "nodes_ahead", 30, "dcn"),
    ("two_d_sharding", "group_ranks", 4, "nic_train"),
    ("two_d_sharding", "sync_every", 2, "nic_train"),
]
USED: dict[str, dict[str, Any]] = {
    "recshard": {"hbm_gb": 1.0},
    "shared_cache": {"kv_gib": 16.2},
    "smartnic": {"cache_gib": 1.0},
    "software_memory": {"cache_gib": 1.0},
}
"""Settings without which a design's others are not looked at."""


def test_every_setting_has_a_case() -> None:
    known = {
        (name, each.name)
        for name in DESIGNS
        for each in fields(DESIGNS[name])  # type: ignore[arg-type]
    }
    assert {(design, key) for design, key, *_ in CASES} == known


@pytest.mark.parametrize(
    ("design", "part"), [("smartnic", "adapter"), ("software_memory", "drive")]
)
def test_none_is_a_part_only_where_it_is_plain(design: str, part: str) -> None:
    with pytest.raises(UsageError, match=f"{design}.{part} 'none': unknown"):
        DESIGNS[design](**{part: "none"})
    assert DESIGNS["hotline"](accelerator="none")  # type: ignore[call-arg]


@cache
def _usual_us(design: str, at: str) -> float:
    made = DESIGNS[design](**USED.get(design, {}))
    return predict(made.apply(start(at))).results[0].step_us


@pytest.mark.parametrize(("design", "key", "value", "at"), slow_but(13, CASES))
def test_a_setting_changes_the_step(design: str, key: str, value: Any, at: str) -> None:
    made = DESIGNS[design](**USED.get(design, {}) | {key: value})
    step_us = predict(made.apply(start(at))).results[0].step_us
    assert step_us != pytest.approx(_usual_us(design, at), rel=1e-5)
