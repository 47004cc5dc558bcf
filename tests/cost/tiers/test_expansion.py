"""Rows in a node's expansion memory (CXL), by hand; a design that fills it before the drives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.cost.tiers import TIERS
from perfmodel.cost.tiers.drives import expansion_as_drive, reads_per_s
from perfmodel.designs import deployment_of
from perfmodel.designs.hits import overall_hits
from perfmodel.designs.software_memory import SoftwareMemory
from perfmodel.errors import HardwareError, ModelError, WorkloadError
from perfmodel.hardware import Cluster, Node, cluster, load
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict
from perfmodel.workload import load_workload

CALL_US = 10.0
FILE = """
kind = "node"
extends = "dgx-a100-80gb"
storage = "pm9a3"
drives = 2
[expansion]
name = "cxl"
capacity_bytes = {capacity}
read_gb_per_s = 50
read_latency_us = 0.3
"""


def machine(folder: Path, capacity: str = "64e9", more: str = "") -> Cluster:
    path = folder / "mine.toml"
    path.write_text(FILE.format(capacity=capacity) + more)
    node = load(path)
    assert isinstance(node, Node)
    return cluster(node)


def taken_us(where: Cluster, **dims: float) -> float:
    rows = Rows.of([{"op": "storage_read", "rows": 1e6, "row_bytes": 512.0, **dims}])
    return float(TIERS["storage"].estimate(rows, where).duration_us[0])


def test_many_rows_take_what_the_bandwidth_gives(tmp_path: Path) -> None:
    """8 ranks x 10^6 rows x 512 bytes at 50 GB/s: 81,920 us."""
    found = taken_us(machine(tmp_path), expansion=1.0)
    assert found == pytest.approx(CALL_US + 81_920, rel=1e-3)


def test_short_rows_take_whole_lines(tmp_path: Path) -> None:
    """Of 65 bytes, two lines of 64; of 65 bytes in lines of 256, one of those."""
    two = taken_us(machine(tmp_path), row_bytes=65.0, expansion=1.0)
    assert two == pytest.approx(CALL_US + 8e6 * 128 / 50e3, rel=1e-3)
    one = taken_us(machine(tmp_path, more="line_bytes = 256\n"), row_bytes=65.0, expansion=1.0)
    assert one == pytest.approx(CALL_US + 8e6 * 256 / 50e3, rel=1e-3)


def test_cores_wait_for_a_dozen_rows_where_they_load_and_ask_where_they_read(
    tmp_path: Path,
) -> None:
    """128 cores for 8 ranks: 10^6 rows, 16 cores; 3 us / 12 each, or 0.5 us of the system."""
    fast = "write_gb_per_s = 1e5\n"
    one = machine(tmp_path, more=fast).node.expansion
    assert one is not None
    for part, each_us in (
        (replace(one, read_gb_per_s=1e5, read_latency_us=3.0), 3.0 / 12),
        (replace(one, read_gb_per_s=1e5, access="reads"), 0.5),
    ):
        base = machine(tmp_path)
        where = replace(base, node=replace(base.node, expansion=part))
        assert taken_us(where, expansion=1.0) == pytest.approx(CALL_US + 1e6 * each_us / 16)


def test_rows_it_starts_bind_where_it_says_how_many(tmp_path: Path) -> None:
    part = machine(tmp_path, more="read_iops = 1e6\n").node.expansion
    assert part is not None
    assert reads_per_s(expansion_as_drive(part), 512.0) == pytest.approx(1e6)
    assert reads_per_s(expansion_as_drive(replace(part, read_iops=None)), 512.0) == pytest.approx(
        50e9 / 512
    )


def test_rows_on_drives_are_as_they_were(tmp_path: Path) -> None:
    drive = machine(tmp_path)
    plain = replace(drive, node=replace(drive.node, expansion=None))
    assert taken_us(drive) == taken_us(plain)
    with pytest.raises(ModelError, match="expansion memory, but the node has none"):
        taken_us(plain, expansion=1.0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("read_gb_per_s = 50", "read_gb_per_s = -1"), "expansion: read_gb_per_s: expected"),
        (("read_latency_us = 0.3", ""), "expansion: read_latency_us is missing"),
        (("capacity_bytes", "capacity_gb"), "expansion: unknown key capacity_gb"),
        (("[expansion]", '[expansion]\naccess = "guess"'), "expansion: access: expected"),
    ],
)
def test_a_file_that_does_not_hold_says_where(
    tmp_path: Path, change: tuple[str, str], error: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(FILE.format(capacity="64e9").replace(*change))
    with pytest.raises(HardwareError, match=error) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_tables_fill_expansion_memory_before_drives(tmp_path: Path) -> None:
    """dlrm-dcnv2 in inference: rows of 512 bytes, 104.6 GB; 64 GB hold the two tables of 20.5 GB
    that are looked up most, and the small ones."""
    workload = load_workload("dlrm-dcnv2").with_(implementation__name="torchrec")
    one_gpu_each = machine(tmp_path)
    start = deployment_of(workload, one_gpu_each, 8192, train=False)
    found = SoftwareMemory(cache_gib=1).apply(start)
    tiers = [placed.tier for placed in found.placement.tables]
    most = [number for number, table in enumerate(workload.tables) if table.rows == 40_000_000]
    assert {tiers[number] for number in most} == {"expansion", "storage"}
    held = sum(
        table.rows * 512
        for table, at in zip(workload.tables, tiers, strict=True)
        if at == "expansion"
    )
    assert 40e9 < held <= 64e9
    by_use = sorted(most, key=lambda number: -workload.tables[number].pooling)
    assert [tiers[number] for number in by_use] == sorted(tiers[number] for number in by_use)
    shares = overall_hits(found)
    assert shares["host"] > shares["expansion"] > 0 < shares["storage"]
    assert sum(shares.values()) == pytest.approx(1.0)
    use = {each["tier"]: each for each in predict(found).results[0].memory["tiers"]}
    assert use["expansion"]["tables_bytes"] == held
    assert any("tables in cxl" in note for note in found.notes)


def test_more_of_it_is_never_slower_and_none_of_it_is_as_before(tmp_path: Path) -> None:
    workload = load_workload("dlrm-dcnv2").with_(implementation__name="torchrec")
    design = SoftwareMemory(cache_gib=1)
    steps_us = []
    for capacity in ("1e6", "24e9", "64e9", "256e9"):
        start = deployment_of(workload, machine(tmp_path, capacity), 8192, train=False)
        steps_us.append(predict(design.apply(start)).results[0].step_us)
    assert steps_us == sorted(steps_us, reverse=True)
    assert steps_us[-1] < steps_us[0] / 4
    base = machine(tmp_path)
    without = replace(base, node=replace(base.node, expansion=None))
    plain = deployment_of(workload, without, 8192, train=False)
    assert predict(design.apply(plain)).results[0].step_us >= steps_us[0]


def test_a_node_whose_expansion_holds_all_needs_no_drive(tmp_path: Path) -> None:
    base = machine(tmp_path, "256e9")
    node = replace(base.node, storage=None, drives=None)
    workload = load_workload("dlrm-dcnv2").with_(implementation__name="torchrec")
    start = deployment_of(workload, replace(base, node=node), 8192, train=False)
    found = SoftwareMemory(drive="", cache_gib=1).apply(start)
    assert "storage" not in {placed.tier for placed in found.placement.tables}
    small = replace(node, expansion=replace(node.expansion, capacity_bytes=1_000_000_000))
    with pytest.raises(WorkloadError, match="has no drives"):
        SoftwareMemory(drive="", cache_gib=1).apply(
            deployment_of(workload, replace(base, node=small), 8192, train=False)
        )
