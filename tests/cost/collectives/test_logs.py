"""Logs of nccl-tests to points, and points to a corrected model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.cost.collectives.calibrated import Point, load_machine, parse, save_machine
from perfmodel.cost.collectives.calls import fabric_of
from perfmodel.cost.collectives.learned import collective_durations
from perfmodel.errors import ModelError
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows

NCCL = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   3245 on    node-a device  0 [0x10] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   3246 on    node-a device  1 [0x47] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid   2211 on    node-b device  0 [0x10] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid   2212 on    node-b device  1 [0x47] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    98.50   10.65   15.97      0    97.10   10.80   16.20      0
     2097152        524288     float     sum      -1    144.2   14.54   21.81      0    143.0   14.67   22.00      0
# Out of bounds values : 0 OK
"""  # noqa: E501


def test_nccl_tests() -> None:
    points = parse(NCCL, "a.log", op="all_reduce")
    assert points == [
        Point("all_reduce", 4, 2, 1048576.0, 98.5),
        Point("all_reduce", 4, 2, 2097152.0, 144.2),
    ]
    assert parse("# mpirun ./build/all_gather_perf -b 8\n" + NCCL, "a.log")[0].op == "all_gather"


def test_old_logs_have_no_root() -> None:
    line = "  67108864  16777216  float  sum  51017  1.32  2.3  N/A  50990  1.32  2.3  N/A"
    assert parse(line, "o.log", op="all_reduce", ranks=8)[0].time_us == 51017


@pytest.mark.parametrize("time_us", ["inf", "nan", "-3", "0", "1e99"])
def test_rows_with_a_time_that_cannot_be_are_refused(time_us: str) -> None:
    with pytest.raises(ModelError, match=r"a\.log:1: no time above 0"):
        parse(f"1024 256 float sum -1 {time_us} 1.0 1.0 0", "a.log", op="all_reduce", ranks=2)


def test_what_a_log_does_not_say_must_be_named() -> None:
    with pytest.raises(ModelError, match=r"a\.log:11: no collective"):
        parse(NCCL, "a.log")
    bare = "\n".join(NCCL.splitlines()[6:])
    with pytest.raises(ModelError, match="the number of ranks is not stated"):
        parse(bare, "a.log", op="all_reduce")
    with pytest.raises(ModelError, match="no rows of nccl-tests"):
        parse("hello\n", "a.log")


def test_points_correct_their_curve_and_others_a_little(tmp_path: Path) -> None:
    machine = node("dgx-h100")
    sizes = np.array([2.0**18, 2.0**24, 2.0**30])

    def rows(op: str) -> Rows:
        return Rows.of([{"op": op, "size_bytes": size, "ranks": 8} for size in sizes])

    usual = collective_durations(rows("all_gather"), machine)
    points = [
        Point("all_gather", 8, 1, size, 1.5 * us)
        for size, us in zip(sizes, usual.duration_us, strict=True)
    ]
    save_machine(tmp_path / "mine.json", points, fabric_of(machine), {"machine": machine.name})
    mine = load_machine(tmp_path / "mine.json")
    assert mine.level == "calibrated"
    own = collective_durations(rows("all_gather"), machine, model=mine)
    other = collective_durations(rows("all_to_all"), machine, model=mine)
    before = collective_durations(rows("all_to_all"), machine)
    assert own.duration_us == pytest.approx(1.5 * usual.duration_us, rel=0.08)
    assert (own.high_us / own.low_us < usual.high_us / usual.low_us).all()
    ratio = other.duration_us / before.duration_us
    assert (ratio > 1.0).all()
    assert (ratio < 1.5).all()


def test_another_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"schema": "x"}')
    with pytest.raises(ModelError, match=r"other\.json: not a file of collective measurements"):
        load_machine(path)


@pytest.mark.parametrize("root", ["(", "x", "-1 x"])
def test_a_row_with_a_text_among_its_numbers_is_refused(root: str) -> None:
    row = f"2097152 524288 float sum {root} 98.5 21.3 21.3 0"
    with pytest.raises(ModelError, match="log:1: no time above 0"):
        parse(row, "log", op="all_reduce", ranks=2)
