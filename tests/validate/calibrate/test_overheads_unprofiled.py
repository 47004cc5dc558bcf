"""`perfmodel.validate.calibrate.overheads` on numbers that can be followed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import UsageError
from perfmodel.lowering.host import Profile
from perfmodel.lowering.host.measure import OP_WITHOUT_LAUNCH, T1, T2, T3, T4, Statistic
from perfmodel.lowering.host.profile import Rows
from perfmodel.ops.graph import AUTOGRAD_NODE
from perfmodel.validate.calibrate.overheads import unprofiled

HEAD = "configuration,op,phase,node,timing,count,duration_us\n"
OPS = (
    "a,aten::t,forward,,dispatch_mode_host,2,1\n"
    "a,aten::addmm,forward,,dispatch_mode_host,2,9\n"
    "a,aten::relu,forward,,dispatch_mode_host,1,4\n"
    "a,aten::mm,backward,AddmmBackward0,dispatch_mode_host,4,6\n"
    "a,aten::view,backward,AddmmBackward0,dispatch_mode_host,4,1.5\n"
    "probe,call,probe,,host_wall_sync,1,0.1\n"
)
STEPS = "name,p10_us,ops_sum_p10_us\na,135,108\nother,7,\n"
"""Alone the operators take 20 + 4 + 30 = 54 us, together twice as long; 27 us are left."""


def _row(us: float, count: int) -> Statistic:
    return Statistic(count, us, 1.0, us, us, us, us, us, us)


def _profiled() -> Profile:
    backward = AUTOGRAD_NODE + "AddmmBackward0"
    grad = AUTOGRAD_NODE + "torch::autograd::AccumulateGrad"
    rows: Rows = {
        (T1, None, None): _row(6.0, 30),
        (T2, "aten::linear", "main"): _row(60.0, 4),
        (T3, "aten::linear", "main"): _row(10.0, 4),
        (T4, "aten::linear", "main"): _row(15.0, 8),
        (OP_WITHOUT_LAUNCH, "aten::relu", "main"): _row(40.0, 2),
        (T2, backward, "autograd"): _row(90.0, 4),
        (OP_WITHOUT_LAUNCH, grad, "autograd"): _row(18.0, 5),
    }
    return Profile(rows)


def _tables(folder: Path, ops: str = HEAD + OPS, steps: str = STEPS) -> Path:
    (folder / "ops.csv").write_text(ops)
    (folder / "ops_steps.csv").write_text(steps)
    return folder / "ops.csv"


def test_operators_take_what_they_took_in_steps(tmp_path: Path) -> None:
    profile = unprofiled(_profiled(), _tables(tmp_path))
    assert profile.provenance.unwatched
    means = {key: row.mean_us for key, row in profile.rows.items()}
    # `linear` took (1 + 9) x 2 = 20 us; under the profiler 60 + 10 + 2 x 15 = 100
    assert means[T2, "aten::linear", "main"] == pytest.approx(12)
    assert means[T4, "aten::linear", "main"] == pytest.approx(3)
    assert means[OP_WITHOUT_LAUNCH, "aten::relu", "main"] == pytest.approx(8)
    # two products of a layer are one node: 2 x (4 x 6 + 4 x 1.5) us of two calls
    assert means[T2, AUTOGRAD_NODE + "AddmmBackward0", "autograd"] == pytest.approx(30)
    # 27 us are left beside 5 calls; the traces have 30 x 6 + 5 x 18 us beside 10
    assert means[T1, None, None] == pytest.approx(6 * (27 / 5) / (270 / 10))


def test_steps_that_wait_for_the_device_do_not_tell_what_is_between_operators(
    tmp_path: Path,
) -> None:
    ops = HEAD + "".join(OPS.replace("a,aten", f"{name},aten") for name in "abcd")
    steps = "name,p10_us,ops_sum_p10_us\na,135,108\nb,135,108\nc,135,108\nd,9999,108\n"
    alone, beside = (
        unprofiled(_profiled(), _tables(tmp_path, *tables)).rows[T1, None, None].mean_us
        for tables in ((HEAD + OPS, STEPS), (ops, steps))
    )
    assert beside == pytest.approx(alone)


def test_a_node_is_called_no_more_often_than_what_it_calls(tmp_path: Path) -> None:
    """Not every operator of the forward pass is differentiated."""
    ops = OPS.replace("addmm,forward,,dispatch_mode_host,2", "addmm,forward,,dispatch_mode_host,9")
    rows = unprofiled(_profiled(), _tables(tmp_path, HEAD + ops)).rows
    node = rows[T2, AUTOGRAD_NODE + "AddmmBackward0", "autograd"].mean_us
    together = 108 / (2 * 1 + 9 * 9 + 4 + 30)
    assert node == pytest.approx(together * 30 / 4)


@pytest.mark.parametrize(
    ("ops", "steps", "says"),
    [
        ("op\nx\n", STEPS, r"ops.csv: is not a table of operators .*: no column 'configuration'"),
        (HEAD + OPS, "name\na\n", r"ops_steps.csv: is not a table of steps .*: no column 'p10_us'"),
        (
            HEAD + OPS.replace(",9\n", ",-9\n"),
            STEPS,
            "ops.csv: row 2: duration_us is no number",
        ),
        (HEAD + OPS, STEPS.replace("135", "inf"), "ops_steps.csv: row 1: p10_us is no number"),
        (HEAD + OPS.replace(",9\n", ",much\n"), STEPS, "row 2: duration_us is no number"),
        (HEAD + OPS.replace(",9\n", ",\n"), STEPS, "row 2: duration_us is no number"),
        (HEAD + OPS, STEPS.replace("135", ""), "ops_steps.csv: row 1: p10_us is no number"),
        (HEAD + OPS, STEPS.replace("108", ""), "ops_steps.csv: a: ops_sum_p10_us is missing"),
        (HEAD + OPS, STEPS.replace("a,", "b,"), "no step whose operators were timed"),
        (HEAD + OPS.replace("aten::", "x::"), STEPS, "none of its operators is in the traces"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, ops: str, steps: str, says: str) -> None:
    if "x::" in ops:
        ops = ops.replace("AddmmBackward0", "OtherBackward0")
    with pytest.raises(UsageError, match=says):
        unprofiled(_profiled(), _tables(tmp_path, ops, steps))
