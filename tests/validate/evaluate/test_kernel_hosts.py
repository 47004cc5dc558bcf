"""Tables of kernels are held against the host that timed them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.validate.evaluate.tables import evaluate_kernels


def table(path: Path, launch_us: float, *rows: str) -> Path:
    kind = "NVIDIA H200,fp32,event_single_call,cold"
    lines = [f"clock_floor,{kind},,,1.2,1", f"launch_floor,{kind},,,{launch_us},9"]
    lines += [f"add,{kind},8,8,{row}" for row in rows]
    path.write_text("op,device,dtype,timing,cache,rows,cols,duration_us,host_us\n")
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    return path


def test_the_smallest_call_of_a_host_is_its_shortest_kernel(tmp_path: Path) -> None:
    """No measurement tells of an addition so short: it waits for a load as well, half of 1 us."""
    tables = [
        table(tmp_path / f"{launch_us}.csv", launch_us, "4.5,9") for launch_us in (4.3, 3.8, 4.3)
    ]
    evaluation = evaluate_kernels(tables)
    (row,) = evaluation.rows
    errors_pct = [100 * (us / 3.3 - 1) for us in (3.6, 3.1, 3.6)]
    assert (row["n"], row["bias_pct"]) == (3, pytest.approx(sum(errors_pct) / 3, abs=1e-3))
    assert not evaluation.warnings


def test_rows_that_are_their_hosts_are_left_out_and_counted(tmp_path: Path) -> None:
    evaluation = evaluate_kernels([table(tmp_path / "t.csv", 4.3, "4.5,9", "150,500", "6,500")])
    assert [row["n"] for row in evaluation.rows] == [1]
    assert evaluation.to_dict()["warnings"] == evaluation.warnings
    assert evaluation.warnings[0].startswith("2 rows left out")
