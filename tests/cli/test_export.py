"""`perfmodel export`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import networkx
import pytest
from cli.conftest import Run


def names_of(content: bytes | str) -> set[str]:
    """Names of the processes in a timeline."""
    events = json.loads(content)["traceEvents"]
    return {e["args"]["name"] for e in events if e["name"] == "process_name"}


def test_timeline_holds_predicted_next_to_measured(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    ran = run("export", trace, "--scale", "host=0.5", "-o", path)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert {name.split()[0] for name in names_of(path.read_bytes())} == {"measured", "predicted"}


def test_to_standard_output(trace: Path) -> None:
    command = [sys.executable, "-m", "perfmodel", "export", str(trace)]
    done = subprocess.run(command, capture_output=True, check=True)
    assert names_of(done.stdout)


@pytest.mark.parametrize("arguments", [(), ("--what", "graph")])
def test_graph(run: Run, trace: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / ("graph.xml" if arguments else "graph.graphml")
    assert run("export", trace, *arguments, "-o", path).status == 0
    assert len(networkx.read_graphml(path)) > 10


def test_on_other_hardware(run: Run, trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    assert run("export", trace, "--hardware", "h100-sxm", "-o", path).status == 0
    assert names_of(path.read_bytes())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--what", "graph", "--scale", "gpu=1"),
        ("--hardware", "h100-sxm", "--hardware", "mi300x"),
        ("--scale", "gpu"),
    ],
)
def test_bad_usage(run: Run, trace: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = run("export", trace, *arguments, "-o", tmp_path / "out.json")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()
