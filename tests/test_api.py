"""The functions at the top answer what the command line answers, of paths and Python's values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli import application
from perfmodel.errors import PerfmodelError
from perfmodel.trace import Trace

TRACE = Path("traces/cpu_dlrm_2rank")
KINETO = TRACE / "dlrm_rank0_kineto.json.gz"
WORKLOAD, MACHINE = "criteo-terabyte", "dgx-a100-80gb"
SWEEP = """
workload = "criteo-terabyte"
hardware = "dgx-a100-80gb"

[axes]
batch = [8192, 16384]
"""


def printed(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(application(), [*words, "--format", "json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def trace() -> Trace:
    return perfmodel.read(TRACE)


def as_json(answer: Any) -> Any:
    return json.loads(json.dumps(answer))


def test_a_breakdown_is_of_a_path_or_of_a_trace(trace: Trace) -> None:
    theirs = printed("breakdown", str(TRACE))
    assert as_json(perfmodel.breakdown(TRACE).to_dict()) == theirs
    ours = perfmodel.breakdown(trace)
    assert as_json(ours.to_dict()) == theirs
    assert ours.gains[0].gain_us > 0


def test_a_what_if_is_a_mapping() -> None:
    theirs = printed("predict", str(TRACE), "--scale", "host=0.5", "--scale", "comm=0.25")
    ours = perfmodel.predict(TRACE, scale={"host": 0.5, "comm": 0.25})
    assert as_json(ours.to_dict()) == theirs


def test_a_name_is_a_workload_where_no_trace_lies() -> None:
    theirs = printed("predict", "--workload", WORKLOAD, "--hardware", MACHINE)
    ours = perfmodel.predict(WORKLOAD, hardware=MACHINE)
    assert as_json(ours.to_dict()) == theirs
    with pytest.raises(PerfmodelError, match="criteo-terabyt"):
        perfmodel.predict("criteo-terabyt", hardware=MACHINE)


def test_a_difference_is_of_paths_traces_and_predictions(trace: Trace, tmp_path: Path) -> None:
    ours = perfmodel.predict(trace, scale={"host": 0.5})
    saved = tmp_path / "half.json"
    saved.write_text(ours.to_json())
    theirs = printed("diff", str(TRACE), str(saved))["changes"]
    assert as_json(perfmodel.diff(TRACE, saved).to_dict())["changes"] == theirs
    assert as_json(perfmodel.diff(trace, ours).to_dict())["changes"] == theirs


def test_designs_are_compared_under_settings_that_are_values() -> None:
    words = ("compare", "--workload", WORKLOAD, "--hardware", MACHINE)
    words += ("--designs", "cpu_only", "--set", "cpu_only.sockets=1", "--set", "node.gpus=4")
    settings = {"cpu_only.sockets": 1, "node.gpus": 4}
    ours = perfmodel.compare(WORKLOAD, MACHINE, ["cpu_only"], settings=settings)
    assert as_json(ours.to_dict()) == printed(*words)
    with pytest.raises(PerfmodelError, match="neo is not among the designs"):
        perfmodel.compare(WORKLOAD, MACHINE, "default", settings={"neo.cache_frac": 0.1})


def test_a_plan_is_the_commands() -> None:
    settings = ["node.gpus=4", "workload.table.alpha=0.5"]
    ours = perfmodel.plan(WORKLOAD, MACHINE, settings=settings)
    assert ours.deployment.ranks == 4
    assert {table.alpha for table in ours.deployment.workload.tables} == {0.5}
    words = ("--workload", WORKLOAD, "--hardware", MACHINE)
    words += tuple(text for each in settings for text in ("--set", each))
    assert as_json(ours.to_dict()) == printed("plan", *words)
    with pytest.raises(PerfmodelError, match="tables need 226"):
        perfmodel.plan(WORKLOAD, "t4")


def test_a_sweep_is_the_commands(tmp_path: Path) -> None:
    spec = tmp_path / "few.toml"
    spec.write_text(SWEEP)
    ours = perfmodel.sweep(spec)
    theirs = printed("sweep", str(spec))
    assert len(ours.frame) == 2
    mine = as_json(ours.to_dict())
    assert mine == {name: theirs[name] for name in mine}


def test_a_sweep_is_a_mapping_of_names_or_of_things_themselves(tmp_path: Path) -> None:
    spec = tmp_path / "few.toml"
    spec.write_text(SWEEP)
    points = perfmodel.sweep(spec).frame
    names = {"workload": WORKLOAD, "hardware": MACHINE}
    things = {
        "workload": perfmodel.load_workload(WORKLOAD),
        "hardware": perfmodel.hardware.load(MACHINE),
    }
    for given in (names, things):
        found = perfmodel.sweep(given | {"axes": {"batch": np.array([8192, 16384])}})
        pd.testing.assert_frame_equal(found.frame, points)
        assert found.to_dict()["source"] == {"input": WORKLOAD, "spec": "sweep"}
    axes = {"workload": [things["workload"]], "hardware": [things["hardware"]], "batch": [8192]}
    by_axes = perfmodel.sweep(names | {"axes": axes}).frame
    assert by_axes[["workload", "hardware"]].values.tolist() == [[WORKLOAD, MACHINE]]
    assert by_axes["step_us"].iloc[0] == points["step_us"].iloc[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "sweep: expected one of trace, workload"),
        ({"axess": {}}, "sweep: unknown key axess; expected: axes"),
        ({3: ""}, "sweep: unknown key 3;"),
        ({"workload": 3}, "sweep: workload: expected a text in quotes, got 3"),
        ({"workload": WORKLOAD, "hardware": ["l4"]}, "sweep: hardware: expected a text"),
        ({"workload": WORKLOAD, "objective": "step_us"}, "sweep: objective: expected a list"),
        ({"workload": WORKLOAD, "axes": {"batch": 3}}, "sweep: axes.batch: expected a list"),
        ({"trace": "none.json", "axes": {}}, "sweep: none.json: cannot be read"),
        ({"workload": "criteo", "hardware": "l4"}, "sweep: unknown workload 'criteo'"),
    ],
)
def test_what_a_sweep_of_a_mapping_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PerfmodelError) as error:
        perfmodel.sweep(given)
    assert str(error.value).startswith(said)


@pytest.mark.slow
def test_a_trace_is_a_workload_wherever_one_is_asked_for(trace: Trace) -> None:
    named, machine = perfmodel.load_workload(TRACE), "dgx-a100-80gb"
    axes = {"batch": [named.batch]}
    answers = set()
    for given in (TRACE, trace, named):
        compared = perfmodel.compare(given, machine, "default").rows[0].result
        swept = perfmodel.sweep({"workload": given, "hardware": machine, "axes": axes}).frame
        laid_out = perfmodel.plan(given, machine).deployment.workload
        assert laid_out.tables == named.tables
        assert compared is not None
        answers.add((compared.step_us, swept["step_us"].iloc[0]))
    assert len(answers) == 1


def test_settings_of_a_prediction_are_values_as_of_the_other_verbs() -> None:
    settings = {"node.gpus": 4, "workload.table.alpha": 0.5}
    words = ("--set", "node.gpus=4", "--set", "workload.table.alpha=0.5")
    theirs = printed("predict", "--workload", WORKLOAD, "--hardware", MACHINE, *words)
    ours = perfmodel.predict(WORKLOAD, hardware=MACHINE, settings=settings)
    assert as_json(ours.to_dict()) == theirs
    four = perfmodel.hardware.with_settings(perfmodel.hardware.load(MACHINE), ["node.gpus=4"])
    alike = perfmodel.load_workload(WORKLOAD).with_(table__alpha=0.5)
    assert perfmodel.predict(alike, hardware=four).results[0].step_us == ours.results[0].step_us


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"settings": "node.gpus=4"}, "settings changes the target: name one with hardware"),
        ({"hardware": MACHINE, "settings": {"gpus": 4}}, "settings 'gpus=4': expected KIND.KEY"),
        ({"hardware": MACHINE, "settings": {"workload.x": 4}}, "unknown key x"),
    ],
)
def test_settings_that_mean_nothing(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PerfmodelError, match=said):
        perfmodel.predict(WORKLOAD, **given)


def test_settings_of_a_trace_are_of_its_target(trace: Trace) -> None:
    with pytest.raises(PerfmodelError, match=r"'workload\.table\.alpha=0\.5': expected KIND"):
        perfmodel.predict(trace, hardware="t4", settings={"workload.table.alpha": 0.5})


def test_what_a_frame_has_no_figure_of_is_nan() -> None:
    """One device, without a rate: nothing transferred, no baseline, no latency."""
    frame = perfmodel.predict("criteo-kaggle", hardware="h100-sxm").to_frame()
    assert frame["gain_us"].dtype == "float64"
    assert frame["gain_us"].isna().all()
    designs = perfmodel.compare("criteo-kaggle", "h100-sxm", "default").to_frame()
    assert designs["latency_p99_us"].dtype == "float64"
    assert not any(value is None for name in designs for value in designs[name])


@pytest.mark.slow
def test_files_for_others_are_the_commands(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    for name in ("page.html", "timeline.json", "graph.graphml", "linked.et"):
        verb = "report" if name == "page.html" else "export"
        write = perfmodel.report if verb == "report" else perfmodel.export
        write(KINETO, mine / name)
        done = CliRunner().invoke(application(), [verb, str(KINETO), "-o", str(theirs / name)])
        assert done.exit_code == 0, done.output
    names = sorted(path.name for path in mine.iterdir())
    assert names == ["graph.graphml", "linked.et", "page.html", "timeline.json"]
    for name in names:
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name


def test_errors_are_evaluated_and_held_against_a_baseline(tmp_path: Path) -> None:
    ours, baseline = perfmodel.evaluate(KINETO), tmp_path / "baseline.json"
    assert as_json(ours.to_dict()) == printed("evaluate", "traces", str(KINETO))
    printed("check", "--baseline", str(baseline), str(KINETO), "--update")
    assert perfmodel.check(baseline, KINETO).passed


def test_overheads_are_fitted_to_traces(tmp_path: Path) -> None:
    fitted = perfmodel.fit("overheads", [TRACE], tmp_path / "mine.json")
    assert perfmodel.load_profile(str(tmp_path / "mine.json")).rows == fitted.rows
    with pytest.raises(
        PerfmodelError, match="unknown 'house'; one of kernels, collectives, device, overheads"
    ):
        perfmodel.fit("house", [TRACE], tmp_path / "no.json")


LOG = """\
# mpirun -np 8 ./build/all_reduce_perf -b 1M -e 1G -f 32
     1048576        262144   float     sum    -1    29.10   36.03   63.06      0
    33554432       8388608   float     sum    -1    230.1  145.83  255.19      0
"""


def test_collectives_are_fitted_to_logs_as_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    log, mine, theirs = (tmp_path / name for name in ("mine.log", "mine.json", "theirs.json"))
    log.write_text(LOG)
    fitted = perfmodel.fit("collectives", str(log), mine, hardware="dgx-h100", ranks=8)
    assert fitted.time_us.tolist() == pytest.approx([29.1, 230.1])
    words = ["fit", "collectives", "--log", str(log), "--hardware", "dgx-h100", "--ranks", "8"]
    done = CliRunner().invoke(application(), [*words, "-o", str(theirs)])
    assert done.stdout == f"{theirs}: 2 points (all_reduce among 8); answers are calibrated\n"
    assert mine.read_bytes() == theirs.read_bytes()
    with pytest.raises(PerfmodelError, match="ranks is not stated: give ranks"):
        perfmodel.fit("collectives", log, mine, hardware="dgx-h100")
    with pytest.raises(PerfmodelError, match="is the input; write elsewhere"):
        perfmodel.fit("collectives", log, log, hardware="dgx-h100", ranks=8)


def test_what_is_shown_is_one_line_and_a_table(trace: Trace) -> None:
    prediction = perfmodel.predict(WORKLOAD, hardware=[MACHINE, "dgx-h100"])
    values = [
        prediction,
        perfmodel.breakdown(trace),
        perfmodel.diff(trace, perfmodel.predict(trace)),
        perfmodel.compare(WORKLOAD, MACHINE, "default"),
        perfmodel.evaluate(KINETO),
    ]
    for value in values:
        assert "\n" not in repr(value)
        assert len(repr(value)) < 250
        assert "<table" in value._repr_html_()
    html = prediction._repr_html_()
    first, second = prediction.results
    assert f"{first.step_us / second.step_us:.2f}x" in html
    assert "high_us" in html


def test_kernels_in_a_frame_have_durations() -> None:
    frame = pd.DataFrame({"op": ["mm"], "m": [512.0], "n": [512.0], "k": [512.0]})
    assert perfmodel.durations(frame, "t4")["duration_us"].iloc[0] > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda copy: perfmodel.predict("missing.json.gz"), "missing.json.gz: cannot be read"),
        (lambda copy: perfmodel.export(copy, copy), "is the input; write elsewhere"),
        (lambda copy: perfmodel.fit("overheads", copy, copy), "is the input; write elsewhere"),
        (
            lambda copy: perfmodel.fit("kernels", [copy], copy.parent),
            "exists already; name a new directory",
        ),
        (lambda copy: perfmodel.report(copy, "page.txt"), "a page is written as .html"),
        (lambda copy: perfmodel.compare(WORKLOAD, MACHINE, []), "name one or more"),
    ],
)
def test_what_cannot_be_is_one_line_and_the_input_stays(
    call: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    copy = tmp_path / KINETO.name
    copy.write_bytes(KINETO.read_bytes())
    with pytest.raises(PerfmodelError) as error:
        call(copy)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert copy.read_bytes() == KINETO.read_bytes()
    assert list(tmp_path.iterdir()) == [copy]


def test_a_page_of_a_prediction_names_its_machines_and_takes_no_options(tmp_path: Path) -> None:
    prediction = perfmodel.predict(WORKLOAD, hardware=[MACHINE])
    of_it, of_its_name = tmp_path / "one.html", tmp_path / "other.html"
    perfmodel.report(prediction, of_it)
    perfmodel.report(WORKLOAD, of_its_name, hardware=[MACHINE])
    assert of_it.read_bytes() == of_its_name.read_bytes()
    with pytest.raises(PerfmodelError, match="batch: the prediction is made already"):
        perfmodel.report(prediction, of_it, batch=4096)


def test_one_file_and_one_setting_need_no_list(tmp_path: Path) -> None:
    """A path was once taken apart into its letters, of which `/` is the whole disk."""
    one = perfmodel.fit("overheads", str(KINETO), tmp_path / "one.json")
    assert one.rows == perfmodel.fit("overheads", [KINETO], tmp_path / "list.json").rows
    ours = perfmodel.compare(WORKLOAD, MACHINE, "default", settings="node.gpus=4")
    assert ours.source["devices"] == 4


VERBS = ("breakdown", "compare", "diff", "evaluate", "export", "plan", "predict", "read", "report")


@pytest.mark.parametrize("name", [*VERBS, "sweep"])
def test_a_docstring_says_what_goes_in_and_out_and_its_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = " ".join(str(getattr(perfmodel, name).__doc__).split())
    example = re.search(
        r"Parameters: .* Returns: .* Raises: .* Example: `(perfmodel\..*)`\.", words
    )
    assert example, words
    eval(example[1], {"perfmodel": perfmodel})


@pytest.mark.parametrize("given", [{}, {"source": "demo:", "nope": 1}])
def test_an_argument_that_is_not_there_is_told_in_the_name_of_the_function(
    given: dict[str, Any],
) -> None:
    for name in ("predict", "largest_batch"):
        with pytest.raises(TypeError, match=rf"^{name}\(\): (missing|got an unexpected)"):
            getattr(perfmodel, name)(**given)


def test_what_stands_for_a_thing_fits_a_line(trace: Trace) -> None:
    found, machine = perfmodel.predict(trace), perfmodel.hardware.load(MACHINE)
    node = [machine, machine.device, perfmodel.load_workload(WORKLOAD)]
    timeline, first = found.results[0].timeline, perfmodel.breakdown(trace).ranks[0]
    shown = [found, *found.results, timeline, timeline.graph, first, *node]
    assert all(len(repr(each)) < 100 and "\n" not in repr(each) for each in shown)
