"""Brief answers: what is told, in which size, and which command comes next."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli.samples import SCHEMAS, check_schema
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.reporting.brief import MAX_BYTES, annotation, brief, kinds, lines_of

PREDICTION: dict[str, Any] = {
    "schema": "perfmodel.prediction/1",
    "results": [
        {
            "hardware": "l4",
            "mode": "model",
            "step_us": 1234.56789,
            "low_us": 1000.0,
            "high_us": 1500.0,
            "measured": None,
            "critical_path": [
                {"kind": "compute", "name": "mm", "duration_us": 400.0},
                {"kind": "host_t1", "name": "aten::to", "duration_us": 300.0},
                {"kind": "compute", "name": "mm", "duration_us": 200.0},
                {"kind": "compute", "name": "copy", "duration_us": 50.0},
                {"kind": "compute", "name": "add", "duration_us": 50.0},
            ],
        },
        {"hardware": "t4", "mode": "model", "step_us": 2000.0, "critical_path": []},
    ],
    "completeness": [{"what": "no shapes were recorded", "touches": ["kernels"]}],
    "warnings": ["a note", "a guess"],
    "notes": ["a note"],
}


def test_answer_interval_causes_warnings_and_the_next_command() -> None:
    found = brief(PREDICTION, {"trace": "a.json"}, "predict 'my a.json'")
    check_schema("brief", found)
    first, second = found["answer"]
    assert first == {
        "hardware": "l4",
        "mode": "model",
        "step_us": 1234.57,
        "interval": [1000.0, 1500.0],
    }
    assert second == {"hardware": "t4", "mode": "model", "step_us": 2000.0}
    assert found["causes"][:2] == [
        {"name": "compute: mm", "duration_us": 600.0, "share_frac": 0.6},
        {"name": "host_t1: aten::to", "duration_us": 300.0, "share_frac": 0.3},
    ]
    assert found["warnings"] == ["no shapes were recorded", "a guess"]
    assert found["next"] == "perfmodel predict 'my a.json' --explain mm"


def test_points_of_a_sweep_have_all_of_their_axes() -> None:
    point = {"point": 1, "device.hbm_gb_per_s": 2000.0, "step_us": 9.0}
    found = brief({"schema": "perfmodel.sweep/1", "pareto": [point]})
    assert found["answer"] == [{"point": 1, "device_hbm_gb_per_s": 2000.0, "step_us": 9.0}]


def test_times_of_several_steps_are_means_and_the_worst_rank_is_first() -> None:
    steps = [{"critical_path_by_kind": {"compute": us, "host_t1": 1.0}} for us in (1.0, 3.0)]
    rows = [{"rank": 0, "step_us": 3.0}, {"rank": 1, "step_us": 4.0}]
    answer = {"schema": "perfmodel.breakdown/1", "summary": rows, "ranks": [{"steps": steps}]}
    found = brief(answer | {"gains": [{"command": "perfmodel predict 'a b' --scale gpu=0.5"}]})
    assert [row["rank"] for row in found["answer"]] == [1, 0]
    assert found["causes"][0] == {"name": "compute", "time_us": 2.0, "share_frac": 0.6667}
    assert found["next"] == "perfmodel predict 'a b' --scale gpu=0.5"


def test_every_schema_has_a_brief_form() -> None:
    whole = {
        json.loads(path.read_text())["properties"]["schema"]["const"]
        for path in SCHEMAS.glob("*.json")
    }
    assert whole - set(kinds()) == {"perfmodel.brief/1"}


@given(
    rows=st.integers(1, 300),
    names=st.lists(st.text(max_size=900) | st.sampled_from(["\u1234" * 900, "x\x1b" * 400])),
    values=st.dictionaries(
        st.sampled_from(["design", "why_not", "samples_per_s"]),
        st.text(max_size=3000) | st.floats(allow_nan=False, allow_infinity=False),
    ),
)
def test_no_answer_is_longer_than_two_kilobytes(
    rows: int, names: list[str], values: dict[str, Any]
) -> None:
    record = {"step_us": 1.0, "bound_by": dict.fromkeys(names, 1.0)} | values
    answer = {"schema": "perfmodel.compare/1", "designs": [record] * rows, "warnings": names}
    found = brief(answer, {"workload": "w" * 2000, "hardware": "x"}, "compare")
    assert len(json.dumps(found)) < MAX_BYTES
    check_schema("brief", found)
    assert found["left_out"] + len(found["answer"]) == rows


def test_an_annotation_is_one_line_and_an_error_where_a_check_failed() -> None:
    answer = {"schema": "perfmodel.diff/2", "verdict": "13 % slower", "changes": []}
    found = brief(answer | {"failed": True}, {"b": "after.json"})
    line = "::error title=perfmodel diff::13 %25 slower%0Anext: perfmodel report after.json"
    assert annotation(found).startswith(line)
    assert annotation(brief(answer | {"failed": False})).startswith("::notice title=perfmodel diff")
    assert len(annotation(found).splitlines()) == 1


def test_lines_for_people_have_units() -> None:
    first, because, *_ = lines_of(brief(PREDICTION))
    assert first == "step 1.23 ms, l4, 90 % interval 1.00 ms to 1.50 ms"
    held = {"hardware": "l4", "memory": {"total_bytes": 2_500_000_000.0}}
    line, *_ = lines_of(brief({"schema": "perfmodel.prediction/1", "results": [held]}))
    assert line == "l4, memory total 2.5 GB"
    assert because == "because of compute: mm, duration 600.0 us, share 60.0 %"


def test_a_brief_prediction_says_what_costs_least_and_how_surely() -> None:
    cost = {"per": "batches", "usd_per_million": 6.65, "over_best_interval": [0.8, 1.5]}
    held = {"hardware": "l4", "cost": cost}
    (told,) = brief({"schema": "perfmodel.prediction/1", "results": [held]})["answer"]
    assert told == {"hardware": "l4"} | {f"cost_{key}": each for key, each in cost.items()}


@pytest.mark.parametrize("name", sorted(kinds()))
def test_a_record_without_anything_known_is_still_an_answer(name: str) -> None:
    found = brief({"schema": name}, {}, "")
    assert found["of"] == name
    assert len(found["answer"]) == 1


def test_causes_of_a_breakdown_are_of_its_steady_steps() -> None:
    roles = (("warm-up", 900.0), ("steady", 100.0), ("steady", 300.0))
    steps = [{"role": role, "critical_path_by_kind": {"compute": us}} for role, us in roles]
    summary = [{"rank": 0, "steps": 2, "step_us": 200.0}]
    told = brief(
        {"schema": "perfmodel.breakdown/1", "summary": summary, "ranks": [{"steps": steps}]}
    )
    assert told["causes"] == [{"name": "compute", "time_us": 200.0, "share_frac": 1.0}]


def test_the_next_command_asks_about_the_same_step() -> None:
    answer = {"schema": "perfmodel.compare/1", "designs": [{"design": "default", "step_us": 1.0}]}
    asked = {"workload": "w", "hardware": "h", "nodes": 4, "inference": True}
    told = brief(answer, {**asked, "settings": ["a=1", "b=x y"]})["next"]
    assert told.startswith(
        "perfmodel plan --workload w --hardware h --nodes 4 --inference --set a=1"
    )
    assert "--set 'b=x y'" in told
    plain = brief(answer, {"workload": "w", "hardware": "h", "inference": False, "settings": None})
    assert plain["next"] == "perfmodel plan --workload w --hardware h -o plan.json"


def test_causes_are_in_words_and_other_names_as_they_are() -> None:
    names = ("launch_latency: sage_fwd", "copy_bucket_to_grad", "my_trace/rank_0.json")
    path = [{"kind": "", "name": name, "duration_us": 1.0} for name in names]
    for each in path:
        each["kind"], _, each["name"] = each["name"].rpartition(": ")
    row = PREDICTION["results"][0] | {"critical_path": path}
    lines = lines_of(brief(PREDICTION | {"results": [row]}))
    told = [line.partition(", ")[0] for line in lines if line.startswith("because of")]
    assert told[0] == "because of launch latency: sage_fwd"
    assert [line.rpartition(": ")[2] for line in told[1:]] == [*names[1:]]


@pytest.mark.parametrize(
    ("cause", "words"),
    [("T1", "Python, between ops (T1)"), ("host_t4", "launch call (T4)"), ("host", "host")],
)
def test_host_time_is_in_words_by_its_type_and_a_gpu_is_none(cause: str, words: str) -> None:
    summary = [{"step_us": 1.0, "main_cause": cause, "rank": 0}]
    assert (
        f", {words}, rank"
        in lines_of(brief({"schema": "perfmodel.breakdown/1", "summary": summary}))[0]
    )
    row = {"hardware": "t4", "step_us": 1.0}
    assert lines_of(brief(PREDICTION | {"results": [row]}))[0] == "step 1.0 us, t4"


def test_an_annotation_says_that_a_check_passed() -> None:
    answer = {"schema": "perfmodel.check/1", "figures": 16, "changes": []}
    for passed, line in (
        (
            True,
            "::notice",
        ),
        (False, "::error"),
    ):
        said = annotation(brief(answer | {"passed": passed}))
        assert said.startswith(f"{line} title=perfmodel check::{'' if passed else 'not '}passed")
