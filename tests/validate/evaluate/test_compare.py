"""What counts as worse, and how it is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from validate.evaluate.handmade import evaluation, row

from perfmodel.errors import UsageError
from perfmodel.validate.evaluate.baseline import (
    FLOOR_PCT,
    Comparison,
    Row,
    Status,
    compare,
    markdown,
)
from perfmodel.validate.evaluate.results import Errors, Kind

sizes = st.floats(0, 1e6)


def held(baseline: list[Row], present: Errors) -> Comparison:
    return compare(baseline, present, tolerance_frac=0.05)


def test_the_same_passes() -> None:
    found = held([row()], evaluation(row()))
    assert found.passed
    assert not found.of(Status.WORSE, Status.BETTER, Status.NEW, Status.GONE)
    assert len(found.changes) == 4


@given(sizes, sizes)
def test_worse_is_above_share_and_floor(old: float, new: float) -> None:
    found = compare([row(mape_pct=old)], evaluation(row(mape_pct=new)), tolerance_frac=0.1)
    assert found.passed == (new <= old * 1.1 + FLOOR_PCT)


def test_twice_the_error_fails_and_is_named() -> None:
    found = held([row("a", name="step", mape_pct=2.0)], evaluation(row("a", mape_pct=4.0)))
    (change,) = found.failing
    assert (change.trace, change.kind, change.figure) == ("a", "step_left_out", "mape_pct")
    assert (change.baseline, change.present, change.status) == (2, 4, Status.WORSE)


def test_a_bias_of_the_other_sign_is_as_large() -> None:
    assert held([row(bias_pct=-1.0)], evaluation(row(bias_pct=1.0))).passed
    assert not held([row(bias_pct=-1.0)], evaluation(row(bias_pct=-2.0))).passed


def test_better_and_new_pass_gone_and_fewer_do_not() -> None:
    more = row("b", Kind.SHAPES, "matmul")
    assert held([row()], evaluation(row(mape_pct=1.0), more)).passed
    found = held([row(), row(name="other")], evaluation(row()))
    assert {c.status for c in found.failing} == {Status.GONE}
    (fewer,) = held([row()], evaluation(row(n=5))).failing
    assert (fewer.figure, fewer.baseline, fewer.present) == ("n", 6, 5)
    assert held([row()], evaluation(row(n=7))).passed


def test_a_null_model_never_fails() -> None:
    kind = Kind.NULL
    """A step that became faster scatters more in percent: that is no worse prediction."""
    now = row(kind=kind, mape_pct=9.0, n=3)
    found = held([row(), row(kind=kind)], evaluation(row(), now))
    assert found.passed
    assert [change.figure for change in found.of(Status.MOVED)] == ["mape_pct"]
    gone = held([row(), row(kind=kind)], evaluation(row()))
    assert gone.passed
    assert "1 worse" not in markdown(gone)


def test_a_new_trace_is_a_note_and_one_that_is_gone_an_error() -> None:
    found = held([row("a")], evaluation(row("a"), row("b")))
    assert found.passed
    assert found.warnings == ["b: not in the baseline yet: add it with --update"]
    present = evaluation(row("b"))
    present.warnings.append("left out: a.json: damaged")
    with pytest.raises(UsageError, match=r"holds a, .*left out: a\.json: damaged"):
        held([row("a")], present)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf")])
def test_a_tolerance_that_is_none(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance_frac"):
        compare([row()], evaluation(row()), tolerance_frac=tolerance)


def test_the_largest_growth_is_first() -> None:
    then = [row("a"), row("b")]
    found = held(then, evaluation(row("a", mape_pct=3.0), row("b", worst_pct=40.0)))
    assert [c.trace for c in found.failing] == ["b", "a"]


def test_summaries_say_what_failed_whatever_names_hold() -> None:
    odd = "a|<&\x01 b"
    found = held([row(odd), row("good")], evaluation(row(odd, mape_pct=9.0), row("good")))
    text = markdown(found)
    assert text.startswith("### perfmodel check: failed\n")
    assert "| a\\|<&? b | step_left_out | step | mape_pct | 2.00 % | 9.00 % | worse |" in text
    passed = held([row()], evaluation(row()))
    assert "passed" in markdown(passed)
    assert "|" not in markdown(passed)
