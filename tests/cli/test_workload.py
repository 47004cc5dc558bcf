"""`perfmodel workload`: the answer, the file that it writes, and bad input."""

import json
from pathlib import Path

from cli.conftest import Run
from cli.samples import ROOT, check_schema

from perfmodel.workload import load_workload

TWO_RANKS = str(ROOT / "traces" / "cpu_dlrm_2rank")


def test_json_is_what_the_schema_says(run: Run) -> None:
    for source in (TWO_RANKS, "criteo-kaggle"):
        check_schema("recovered", json.loads(run("workload", source, "-f", "json").out))
    answer = json.loads(run("workload", TWO_RANKS, "-f", "json").out)
    assert [each["ranks"] for each in answer["tables"]] == [[0], [1]] * 4
    taken = [each["setting"] for each in answer["facts"] if each["by"] == "default"]
    assert taken[-2:] == ["tables.rows", "tables.alpha"]


def test_its_file_is_the_workload_and_lists_what_is_taken(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    found = run("workload", TWO_RANKS, "-o", str(path))
    assert (found.status, f"wrote {path}" in found.err) == (0, True)
    assert "how often rows repeat is not recorded" in path.read_text()
    asked, seen = load_workload(path), load_workload(TWO_RANKS)
    assert (asked.tables, asked.implementation) == (seen.tables, seen.implementation)


def test_verbs_take_a_trace_as_a_workload(run: Run) -> None:
    words = ("--workload", TWO_RANKS, "--hardware", "a100-sxm-80gb", "-f", "json")
    for verb, more in (("predict", ()), ("compare", ("--designs", "software_cache"))):
        found = run(verb, *words, *more)
        assert found.status == 0, found.err


def test_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    ids = tmp_path / "ids.csv"
    ids.write_text("a,b\n1,2\n3,4\n")
    for words in (("no-such-model",), ("none.json.gz",), (TWO_RANKS, "--ids", str(ids))):
        found = run("workload", *words)
        assert (found.status, found.out, len(found.err.splitlines())) == (2, "", 1)
