"""Errors of small traces, by hand; nothing is scored on what it saw."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import Tiny, trace_of
from validate.evaluate.handmade import save, steps

from perfmodel.errors import PerfmodelError, TraceError
from perfmodel.validate.evaluate.jobs import (
    MAX_HELD_OUT,
    Job,
    evaluate_jobs,
    evaluate_trace,
    held_out_steps,
)
from perfmodel.validate.evaluate.results import Errors, Kind, rows_of


def evaluated(*tinies: Tiny) -> Errors:
    return evaluate_trace(trace_of(*tinies), "t")


def row(found: Errors, kind: Kind, name: str = "step") -> SimpleNamespace:
    (one,) = (r for r in found.rows if r["kind"] == kind and r["name"] == name)
    return SimpleNamespace(**one)


def test_figures_of_errors() -> None:
    predicted, measured = np.array([110.0, 80, 100, np.nan, 5]), np.array([100.0, 100, 100, 1, 0])
    (found,) = rows_of("t", (Kind.NULL, "step", predicted, measured))
    assert (found["n"], found["median_pct"], found["worst_pct"]) == (3, 10, 20)
    assert (found["mape_pct"], found["bias_pct"]) == (10, pytest.approx(-10 / 3, abs=1e-4))
    assert rows_of("t", (Kind.NULL, "step", np.array([np.nan]), np.array([1.0]))) == []


def test_steps_by_hand() -> None:
    found = evaluated(steps((90, 20), (190, 20)))  # steps of 100 and 200 us
    assert row(found, Kind.STEP_REPLAY).worst_pct == 0
    null = row(found, Kind.NULL)
    assert (null.n, null.worst_pct, null.mape_pct, null.bias_pct) == (2, 100, 75, 25)
    left_out = row(found, Kind.STEP_LEFT_OUT)
    assert vars(left_out) == vars(null) | {"kind": Kind.STEP_LEFT_OUT}
    (facts,) = found["traces"]
    assert (facts["steps"], facts["step_us"]) == (2, 150)
    assert facts["interval_coverage_frac"] is None


def test_a_step_that_waits_for_its_kernels_does_not_see_their_durations() -> None:
    t = Tiny()
    for number, kernel in enumerate((500, 100, 100)):
        at = 1000 * number
        t.op("aten::mm", at + 10, at + 30)
        t.launch(at + 11, at + 12, kernel=(at + 13, at + 13 + kernel))
        t.call("cudaDeviceSynchronize", at + 30, at + 13 + kernel + 10)
        t.step(number, at, at + 13 + kernel + 10)
    left = row(evaluated(t), Kind.STEP_LEFT_OUT)
    assert left.n == 2  # the first is warm-up: above 1.5 times the median
    assert left.worst_pct < 1
    t = steps((90, 20), (90, 20), (90, 20))
    assert row(evaluated(t), Kind.STEP_LEFT_OUT).worst_pct == 0


def test_coverage_is_of_the_interval_without_the_step() -> None:
    same = evaluated(steps((90, 20), (90, 20), (90, 20)))["traces"][0]
    assert same["interval_coverage_frac"] == 1
    longer = evaluated(steps((90, 20), (90, 20), (90, 20), (120, 20)))["traces"][0]
    assert longer["interval_coverage_frac"] == 0.75


def test_the_null_by_hand() -> None:
    found = evaluated(steps((90, 20), (90, 40), (120, 20)))  # steps of 100, 100 and 130 us
    assert row(found, Kind.NULL).mape_pct == pytest.approx((15 + 15 + 30 / 1.3) / 3, abs=1e-3)


def test_ranks_count_each() -> None:
    found = evaluated(steps((90, 20), (90, 20), rank=0), steps((90, 20), (90, 20), rank=1))
    assert {r["n"] for r in found.rows} == {4}
    assert found["traces"][0]["ranks"] == 2


def test_step_and_host_time_are_of_one_rank() -> None:
    """The slower rank waits for its kernels, and the other for nothing."""
    slow = Tiny(1, 2)
    for number in range(3):
        at = 1000 * number
        slow.op("aten::mm", at + 10, at + 30)
        slow.launch(at + 11, at + 12, kernel=(at + 13, at + 900))
        slow.call("cudaDeviceSynchronize", at + 30, at + 910)
        slow.step(number, at, at + 910)
    fast = steps(*[(90, 20)] * 3, rank=0)
    alone, other, both = (
        evaluated(*each)["traces"][0] for each in ((slow,), (fast,), (fast, slow))
    )
    keys = ("step_us", "measured_host_frac")
    assert [both[key] for key in keys] == [alone[key] for key in keys]
    assert alone["measured_host_frac"] < 0.1 < other["measured_host_frac"]


def test_one_step_has_a_replay_only() -> None:
    found = evaluated(steps((90, 20)))
    assert [r["kind"] for r in found.rows] == [Kind.STEP_REPLAY]


def test_long_traces_hold_some_steps_out() -> None:
    assert held_out_steps(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    some = held_out_steps(np.arange(100))
    assert len(some) == len(set(some.tolist())) == MAX_HELD_OUT
    assert (some[0], some[-1]) == (0, 99)


def test_a_bad_trace_of_a_folder_is_left_out_and_one_that_was_asked_for_is_not(
    tmp_path: Path,
) -> None:
    good = Job("good", save(tmp_path / "good.json", steps((90, 20), (90, 20))))
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [')
    come_upon = Job("bad", bad, asked=False)
    found = evaluate_jobs([good, come_upon])
    assert [facts["trace"] for facts in found["traces"]] == ["good"]
    (warning,) = found.warnings
    assert "bad.json" in warning
    for jobs, strict in (([good, Job("bad", bad)], False), ([good, come_upon], True)):
        with pytest.raises(PerfmodelError, match=r"bad\.json"):
            evaluate_jobs(jobs, strict=strict)
    with pytest.raises(TraceError, match=r"nothing to evaluate: .*bad\.json"):
        evaluate_jobs([come_upon])
    with pytest.raises(TraceError, match="no trace was given"):
        evaluate_jobs([])


def test_evaluation_prints_itself() -> None:
    found = evaluated(steps((90, 20), (90, 20)))
    assert "mape_pct" in found.to_frame().columns
    assert len(found.to_frame()) == len(found.rows)
