"""Comparisons of designs: their latency over the rate at which samples come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import perfmodel
from perfmodel.designs.composed import composed
from perfmodel.errors import UsageError
from perfmodel.hardware import cluster
from perfmodel.prediction import predict
from perfmodel.prediction.compare import compare_designs, with_default
from perfmodel.prediction.comparison import Comparison
from perfmodel.prediction.serving import Serving
from perfmodel.workload import load_workload


@pytest.fixture(scope="module")
def found() -> Comparison:
    designs = [composed(name) for name in ("default", "hybrid", "balanced_sequences")]
    workload = load_workload("criteo-kaggle")
    machine = cluster("dgx-a100-80gb")
    return compare_designs(
        workload, machine, designs, batch=4096, train=False, serving=Serving(None, 1e5)
    )


def test_a_rate_beyond_that_is_unstable(found: Comparison) -> None:
    row = found.rows[0]
    assert row.samples_per_s is not None
    result: Any = row.result
    load = Serving(None, 1.01 * row.samples_per_s).served(4096, 8, lambda _: result)
    assert load.p99_us is None
    assert "unstable" in load.note


def test_latency_at_the_rate_that_was_asked_for_stands_in_the_row(found: Comparison) -> None:
    """4,096 samples come in 41 ms, the last of which waits for none of them."""
    row = found.rows[0]
    assert row.load is not None
    result: Any = row.result
    assert row.load.p50_us == pytest.approx(20_475 + result.latency_us, rel=1e-3)
    assert "samples wait 20.48 ms on average until batches of 4,096 are full" in str(row.notes)
    assert found.rows[2].load is None


def test_the_largest_gain_is_that_of_any_resource(found: Comparison) -> None:
    """What takes most of a step need not be what helps most."""
    row = found.rows[1]
    assert row.result is not None
    us = row.result.step_us
    why = replace(
        row,
        result=replace(
            row.result, bound_by={"network": us}, relieved_us={"bus": us / 2, "network": us / 1.5}
        ),
    ).bottleneck
    assert why is not None
    assert (why.resource, why.share_frac, why.lever_speed_up) == ("network", 1.0, 2.0)
    assert why.lever == "half the bytes from the host"


def test_software_that_designs_do_not_edit_has_a_row_of_its_own() -> None:
    """HugeCTR's graph of fused kernels is far ahead of TorchRec's eager step."""
    workload = load_workload("dlrm-mlperf")
    machine = cluster("dgx-a100-80gb")
    rows = compare_designs(workload, machine, with_default([], workload)).rows
    assert [row.design for row in rows] == ["default", "own"]
    default, own = (row.result for row in rows)
    assert own is not None
    assert default is not None
    alone = predict(workload, hardware=[machine]).results[0]
    assert own.step_us == pytest.approx(alone.step_us, rel=1e-9)
    assert own.step_us < default.step_us / 2
    assert alone.memory is not None
    assert rows[1].memory_gb["hbm"] == pytest.approx(alone.memory["total_bytes"] / 1e9)
    assert 13.0 < rows[1].memory_gb["hbm"] < 20.0


def test_torchrecs_own_step_is_the_default() -> None:
    workload = load_workload("neo-a")
    asked = [composed("own"), composed("neo")]
    assert [each.text for each in with_default(asked[1:], workload)] == ["default", "neo"]
    assert [each.text for each in with_default(asked, workload)] == ["default", "own", "neo"]


def test_what_all_start_from_stays_the_reference_where_it_is_asked_for() -> None:
    workload = load_workload("criteo-kaggle")
    for names in (("neo",), ("default", "neo")):
        found = with_default([composed(name) for name in names], workload)
        assert [each.text for each in found] == ["default", "own", "neo"]
    found = with_default([composed(name) for name in ("neo", "default")], workload)
    assert [each.text for each in found] == ["neo", "default", "own"]


def test_a_design_that_changes_nothing_says_why(found: Comparison) -> None:
    """Of designs that take as long as a baseline; baselines themselves need no reason."""
    assert found.without_gain == {}
    linked = compare_designs(
        load_workload("criteo-kaggle"),
        cluster("dgx-a100-80gb"),
        [composed(name) for name in ("default", "gpu_only", "smartnic")],
        batch=4096,
    )
    assert list(linked.without_gain) == ["smartnic"]
    assert linked.without_gain["smartnic"].startswith("same as default: not applied, ")
    assert not any(note.startswith("smartnic: smartnic: ") for note in linked.warnings)
    first = linked.rows[0]
    applied = replace(linked, rows=(first, replace(first, design="neo", without_gain=())))
    assert applied.without_gain == {"neo": "same as default: the bottleneck stays host launches"}


@pytest.mark.slow
def test_what_waits_for_the_bus_or_the_hosts_memory_says_so() -> None:
    """Rows that a cache has not come over the bus; Hotline without hot rows, the fastest here, has
    its host look them up."""
    workload = load_workload("dlrm-dcnv2")
    designs = [composed("default"), composed("software_cache")]
    designs.append(composed("hotline", {"hotline": {"launches": "as_they_come"}}))
    rows = compare_designs(workload, cluster("dgx-a100-80gb"), designs).rows
    told = [row.bottleneck.words if row.bottleneck else "" for row in rows]
    assert told == ["kernels, mostly matmul", "PCIe bus to the host", "host memory"]


@pytest.mark.slow
def test_each_designs_batch_and_rate_within_a_latency() -> None:
    """`compare --p99-ms`: the largest rate of each design, or the batch that serves a rate."""
    asked: Any = {"batch": 4096, "train": False, "max_delay_ms": 1, "p99_ms": 5}
    found = perfmodel.compare("criteo-kaggle", "a100-sxm-80gb", "cpu_only,default", **asked)
    loads = [row.load for row in found.rows if row.is_feasible]
    assert all(load and load.p99_us and load.p99_us <= 5_000 for load in loads)
    most = found.rows[0].load
    assert most is not None
    (row, *_) = perfmodel.compare(
        "criteo-kaggle", "a100-sxm-80gb", "default", rate_per_s=most.rate_per_s / 2, **asked
    ).rows
    assert row.load is not None
    assert row.load.p99_us is not None
    assert row.load.p99_us <= 5_000
    assert row.load.load_frac < 1
    with pytest.raises(UsageError, match="of inference"):
        perfmodel.compare("criteo-kaggle", "a100-sxm-80gb", "default", **(asked | {"train": True}))


def test_without_a_delay_batches_wait_until_they_are_full() -> None:
    asked: Any = {"batch": 4096, "train": False, "p99_ms": 20}
    load = perfmodel.compare("criteo-kaggle", "a100-sxm-80gb", "default", **asked).rows[0].load
    assert load is not None
    assert load.p99_us is not None
    assert load.p99_us <= 20_000
    assert load.batch is None
