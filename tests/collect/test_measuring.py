"""Tiny measurements with PyTorch on a CPU."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collect.tiny_config import a_run

from perfmodel.collect import backend as backends
from perfmodel.collect import kernels
from perfmodel.collect.__main__ import main
from perfmodel.collect.families import FAMILIES, Case, Family, Prepared, Scope
from perfmodel.collect.kernels import Bench
from perfmodel.collect.timing import COLUMNS

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install torch (the CPU build is enough)"
)
TINY = Scope("cpu", ("fp32", "int8"), max_bytes=2e6, max_flop=1e7)


@pytest.fixture
def cpu() -> backends.Backend:
    return backends.open_backend("cpu")


@pytest.fixture
def bench(cpu: backends.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(kernels, "ROUNDS", 1)
    return Bench(a_run("kernels", cpu, tmp_path), ("warm",))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_each_group_of_each_family_runs(name: str, bench: Bench) -> None:
    first: dict[tuple[str, ...], Case] = {}
    for case in FAMILIES[name].cases(TINY):
        first.setdefault(case.group, case)
    bench.measure([(name, case) for case in first.values()], 1e9)
    assert len(bench.rows) == len(first)
    assert bench.run.skipped == {}


def test_rows_are_complete(bench: Bench) -> None:
    bench.measure_floors()
    cases = [("copies", Case("copy", "fp32", {"elements": 10 * n}, size_bytes=8)) for n in (1, 2)]
    bench.measure(cases, 1e9)
    assert [row["op"] for row in bench.rows] == ["clock_floor", "launch_floor", "copy", "copy"]
    assert all(row["duration_us"] <= row["median_us"] for row in bench.rows)
    assert {row["timing"] for row in bench.rows} == {"host_wall_sync"}
    assert set(bench.rows[-1]) <= set(COLUMNS)


def test_a_run_without_time_measures_one_case(bench: Bench) -> None:
    cases = [("copies", Case("copy", "fp32", {"elements": 10 * n}, size_bytes=8)) for n in (1, 2)]
    bench.run.end_s = 0.0
    bench.measure(cases, 1e9)
    assert len(bench.rows) == 1


def broken(error: BaseException) -> Callable[..., Prepared]:
    def prepare(*_: Any) -> Prepared:
        raise error

    return prepare


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (MemoryError(), "add/fp32/fwd: out of memory"),
        (
            RuntimeError("[enforce fail] can't allocate memory"),
            "out of memory",
        ),
        (NotImplementedError("no kernel for it\nlong text"), "add/fp32/fwd: no kernel for it"),
    ],
)
def test_what_cannot_run_is_noted_and_the_rest_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: BaseException, note: str
) -> None:
    add = Case("add", "fp32", {"rows": 2, "cols": 2}, size_bytes=8)
    copy = Case("copy", "fp32", {"elements": 4}, size_bytes=8)
    family = Family(lambda scope: iter(()), broken(error))
    monkeypatch.setitem(FAMILIES._items, "elementwise", family)
    bench.measure([("elementwise", add), ("copies", copy)], 1e9)
    assert len(bench.rows) == 1
    ((found, times),) = bench.run.skipped.items()
    assert found.endswith(note)
    assert times == 1


def test_an_interruption_keeps_what_was_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Case("add", "fp32", {"rows": 2, "cols": 2}, size_bytes=8)
    copy = Case("copy", "fp32", {"elements": 4}, size_bytes=8)
    family = Family(lambda scope: iter(()), broken(KeyboardInterrupt()))
    monkeypatch.setitem(FAMILIES._items, "elementwise", family)
    with pytest.raises(KeyboardInterrupt):
        bench.measure([("copies", copy), ("elementwise", add)], 1e9)
    assert len(bench.rows) == 1


def test_kernels_within_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernels", "--families", "copies", "--minutes", "0.02", "--device", "cpu"]
    assert main([*words, "-o", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "kernels_meta.json").read_text())
    assert record["schema"] == "perfmodel.collect.kernels/1"
    assert record["rows"] == len((tmp_path / "kernels.csv").read_text().splitlines()) - 1
    assert "kernels.csv: " in capsys.readouterr().err


def test_a_trace_with_its_un_profiled_times(tmp_path: Path) -> None:
    words = ["--preset", "tiny", "--batch", "4", "--steps", "4", "--warmup", "1", "--active", "2"]
    words += ["--name", "x", "--device", "cpu", "-o", str(tmp_path)]
    assert main(["trace", "--model", "dlrm", *words]) == 0
    record = json.loads((tmp_path / "x.json").read_text())
    assert len(record["unprofiled"]["before_us"]) == 2
    assert len(record["profiled"]["step_us"]) == 2
    packed = (tmp_path / "x_kineto.json.gz").read_bytes()
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    assert sum(event["name"].startswith("ProfilerStep#") for event in events) == 2
    nodes = json.loads(gzip.decompress((tmp_path / "x_et.json.gz").read_bytes()))
    assert len(nodes["nodes"]) > 20


def test_a_gpu_that_is_not_there_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, so it cannot be missed")
    assert main(["kernels", "--device", "cuda", "-o", str(tmp_path)]) == 2
    assert "sees no CUDA or ROCm device" in capsys.readouterr().err
