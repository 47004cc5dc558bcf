"""A user's package (`tests/plugin`), installed beside perfmodel in fresh processes.

It adds a memory tier, a place of caches, software, a lowering rule, a generation of GPUs and a
trace format.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for `sys.path` that holds the package and the metadata that pip would write."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "rack_memory.py").write_text((PACKAGE / "rack_memory.py").read_text())
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    about = folder / "rack_memory-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(
    installed: Path, *command: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    setup = f"import sys; sys.path.insert(0, {str(installed)!r}); sys.argv[0] = 'perfmodel'; "
    code = setup + "from perfmodel.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, cwd=cwd, check=False
    )


def document(installed: Path, *command: str, cwd: Path | None = None) -> Any:
    done = run(installed, *command, "--format", "json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_python(installed: Path, code: str) -> Any:
    setup = f"import json, sys; sys.path.insert(0, {str(installed)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_memory_tier(installed: Path) -> None:
    """Its bytes are counted against its capacity, and its time is what its model says."""
    found = document(
        installed,
        *("compare", "--workload", "criteo-kaggle", "--hardware", "a100-sxm-80gb"),
        *("--designs", "rack", "--inference", "--batch", "4096"),
    )
    by_name = {row["design"]: row for row in found["designs"]}
    (tier,) = [each for each in by_name["rack"]["memory"] if each["tier"] == "rack"]
    assert tier["capacity_bytes"] == 4e12
    assert tier["tables_bytes"] > 2e9
    read_us = 4096 * 26 * 64 / 50e3  # samples, tables, bytes of a row, bytes per microsecond
    assert by_name["rack"]["step_us"] > read_us


def test_an_unknown_memory_is_refused_and_a_registered_place_is_not(installed: Path) -> None:
    code = """
from perfmodel.embedding import RowCache, TablePlacement
from perfmodel.errors import PerfmodelError
try:
    TablePlacement("table_wise", (0,), "rcak")
except PerfmodelError as error:
    print(json.dumps([str(error), RowCache("near", "rack", 1e9).at]))
"""
    message, place = in_python(installed, code)
    assert message == "unknown memory of rows 'rcak'; nearest: rack"
    assert place == "rack"


def test_an_implementation_of_a_workload(installed: Path) -> None:
    def ops(name: str) -> int:
        code = f"""
from perfmodel.workload import load_workload, op_graph
workload = load_workload("criteo-kaggle").with_(implementation__name={name!r})
print(json.dumps(len(op_graph(workload, 512, train=False))))
"""
        return int(in_python(installed, code))

    assert ops("forward_twice") == 2 * ops("pytorch")


def test_a_lowering_that_reads_an_attribute(installed: Path) -> None:
    code = """
from perfmodel.lowering import lower
from perfmodel.ops.graph import Op, OpGraph, Tensor
ops = [Op("mine::heads", (Tensor((8,)),), attributes={"heads": str(n)}) for n in (1, 4, 1)]
print(json.dumps([piece.dims["elements"] for piece in lower(OpGraph(tuple(ops)), "cuda").pieces]))
"""
    assert in_python(installed, code) == [1024.0, 4096.0, 1024.0]


def test_a_generation(installed: Path, tmp_path: Path) -> None:
    """Known, it takes the figures of the one that it is like; unknown, every answer says so."""
    for name, is_known in (("feynman", True), ("fynman", False)):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'extends = "h100-sxm"\narchitecture = "{name}"\n')
        done = run(
            installed,
            *("predict", "--workload", "criteo-kaggle", "--hardware", str(path)),
            *("--format", "json"),
        )
        assert done.returncode == 0, done.stderr
        assert ("nothing is known of the generation" in done.stdout + done.stderr) != is_known


def test_a_trace_format(installed: Path, tmp_path: Path) -> None:
    """Found in a folder by its suffix, read by its content."""
    (tmp_path / "mine.spans").write_text("spans\naten::mm 10 5\naten::add 20 3\n")
    found = document(installed, "breakdown", str(tmp_path))
    assert found
