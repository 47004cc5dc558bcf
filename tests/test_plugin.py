"""A user's package (`tests/plugin`), installed beside perfmodel in fresh processes.

It adds a memory tier, a kernel model, a place of caches, software, a lowering rule, a generation of
GPUs and a trace format.
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
CRITEO_ROWS = 33_762_577
"""Of all 26 tables, in vectors of 16 fp32."""


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
    assert tier["tables_bytes"] == pytest.approx(CRITEO_ROWS * 64)
    assert rack_time_us(installed, '{"tier": "rack"}') == pytest.approx(READ_US)


READ_US = 4096 * 26 * 64 / 50e3
"""Samples, tables, bytes of a row, bytes per microsecond: all lookups on one GPU."""


def rack_time_us(installed: Path, edit: str) -> float:
    """Time of a step's ops of the rack, with every table's placement edited so; one GPU."""
    code = f"""
from dataclasses import replace
from perfmodel.designs import deployment_of
from perfmodel.embedding import RowCache
from perfmodel.hardware import cluster, device, node_of
from perfmodel.prediction import predict
from perfmodel.workload import load_workload
machine = cluster(replace(node_of(device("a100-sxm-80gb")), gpus=1))
start = deployment_of(load_workload("criteo-kaggle"), machine, 4096, train=False)
caches = (RowCache("near", "rack", 1e9),)
placement = start.placement.edited(lambda *_: {edit}, caches=caches)
(result,) = predict(start.with_(placement=placement)).results
print(json.dumps([row["time_us"] for row in result.families if row["family"] == "rack"]))
"""
    (time_us,) = in_python(installed, code)
    return float(time_us)


def test_a_kernel_model_of_a_family_that_has_one(installed: Path) -> None:
    """It times the whole step's products where it is chosen, and nothing where it is not."""
    chosen = ("--kernels", "matmul=at_peak")
    asked = ("predict", "--workload", "criteo-kaggle", "--batch", "65536", "--inference")

    def products_us(*more: str) -> float:
        found = document(installed, *asked, "--hardware", "a100-sxm-80gb", *more)["results"][0]
        return float(next(row["time_us"] for row in found["families"] if row["family"] == "matmul"))

    # Layers 13-512-256-64-16 and (16 + 27 * 26 / 2)-512-256-1, and 27 vectors with each other.
    per_sample = 2 * (13 * 512 + 512 * 256 + 256 * 64 + 64 * 16 + 367 * 512 + 512 * 256 + 256)
    per_sample += 2 * 27 * 27 * 16
    at_peak_us = 65536 * per_sample / 19.5e6
    # The narrow layers, 8 % of the time, move their operands no faster than memory does.
    assert at_peak_us < products_us(*chosen) < 1.1 * at_peak_us < products_us()
    on_cpu = run(installed, *asked, "--hardware", "cpu-epyc", *chosen)
    assert "on a cpu device: 'at_peak'; nearest: heuristic" in on_cpu.stderr


@pytest.mark.slow
def test_a_place_of_caches(installed: Path) -> None:
    """A node's rack holds the caches that tables name; lookups of those tables go through it."""
    code = """
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload
from perfmodel.workload.memory_tiers import tier_use
caches = [RowCache(*about) for about in CACHES]
names = ["a"] * 20 + ["b"] * 6
tables = [TablePlacement("table_wise", (0,), "host", caches=(name,)) for name in names]
placement = Placement(tuple(tables), tuple(caches))
uses = tier_use(load_workload("criteo-kaggle"), placement, cluster("dgx-a100-80gb"), train=False)
print(json.dumps({u.tier: [u.tables_bytes, u.caches_bytes, u.capacity_bytes] for u in uses}))
"""
    caches = [("a", "rack", 1e9), ("b", "rack", 3e9), ("unused", "rack", 7e9)]
    uses = in_python(installed, code.replace("CACHES", repr(caches)))
    assert uses["rack"] == [0.0, 1e9 + 3e9, 4e12]
    assert uses["host"][:2] == [pytest.approx(CRITEO_ROWS * 64), 0.0]
    edit = '{"tier": "host", "caches": ("near",)}'
    assert rack_time_us(installed, edit) == pytest.approx(READ_US)


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


@pytest.mark.slow
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
    assert [row["step_us"] for row in found["summary"]] == [20 + 3 - 10]
    operators = {row["name"]: (row["count"], row["host_us"]) for row in found["top_operators"]}
    assert operators == {"aten::mm": (1, 5), "aten::add": (1, 3)}
