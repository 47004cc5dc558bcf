"""`perfmodel breakdown`."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from cli import samples
from cli.conftest import Run
from cli.samples import ALL_REDUCE, KERNEL, check_schema, document, write
from cli.test_bad_input import refused

from perfmodel.cli.console import Console
from perfmodel.reporting.broken_down import gain_blocks, tree


def test_table_names_what_was_found(run: Run, trace: Path) -> None:
    ran = run("breakdown", trace, "-v")
    assert (ran.status, ran.err) == (0, "")
    for text in ("Tesla V100", "ProfilerStep#2", "GPU idle by cause", "Critical path", "T4"):
        assert text in ran.out
    _title, verdict, _, caution, *_ = ran.out.splitlines()
    assert "a step" in verdict
    assert caution.startswith("warning: incomplete recording: no shapes were recorded")


def test_without_a_trace_it_is_the_demo(run: Run) -> None:
    whole, part = (run("breakdown", "-v", *chosen) for chosen in ((), ("--steps", "2:4")))
    assert [ran.out.splitlines()[0] for ran in (whole, part)] == ["bundled demo: cpu, 1 rank"] * 2
    of_part = next(line for line in part.out.splitlines() if "ProfilerStep#4" in line)
    assert of_part in whole.out.splitlines()


def test_json_is_what_the_schema_says_and_sums(run: Run, trace: Path) -> None:
    answer = json.loads(run("breakdown", trace, "--format", "json").out)
    check_schema("breakdown", answer)
    steps = answer["ranks"][0]["steps"]
    assert [step["name"] for step in steps] == [f"ProfilerStep#{i}" for i in range(3)]
    for step in steps:
        assert step["step_us"] == 99
        assert sum(step["idle_by_cause"].values()) == pytest.approx(step["gpu_idle_us"])
        assert sum(step["critical_path_by_kind"].values()) == pytest.approx(step["step_us"])


def test_csv_has_a_row_per_step(run: Run, trace: Path) -> None:
    lines = run("breakdown", trace, "--format", "csv").out.splitlines()
    assert lines[0].startswith("rank,step,step_us,gpu_active_us")
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("steps", "kept"), [("1:", [1, 2]), (":1", [0]), ("-1:", [2]), ("0:2", [0, 1])]
)
def test_steps_are_chosen_as_a_slice(run: Run, trace: Path, steps: str, kept: list[int]) -> None:
    ran = run("breakdown", trace, "--format", "json", f"--steps={steps}")
    names = [step["name"] for step in json.loads(ran.out)["ranks"][0]["steps"]]
    assert names == [f"ProfilerStep#{i}" for i in kept]


def test_ranks_are_chosen_by_number(run: Run, tmp_path: Path) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", document(rank=rank, world_size=2))
    answer = json.loads(run("breakdown", tmp_path, "--rank", 1, "--format", "json").out)
    assert [rank["rank"] for rank in answer["ranks"]] == [1]
    check_schema("breakdown", answer)


def test_of_ranks_that_meet_the_straggler_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.prediction.gains.gains", lambda *_, **__: [])
    folder = Path(__file__).parents[2] / "traces" / "cpu_dlrm_2rank"
    assert "Straggler: rank 1." in run("breakdown", folder).out
    answer = json.loads(run("breakdown", folder, "--format", "json").out)
    check_schema("breakdown", answer)
    assert answer["straggler"]["rank"] == 1
    waits = {rank["rank"]: rank["waiting_us"] for rank in answer["ranks"]}
    assert waits[0] > waits[1] > 0
    assert all(rank["transfer_us"] > 0 for rank in answer["ranks"])
    columns = run("breakdown", folder, "--format", "csv").out.splitlines()[0].split(",")
    assert columns[-2:] == ["transfer_us", "waiting_us"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--steps=9:", "--steps"),
        ("--steps=a", "a"),
        ("--rank=7", "--rank 7"),
    ],
)
def test_a_choice_of_nothing_is_an_error(run: Run, trace: Path, option: str, text: str) -> None:
    ran = run("breakdown", trace, option)
    assert (ran.status, ran.out) == (2, "")
    assert text in ran.err
    assert ran.err.count("\n") == 1


def test_no_step_of_a_trace_without_a_gpu(run: Run) -> None:
    """What would help was asked of no step, an internal error."""
    refused(run("breakdown", "--steps=2:1"), "--steps matches none of the 6 steps")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figure(run: Run, trace: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"timeline.{suffix}"
    assert run("breakdown", trace, "--figure", path, "--steps", "1:2").status == 0
    assert path.stat().st_size > 1000


def test_the_suffix_of_the_file_chooses_the_form(run: Run, trace: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    ran = run("breakdown", trace, "-o", answer)
    assert (ran.status, ran.out) == (0, "")
    check_schema("breakdown", json.loads(answer.read_text()))
    assert run("breakdown", trace, "-o", tmp_path / "answer.txt").status == 0
    assert "ProfilerStep#0" in (tmp_path / "answer.txt").read_text()


def test_standard_input(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace.read_bytes())))
    ran = run("breakdown", "-")
    assert ran.status == 0
    assert ran.out.startswith("standard input: Tesla V100")


def test_a_trace_without_kernels_has_host_figures_only(run: Run, tmp_path: Path) -> None:
    content = document()
    host = [e for e in content["traceEvents"] if e["cat"] in ("user_annotation", "cpu_op")]
    path = write(tmp_path / "cpu.json", content | {"traceEvents": host, "deviceProperties": []})
    answer = json.loads(run("breakdown", path, "--format", "json").out)
    check_schema("breakdown", answer)
    assert answer["ranks"][0]["device"] == "cpu"
    assert answer["ranks"][0]["steps"][0]["gpu_active_us"] == 0
    assert "GPU active" not in run("breakdown", path).out


def test_names_of_a_trace_cannot_reach_the_terminal_raw(run: Run, tmp_path: Path) -> None:
    content = document(steps=1)
    content["deviceProperties"][0]["name"] = "[red]\x1b[31mGPU\n\u202e"
    ran = run("breakdown", write(tmp_path / "odd.json", content))
    assert ran.status == 0
    assert "\x1b" not in ran.out
    assert "[red]?[31mGPU ?" in ran.out


def several(folder: Path, count: int = 3) -> Path:
    """Ranks of which the second has the longest steps."""
    for rank in range(count):
        content = document(rank=rank, world_size=count)
        for event in content["traceEvents"]:
            if rank == 1 and event["name"].startswith("ProfilerStep"):
                event["dur"] += 0.5
        write(folder / f"rank{rank}.json", content)
    return folder


def test_of_several_ranks_one_is_shown_in_detail(run: Run, tmp_path: Path) -> None:
    out = run("breakdown", several(tmp_path), "-v").out
    title, *lines = out.splitlines()
    assert "3 ranks" in title
    at = next(at for at, line in enumerate(lines) if line.startswith("Ranks, mean of 3 steps"))
    ranks = lines[at + 3 : at + 6]
    assert [line.split()[0] for line in ranks] == ["0", "1", "2"]
    assert sum(" * " in line[:6] for line in ranks) == 1
    assert out.count("Steps, rank ") == 1
    assert "others: --rank N" in out
    whole = run("breakdown", tmp_path, "--rank", 0, "--rank", 2, "-v").out
    assert whole.count("Steps, rank ") == 2
    assert "others: --rank N" not in whole


ORDER = (
    " a step",
    "warning: incomplete",
    "Ranks,",
    "GPU idle by cause",
    "Critical path",
    "Largest gains",
    "Top kernels",
)
ORDER += ("Top operators", "Collectives")


@pytest.mark.parametrize("count", [1, 3])
def test_one_rank_and_many_are_told_in_one_order(run: Run, tmp_path: Path, count: int) -> None:
    out = run("breakdown", several(tmp_path, count)).out
    places = [out.index(text) for text in ORDER]
    assert places == sorted(places)
    assert "Host overhead" not in out
    assert out.endswith("\nEach step, rates by shape and host overheads: -v\n")


def test_the_verdict_is_one_sentence(run: Run, tmp_path: Path) -> None:
    """Nothing but the host decides these steps: 57 of its 99 us are gaps between operators."""
    lines = run("breakdown", write(tmp_path / "a.json", document())).out.splitlines()
    assert lines[1] == (
        "99.0 us a step, the GPU active 40.4 % of it: 100.0 % of the critical path is host time, "
        "above all Python, between ops (T1); largest gain: no Python between ops (main thread), "
        "57.6 %."
    )


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_tables_fit_the_columns_and_numbers_stay_whole(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    content = document()
    name = "void at::native::a_kernel_of_a_rather_long_name" + "_and_more" * 20 + "<float>(int)"
    for event in content["traceEvents"]:
        if event["name"] == KERNEL:
            event["name"] = name
    path = write(tmp_path / "long.json", content)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("breakdown", path).out.splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Top kernels"))) :]
    row = next(line for line in table if line.startswith("a_kernel"))
    assert max(map(len, table[: table.index("")])) <= columns
    assert any("…" in line for line in table)
    assert row.split()[1:4] == ["20.0", "20.2", "%"]


def test_top_bounds_every_table(run: Run, trace: Path) -> None:
    answer = json.loads(run("breakdown", trace, "--format", "json", "--top", 1).out)
    check_schema("breakdown", answer)
    assert [row["name"] for row in answer["top_kernels"]] == [ALL_REDUCE]  # a tie, by name
    assert len(answer["ranks"][0]["top_operators"]) == 1
    whole = json.loads(run("breakdown", trace, "--format", "json").out)
    assert {row["name"] for row in whole["top_kernels"]} == {KERNEL, ALL_REDUCE}
    assert run("breakdown", trace, "--top", 0).status == 2


def test_modules_stand_in_their_own_table_and_in_json_by_class(run: Run, tmp_path: Path) -> None:
    content = document()
    for at in range(3):
        begun = 1000 + 100 * at
        ranges = (("python_function", "nn.Module: Net_0"), ("user_annotation", "forward"))
        content["traceEvents"] += [samples.event(*each, begun + 2, begun + 90) for each in ranges]
    path = write(tmp_path / "modules.json", content)
    tables = run("breakdown", path).out.split("\n\n")
    (ranges,) = (table for table in tables if table.startswith("Annotated ranges"))
    (modules,) = (table for table in tables if table.startswith("Modules"))
    assert "forward" in ranges
    assert "Net" not in ranges
    assert "Net" in modules
    answer = json.loads(run("breakdown", path, "--format", "json").out)
    kinds = {row["name"]: row["kind"] for row in answer["annotations"]}
    assert kinds == {"forward": "annotation", "nn.Module: Net": "module"}


def test_overlap_is_in_the_answer(run: Run, trace: Path) -> None:
    answer = json.loads(run("breakdown", trace, "--format", "json").out)
    assert answer["overlap"] == {
        "comm_us": 20,
        "hidden_us": 0,
        "exposed_us": 20,
        "hidden_frac": 0,
    }
    assert "Communication: 20" in run("breakdown", trace).out


def with_memory(folder: Path, *sizes: int) -> Path:
    content = document()
    held = 0
    for at, size in enumerate(sizes):
        held += size
        args = {"Device Type": 1, "Device Id": 0, "Bytes": size, "Addr": 7}
        args |= {"Total Allocated": held, "Total Reserved": 4 * 10**9}
        event = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1010 + at}
        content["traceEvents"].append(event | {"args": args})
    return write(folder / "memory.json", content)


def test_memory_is_said_and_in_the_answer(run: Run, tmp_path: Path) -> None:
    path = with_memory(tmp_path, 3 * 10**9, -3 * 10**9)
    ran = run("breakdown", path)
    assert "Memory of cuda:0: peak 3.000 GB allocated, 4.000 GB reserved" in ran.out
    answer = json.loads(run("breakdown", path, "--format", "json").out)
    check_schema("breakdown", answer)
    (memory,) = answer["ranks"][0]["memory"]
    assert (memory["allocated_bytes"], memory["peak_step"]) == ([3 * 10**9, 0], "ProfilerStep#0")


@pytest.mark.parametrize(
    "name", ["edge/cpu_only_rank_non_gpu.json.gz", "inference/h100_qwen1.5-0.5b.json.gz"]
)
def test_real_traces(run: Run, reference: Path, name: str) -> None:
    path = reference / "traces" / name
    if not path.exists():
        pytest.skip(f"reference data not found (PERFMODEL_REFERENCE): {name}")
    check_schema("breakdown", json.loads(run("breakdown", path, "--format", "json").out))
    assert run("breakdown", path).status == 0


def test_each_gain_is_what_its_command_says(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "a trace.json.gz", document())
    answer = json.loads(run("breakdown", path, "--format", "json").out)
    assert answer["gains"]
    for gain in answer["gains"]:
        words = shlex.split(gain["command"])
        assert words[:3] == ["perfmodel", "predict", str(path)]
        (result,) = json.loads(run(*words[1:], "--format", "json").out)["results"]
        assert result["gain_us"] == pytest.approx(gain["gain_us"], abs=1e-3)
        assert result["gain_frac"] == pytest.approx(gain["gain_frac"], abs=1e-4)
    shown = run("breakdown", path).out.partition("Largest gains")[2]
    assert all(f"    {gain['command']}\n" in shown for gain in answer["gains"])


def test_where_nothing_helps_it_says_so() -> None:
    console = Console()
    console.show(*gain_blocks([]))
    assert console.text.strip() == (
        "Largest gains: no what-if alone gains more than 1 % of the step."
    )


def test_gains_that_cannot_be_worked_out_take_nothing_with_them(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise IndexError("an operand without dimensions")

    monkeypatch.setattr("perfmodel.prediction.gains.gains", fails)
    table, answer = run("breakdown", trace), run("breakdown", trace, "--format", "json")
    assert (table.status, answer.status) == (0, 0)
    said = "what would help most could not be worked out"
    assert said in " ".join(table.out.split())
    assert said in answer.out
    assert json.loads(answer.out)["ranks"][0]["steps"]


def test_modules_stand_below_what_they_are_part_of() -> None:
    """The longest first on each level, wherever they come in a table by time."""
    us = {"/Net": 9, "/Net/Head": 5, "/Net/Tower": 4, "/Net/Tower/Linear": 3, "/Net/Head/Linear": 1}
    rows = tree([{"name": name, "host_us": each} for name, each in us.items()])
    assert [row["name"] for row in rows] == ["Net", "│ Head", "│ │ Linear", "│ Tower", "│ │ Linear"]


def test_the_folder_here_is_read(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.parent)
    for name in (".", "./"):
        assert run("breakdown", name).status == run("predict", name).status == 0
