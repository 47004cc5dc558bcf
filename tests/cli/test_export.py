"""`perfmodel export`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import networkx
import pytest
from cli.conftest import Run
from cli.samples import ROOT

RANKS = ROOT / "traces" / "cpu_dlrm_2rank"


def names_of(content: bytes | str) -> set[str]:
    """Names of the processes in a timeline."""
    events = json.loads(content)["traceEvents"]
    return {e["args"]["name"] for e in events if e["name"] == "process_name"}


def test_timeline_holds_predicted_next_to_measured(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    ran = run("export", trace, "-o", path)
    assert (ran.status, ran.out) == (0, "")
    assert ran.err.startswith("perfmodel: wrote ")
    assert names_of(path.read_bytes()) == {"measured rank 0", "predicted rank 0"}


@pytest.mark.parametrize(
    "what_if",
    [
        ("--scale", "host=0.5"),
        ("--remove", "compute"),
        ("--hardware", "h100-sxm", "--scale", "compute=0.5"),
        ("--codec", "c10d=fp16,elements=1000000"),
        ("--steps", "1:", "--remove", "host_t1"),
    ],
)
def test_a_what_if_stands_beside_what_is_predicted_without_it(
    run: Run, trace: Path, tmp_path: Path, what_if: tuple[str, ...]
) -> None:
    path = tmp_path / "timeline.json"
    ran = run("export", trace, *what_if, "-o", path)
    assert ran.status == 0
    assert ran.err.startswith("perfmodel: wrote ")
    names = {f"{name} rank 0" for name in ("measured", "baseline", "what-if")}
    assert names_of(path.read_bytes()) == names


def test_from_shapes_nothing_is_measured(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    ran = run("export", RANKS, "--mode", "model", "--hardware", "h100-sxm", "-o", path)
    assert ran.status == 0
    assert names_of(path.read_bytes()) == {"predicted rank 0", "predicted rank 1"}


def test_to_standard_output(trace: Path) -> None:
    command = [sys.executable, "-m", "perfmodel", "export", str(trace)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert names_of(done.stdout)


def test_graph(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    assert run("export", trace, "-o", path).status == 0
    assert len(networkx.read_graphml(path)) > 10


def test_on_other_hardware(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    assert run("export", trace, "--hardware", "h100-sxm", "-o", path).status == 0
    assert names_of(path.read_bytes())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("out.graphml", ("--scale", "gpu=1")),
        ("out.json", ("--hardware", "h100-sxm", "--hardware", "mi300x")),
        ("out.json", ("--scale", "gpu")),
    ],
)
def test_bad_usage(
    run: Run, trace: Path, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    ran = run("export", trace, *arguments, "-o", tmp_path / name)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / name).exists()
