"""The same input gives the same bytes: in every process, with any hash seed and worker count."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fuzz.kills import WRITING, Writing, command, content, inputs, target
from slow import slow_but

from perfmodel.cli import main

ROOT = Path(__file__).parents[2]
MORE = (
    Writing("breakdown --figure", ("breakdown", "{trace}", "--figure", "{out}.svg")),
    Writing("breakdown --format json", ("breakdown", "{trace}", "-o", "{out}.json")),
    Writing("predict png", ("predict", "--figure", "{out}.png")),
    Writing("predict pdf", ("predict", "--figure", "{out}.pdf")),
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
    Writing("hardware", ("hardware", "list", "-o", "{out}.json", "--format", "json")),
)


def written(writing: Writing, given: Path, folder: Path, seed: str | None) -> dict[str, bytes]:
    """What a verb writes in a process with this hash seed, or in this one."""
    folder.mkdir()
    out = folder / "out"
    demo = ROOT / "perfmodel" / "demo" / "dlrm_cpu_kineto.json.gz"
    words = [word.replace("{trace}", str(demo)) for word in command(writing, given, out)]
    if seed is None:
        assert main(words[3:]) == 0
        return content(target(writing, out))
    ran = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
    )
    assert ran.returncode == 0, ran.stderr
    return content(target(writing, out))


@pytest.mark.parametrize(
    "writing", slow_but(1, [*WRITING, *MORE]), ids=lambda writing: writing.name
)
def test_every_run_writes_the_same_bytes(writing: Writing, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    inputs(given)
    one = written(writing, given, tmp_path / "one", "1")
    assert one
    assert written(writing, given, tmp_path / "two", None) == one


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_results(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    inputs(given)
    sweep = next(each for each in WRITING if each.name == "sweep")
    several = Writing("sweep", (*sweep.words, "--workers", "3"))
    one = written(sweep, given, tmp_path / "one", None)
    assert one
    assert written(several, given, tmp_path / "three", "0") == one
