"""Rows in an adapter's memory: durations by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Nic, cluster, node
from perfmodel.ops.rows import Rows

ENGINE = coefficients("tiers.engine")


def machine(**nic: float | None) -> Cluster:
    figures = {"gb_per_s": 25.0, "memory_bytes": 8 << 30, "memory_gb_per_s": 400.0, **nic}
    part = Nic(name="adapter", **figures)  # type: ignore[arg-type]
    return cluster(replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=part), 4)


LOOKUP = {"op": "nic_lookup", "probes": 1e5, "lookups": 1e4, "row_bytes": 512, "dim": 128}


def test_an_fpga_is_bound_by_its_memory() -> None:
    rows = Rows.of([LOOKUP])
    moved = 1e5 * 16 + 1e4 * 512
    found = float(durations_of(rows, machine()).duration_us[0])
    assert found == pytest.approx(ENGINE.start_us + moved / (ENGINE.memory_frac * 400e3))
    assert explanations_of(rows, machine())[0].bound_by == "memory"
    slower = float(durations_of(rows, machine(memory_gb_per_s=200.0)).duration_us[0])
    assert slower - ENGINE.start_us == pytest.approx(2 * (found - ENGINE.start_us))


def test_arm_cores_bind_where_they_are_slower() -> None:
    (why,) = explanations_of(Rows.of([LOOKUP]), machine(cores=1))
    assert why.bound_by == "cores"
    assert why.terms["cores_us"] == pytest.approx(1.1e5 * 0.1 / 4)


def test_rows_are_read_in_whole_bursts() -> None:
    rows = Rows.of([{**LOOKUP, "row_bytes": size} for size in (65, 128)])
    found = durations_of(rows, machine()).duration_us
    assert found[0] == pytest.approx(found[1])


def test_an_adapter_without_memory_is_refused() -> None:
    with pytest.raises(ModelError, match="no memory"):
        durations_of(Rows.of([LOOKUP]), machine(memory_bytes=None))


def test_every_row_takes_a_descriptor_and_a_turn_of_an_engine() -> None:
    """122,877 rows, read without keys: by descriptors at 150 per us 819 us, by two engines' 100."""
    rows = Rows.of([{**LOOKUP, "probes": 1.0, "lookups": 122_877.0, "row_bytes": 64}])
    found = explanations_of(rows, machine(messages_per_us=150.0))[0]
    assert found.terms["descriptors_us"] == pytest.approx(819.18)
    fast = explanations_of(rows, machine(descriptors_per_us=1e4, engine_rows_per_us=100.0))[0]
    assert fast.bound_by == "engines"
    assert fast.duration_us == pytest.approx(ENGINE.start_us + 1228.78)


def test_what_goes_to_the_device_takes_its_share_of_the_bus() -> None:
    rows = Rows.of([{**LOOKUP, "delivered_bytes": 1e7}])
    (found,) = explanations_of(rows, machine(pcie_gb_per_s=10.0))
    assert found.terms["bus_us"] == pytest.approx(1e7 / (0.82 * 10e3))
