"""The same input gives the same bytes: in every process, with any hash seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.kills import WRITING, Files, Writing, command, content, inputs, target

from perfmodel.cli import main

ROOT = Path(__file__).parents[2]
MORE = (
    Writing("breakdown --format json", ("breakdown", "{trace}", "-o", "{out}.json")),
    Writing("predict transfer", ("predict", "--hardware", "dgx-1", "-o", "{out}.json")),
    Writing(
        "predict workload",
        ("predict", "--workload", "criteo-kaggle", "--hardware", "dgx-1", "-o", "{out}.json"),
    ),
    Writing("diff", ("diff", "{trace}", "{trace}", "-o", "{out}.json", "--format", "json")),
    Writing("export graphml", ("export", "{trace}", "-o", "{out}.graphml")),
    Writing(
        "plan",
        ("plan", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-80gb", "-o", "{out}.json"),
    ),
    Writing("predict pdf", ("predict", "-o", "{out}.json", "--figure", "{out}.pdf")),
    Writing("hardware", ("hardware", "list", "-o", "{out}.json", "--format", "json")),
)


ALL = {each.name: each for each in (*WRITING, *MORE)}
RUN = """import json, sys
from perfmodel.cli import main
sys.exit(any(map(main, json.loads(sys.argv[1]))))"""
"""One command line after the other; `main` returns 0 where all is well."""


def written(chosen: list[Writing], given: Path, folder: Path, seed: str | None) -> dict[str, Files]:
    """What verbs write, one after the other, in a process with this hash seed or in this one."""
    folder.mkdir()
    demo = str(ROOT / "perfmodel" / "demo" / "dlrm_cpu_kineto.json.gz")
    out = {each: folder / f"{number}" for number, each in enumerate(chosen)}
    lines = [
        [word.replace("{trace}", demo) for word in command(each, given, out[each])[3:]]
        for each in chosen
    ]
    if seed is None:
        assert not any(map(main, lines))
    else:
        ran = subprocess.run(
            [sys.executable, "-c", RUN, json.dumps(lines)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert ran.returncode == 0, ran.stderr
    return {each.name: content(target(each, out[each])) for each in chosen}


@pytest.mark.parametrize(
    "names",
    [
        ["predict"],
        pytest.param([name for name in ALL if name != "predict"], marks=pytest.mark.slow),
    ],
    ids=len,
)
def test_every_run_writes_the_same_bytes(names: list[str], tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    inputs(given)
    chosen = [ALL[name] for name in names]
    one = written(chosen, given, tmp_path / "one", "1")
    two = written(chosen, given, tmp_path / "two", None)
    assert all(one.values())
    assert [name for name in names if one[name] != two[name]] == []
