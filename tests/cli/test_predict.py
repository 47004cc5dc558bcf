"""`perfmodel predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.samples import STEP_US, check_schema, document, write

from perfmodel.base.files import located
from perfmodel.hardware import devices

GPUS = [it for it in devices() if it.target != "cpu"]


def answer_of(run: Run, *arguments: object) -> dict[str, Any]:
    ran = run("predict", *arguments, "--format", "json")
    assert ran.status == 0, ran.err
    answer: dict[str, Any] = json.loads(ran.out)
    check_schema("prediction", answer)
    return answer


def test_demo_shows_measured_and_replayed_and_that_it_is_no_forecast(run: Run) -> None:
    ran = run("predict")
    assert (ran.status, ran.err) == (0, "")
    for text in ("bundled demo", "measured", "replayed", "--leave-one-step-out"):
        assert text in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100


def test_replay_is_the_default(run: Run, trace: Path) -> None:
    plain = answer_of(run, trace)
    assert plain == answer_of(run, trace, "--replay") == answer_of(run, trace, "--mode", "replay")
    result = plain["results"][0]
    assert result["measured"]["step_us"] == 99
    assert result["steps"][0]["measured_us"] == 99
    pieces = sum(piece["duration_us"] for piece in result["critical_path"])
    assert pieces == pytest.approx(result["steps"][0]["step_us"], abs=1)


def test_what_ifs_scale_and_remove(run: Run, trace: Path) -> None:
    whole = answer_of(run, trace)["results"][0]
    half = answer_of(run, trace, "--scale", "compute=0.5")["results"][0]
    none = answer_of(run, trace, "--remove", "compute:sgemm@0")["results"][0]
    assert half["kernel_sum_us"] < whole["kernel_sum_us"]
    assert none["kernel_sum_us"] < half["kernel_sum_us"]
    assert half["measured"] is None
    assert half["steps"][0]["error_pct"] is None
    assert "error" not in run("predict", trace, "--scale", "compute=0.5").out


def test_a_collective_alone_is_warned_of(run: Run, trace: Path) -> None:
    ran = run("predict", trace, "--scale", "comm=0.5", "--format", "csv")
    assert ran.status == 0
    assert ran.err.splitlines()[1].startswith("perfmodel: warning: ")
    assert len(ran.out.splitlines()) == 2
    assert "warning: one rank alone" in run("predict", trace, "--scale", "comm=0.5").out


def test_several_devices(run: Run, trace: Path) -> None:
    options = ("--hardware", "h100-sxm", "--hardware", "mi300x")
    answer = answer_of(run, trace, *options)
    assert [result["hardware"] for result in answer["results"]] == ["h100-sxm", "mi300x"]
    assert {result["mode"] for result in answer["results"]} == {"transfer"}
    ran = run("predict", trace, *options)
    assert "h100-sxm" in ran.out
    assert "mi300x" in ran.out
    assert len(run("predict", trace, *options, "--format", "csv").out.splitlines()) == 3


def test_many_devices_fit_the_page(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = [word for it in GPUS for word in ("--hardware", it.name)]
    monkeypatch.setenv("COLUMNS", "100")
    ran = run("predict", trace, *options)
    assert ran.status == 0
    lines = [line for line in ran.out.splitlines() if not line.startswith("warning: ")]
    assert max(map(len, lines[2:])) <= 100
    assert "…" not in ran.out


def test_settings_change_the_target(run: Run, trace: Path) -> None:
    given = ("--hardware", "h100-sxm", "--hardware", "mi300x")
    settings = ("--set", "device.hbm_gb_per_s=100", "--set", "host.single_thread_ratio=0.1")
    plain, slow = answer_of(run, trace, *given), answer_of(run, trace, *given, *settings)
    for before, after in zip(plain["results"], slow["results"], strict=True):
        assert after["step_us"] > before["step_us"]
        assert after["hardware"].startswith(f"{before['hardware']} (device.hbm_gb_per_s=100, host")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "node.gpus=4"), "--set changes the target: name one with --hardware"),
        (("--hardware", "l4", "--set", "gpus=4"), "--set 'gpus=4': expected KIND.KEY=VALUE"),
        (("--hardware", "l4", "--set", "device.hbm=4"), "unknown key hbm of a device; expected"),
        (("--hardware", "epyc-7742"), "cannot be transferred to epyc-7742: one is a GPU"),
    ],
)
def test_targets_that_cannot_be(run: Run, trace: Path, options: tuple[str, ...], said: str) -> None:
    ran = run("predict", trace, *options)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_hardware_from_a_file(run: Run, trace: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "h100-sxm"\nhbm_gb_per_s = 6000\n')
    assert answer_of(run, trace, "--hardware", mine)["results"][0]["hardware"] == str(mine)


def test_overheads_are_saved_and_used(run: Run, trace: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    assert run("fit", "overheads", trace, "-o", profile).status == 0
    assert json.loads(profile.read_text())["schema"] == "perfmodel.overheads/1"
    assert answer_of(run, trace, "--overheads", profile)["results"][0]["measured"] is None


def test_leave_one_step_out(run: Run, trace: Path) -> None:
    result = answer_of(run, trace, "--leave-one-step-out")["results"][0]
    assert result["low_us"] <= result["step_us"] <= result["high_us"]
    for step in result["steps"]:
        assert step["left_out"]["low_us"] < step["step_us"] < step["left_out"]["high_us"]
    out = run("predict", trace, "--leave-one-step-out").out
    assert "Mean absolute error of steps left out: replay" in out
    assert "In their 90 % intervals: 2 of 3 steps." in out


def test_what_a_median_leaves_out_is_said(run: Run, tmp_path: Path) -> None:
    content = document(steps=5)
    for number, (step, slow_us) in enumerate(((0, 300), (3, 200))):
        last = 1000 + (step + 1) * STEP_US - 1 + 300 * number
        for event in content["traceEvents"]:
            if event["ts"] >= last:
                event["ts"] += slow_us
            elif event["name"] == f"ProfilerStep#{step}":
                event["dur"] += slow_us
    path = write(tmp_path / "slow.json", content)
    said = (
        "Medians are of 3 of 5 steps: left out ProfilerStep#0 (warm-up, 4.0 times the median), "
        "ProfilerStep#3 (outlier, 3.0 times the median)."
    )
    for verb in "predict", "breakdown":
        out = run(verb, path).out
        assert said in out.replace("\n", " ")
        assert "ProfilerStep#3 (outlier" in out
    steps = answer_of(run, path)["results"][0]["steps"]
    assert [step["role"] for step in steps] == [
        *("warm-up", "steady", "steady", "outlier", "steady"),
    ]
    assert [step["warmup"] for step in steps] == [True, False, False, False, False]


def test_figure(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "path.png"
    ran = run("predict", trace, "--hardware", "a100-sxm-80gb", "--figure", path)
    assert ran.status == 0
    assert path.stat().st_size > 1000


def test_modes_that_contradict_each_other(run: Run, trace: Path) -> None:
    ran = run("predict", trace, "--replay", "--mode", "transfer")
    assert (ran.status, ran.out) == (2, "")
    assert "--replay" in ran.err


def test_an_execution_trace_is_paired(run: Run, reference: Path) -> None:
    folder = reference / "traces" / "dlrm_v100x8"
    if not folder.is_dir():
        pytest.skip("reference data not found (PERFMODEL_REFERENCE): dlrm_v100x8")
    kineto, et = folder / "kineto_rank0.json.gz", folder / "et_rank0.json.gz"
    answer = answer_of(run, kineto, "--et", et)
    assert len(answer["source"]["execution_traces"]) == 1
    ran = run("predict", folder / "kineto_rank0.json.gz", "--et", folder / "kineto_rank1.json.gz")
    assert (ran.status, ran.out) == (2, "")
    assert "holds no execution trace" in ran.err


def test_an_edit_of_a_workload_is_named_in_the_answer(run: Run) -> None:
    given = ("--workload", "criteo-kaggle", "--hardware", "h100-sxm")
    narrow = answer_of(run, *given, "--edit", "cast=fp8")
    assert narrow["source"]["edits"] == ["cast=fp8"]
    assert any("cast=fp8: " in line for line in narrow["warnings"])
    assert narrow["results"][0]["step_us"] < answer_of(run, *given)["results"][0]["step_us"]


@pytest.mark.parametrize("named", ["dlrm-dcnv2", "mine.toml"])
@pytest.mark.parametrize(
    "words",
    [
        *(
            ["predict"],
            ["breakdown"],
            ["report"],
            ["export", "-o", "out.json"],
        ),
        *(["diff", "a.json"], ["fit", "overheads", "-o", "out.json"]),
    ],
    ids=" ".join,
)
def test_a_configuration_is_no_trace(run: Run, words: list[str], named: str) -> None:
    ran = run(*words, named)
    assert ran.status == 2
    said = f"a configuration, no trace; it goes to perfmodel predict --workload {named}\n"
    assert ran.err == f"perfmodel: {named}: {said}"


@pytest.mark.parametrize(
    ("edit", "said"),
    [("melt", "unknown edit 'melt'"), ("remove=aten::nothing", "changes nothing: no op is called")],
)
def test_an_edit_that_cannot_be_is_one_line(run: Run, edit: str, said: str) -> None:
    ran = run("predict", "--hardware", "h100-sxm", "--edit", edit)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "--explain", "aten::add"),
        ("predict", "--workload", "lin-dlrm-default", "--hardware", "t4", "--explain", "addmm"),
    ],
)
def test_a_node_is_explained(run: Run, arguments: tuple[str, ...]) -> None:
    answer = json.loads(run(*arguments, "--format", "json").out)
    check_schema("explanation", answer)
    reason = answer["results"][0]["reason"]
    assert reason["formula"]
    ran = run(*arguments)
    assert ran.status == 0
    assert reason["formula"][:50] in ran.out
    assert run(*arguments, "--format", "csv").out.startswith("hardware,node,part,term,value")


def test_a_node_that_is_not_there_names_others(run: Run) -> None:
    ran = run("predict", "--explain", "aten::ad")
    assert ran.status == 0, "part of a name"
    ran = run("predict", "--explain", "no::such")
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "nearest: " in ran.err


def test_assumed_figures_are_listed(run: Run) -> None:
    where = ("predict", "--workload", "lin-dlrm-default", "--hardware", "t4")
    assumed = json.loads(run(*where, "--format", "json").out)["results"][0]["assumed"]
    assert {each["grounds"] for each in assumed} <= {"assumed", "recalled"}
    figures = {each["figure"] for each in assumed}
    assert "host.single_thread_ratio" in figures
    assert not any(name.startswith("nic.") for name in figures), "one device has no network"
    assert "host.single_thread_ratio" in run(*where, "--sources").out


SERVED = ("--workload", "criteo-kaggle", "--hardware", "dgx-a100-80gb", "--batch", "8192")


def test_inference_says_what_rate_a_latency_allows(run: Run) -> None:
    """At that rate 99 % are answered in just that time."""
    asked = run("predict", *SERVED, "--inference", "--p99-ms", "20", "-f", "json")
    (found,) = json.loads(asked.out)["source"]["serving"]
    at_most = ("--rate", str(0.999 * found["most_per_s"]), "-f", "json")
    (load,) = json.loads(run("predict", *SERVED, "--inference", *at_most).out)["source"]["serving"]
    assert load["p99_us"] <= 20_000
    text = run("predict", *SERVED, "--inference", "--p99-ms", "20", "--rate", "1e12").out
    assert "99 % within 20.00 ms up to" in text
    assert "unstable" in text


def test_batches_with_a_limit_to_their_delay(run: Run) -> None:
    """One that comes alone waits for the delay, not for 8,191 others; a target finds a batch."""

    def served(*asked: str) -> dict[str, Any]:
        words = ("predict", *SERVED, "--inference", "--max-delay-ms", "5", *asked, "-f", "json")
        (found,) = json.loads(run(*words).out)["source"]["serving"]
        return dict(found)

    alone = served("--rate", "1")
    assert 5_000 < alone["p50_us"] < 10_000
    assert alone["batch"] == 8192
    most = served("--p99-ms", "7")
    assert most["p99_us"] <= 7_000
    assert most["most_per_s"] == most["rate_per_s"] > 1e5
    chosen = served("--p99-ms", "7", "--rate", "1e5")
    assert chosen["p99_us"] <= 7_000
    assert chosen["batch"] in (32, 128, 512, 2048, 8192)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--max-delay-ms", "2"), "they are of --workload with --inference"),
        (("--inference", "--max-delay-ms", "2"), "give a --rate, or a latency to meet"),
        (
            ("--inference", "--rate", "9", "--max-delay-ms", "-1"),
            "expected milliseconds, 0 or more",
        ),
        (("--inference", "--p99-ms", "1", "--max-delay-ms", "5"), "not 99 % within 1.00 ms"),
        (("--p99-ms", "2"), "they are of --workload with --inference"),
        (("--inference", "--p99-ms", "0"), "--p99-ms 0: expected milliseconds above 0"),
        (("--inference", "--p99-ms", "0.001"), "at best: try a smaller --batch"),
        (("--inference", "--rate", "0"), "a rate of 0 per second"),
    ],
)
def test_latencies_that_cannot_be(run: Run, given: tuple[str, ...], message: str) -> None:
    found = run("predict", *SERVED, *given)
    assert found.status == 2
    assert message in found.err
    assert found.err.count("\n") == 1


def test_a_what_if_on_another_machine_names_it(run: Run) -> None:
    told = run("predict", "demo:gpu", "--scale", "gpu=0.5", "--hardware", "h100-sxm").out
    assert "on h100-sxm under the what-if" in told
    assert "8 copies: " in told


def test_a_recovered_workload_says_whose_host_time_it_has(run: Run, tmp_path: Path) -> None:
    copied = tmp_path / "mine.json.gz"  # of a name that says nothing
    copied.write_bytes(located("demo:gpu").read_bytes())
    for name, is_told in ((copied, True), ("criteo-kaggle", False)):
        ran = run("predict", "--workload", name, "--hardware", "dgx-h100")
        assert ("host time is a profile's" in ran.out) == is_told
