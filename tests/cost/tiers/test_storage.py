"""Rows on a node's drives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import TIERS
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, cluster, load
from perfmodel.hardware.parts import Storage
from perfmodel.ops.rows import Rows

CALL_US = coefficients("tiers.host_memory").call_us


def machine(drives: int = 2, gpus: int = 1) -> Cluster:
    found = cluster("dgx-a100-80gb")
    drive = load("pm9a3")
    assert isinstance(drive, Storage)
    return replace(found, node=replace(found.node, storage=drive, drives=drives, gpus=gpus))


def taken(op: str, where: Cluster, **dims: float) -> float:
    rows = Rows.of([{"op": op, **dims}])
    return float(TIERS["storage"].estimate(rows, where).duration_us[0])


def test_one_row_takes_a_read_and_a_call() -> None:
    assert taken("storage_read", machine(), rows=1, row_bytes=128) == pytest.approx(80 + CALL_US)


def test_many_rows_take_what_the_drives_can_start() -> None:
    found = taken("storage_read", machine(), rows=900_000, row_bytes=128)
    assert found == pytest.approx(CALL_US + 500_000, rel=0.01)


def test_twice_the_drives_and_half_the_ranks_are_twice_as_fast() -> None:
    one = taken("storage_read", machine(2, 2), rows=1e6, row_bytes=128) - CALL_US
    more = taken("storage_read", machine(4, 2), rows=1e6, row_bytes=128) - CALL_US
    fewer = taken("storage_read", machine(2, 1), rows=1e6, row_bytes=128) - CALL_US
    assert one == pytest.approx(2 * more, rel=1e-3)
    assert one == pytest.approx(2 * fewer, rel=1e-3)


def test_a_queue_of_one_waits_for_each() -> None:
    found = taken("storage_read", machine(1), rows=100, row_bytes=128, in_flight=1)
    assert found == pytest.approx(CALL_US + 100 * 80)


def test_writes_and_why() -> None:
    rows = Rows.of([{"op": "storage_write", "rows": 1e6, "row_bytes": 128, "page_rows": 32}])
    why = TIERS["storage"].explain(rows, machine(1))[0]
    assert why.written_bytes == pytest.approx(1.28e8)
    assert why.bound_by in ("drive", "core")
    assert why.duration_us == pytest.approx(
        TIERS["storage"].estimate(rows, machine(1)).duration_us[0]
    )


def test_interval_holds_the_duration() -> None:
    rows = Rows.of([{"op": "storage_read", "rows": n, "row_bytes": 256} for n in (1, 100, 1e6)])
    found = TIERS["storage"].estimate(rows, machine())
    assert (found.low_us < found.duration_us).all()
    assert (np.diff(found.duration_us) > 0).all()
    assert (found.duration_us < found.high_us).all()


def test_a_node_without_drives() -> None:
    with pytest.raises(ModelError, match="no storage"):
        taken("storage_read", cluster("dgx-a100-80gb"), rows=1, row_bytes=128)
