"""Which files are one job, and what each is called."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from validate.evaluate.handmade import save, steps

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.validate.evaluate.jobs import demo_job, evaluate_jobs, find_jobs

COSTS = ((90.0, 20.0), (90.0, 20.0))


def names(*paths: Path) -> list[str]:
    return [job.name for job in find_jobs(paths)]


def test_a_folder_of_ranks_is_one_job(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for rank in range(2):
        save(root / "two" / f"{'ab'[rank]}.json", steps(*COSTS, rank=rank))
        save(root / "named" / f"rank{rank}_kineto.json", steps(*COSTS))
    assert names(root) == ["set/named", "set/two"]
    assert names(root / "two") == ["two"]
    assert [facts["ranks"] for facts in evaluate_jobs(find_jobs([root]))["traces"]] == [2, 2]


def test_other_folders_hold_a_job_per_file(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name in ("one", "two"):
        save(root / "plain" / f"{name}.json", steps(*COSTS))
        save(root / "alone" / f"{name}.json", steps(*COSTS, rank=0, world_size=1))
    save(root / "rank0.json", steps(*COSTS))
    assert names(root) == [
        *("set/alone/one.json", "set/alone/two.json"),
        *("set/plain/one.json", "set/plain/two.json"),
        "set/rank0.json",
    ]


def test_ranks_of_jobs_of_different_sizes_are_different_jobs(tmp_path: Path) -> None:
    for rank, world_size in ((0, 128), (5, 8)):
        save(tmp_path / "set" / f"{rank}.json", steps(*COSTS, rank=rank, world_size=world_size))
    assert names(tmp_path / "set") == ["set/0.json", "set/5.json"]


def test_what_is_no_kineto_trace_is_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "set"
    trace = save(root / "t.json", steps(*COSTS))
    (root / "notes.json").write_text('{"a": 1}')
    (root / "et.json").write_text('{"schema": "1.0.1", "nodes": []}')
    (root / "table.csv").write_text("a,b")
    (root / "zipped.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    with tarfile.open(root / "ranks.tar.gz", "w:gz") as archive:
        archive.add(trace, "t.json")
    assert names(root) == ["set/ranks.tar.gz", "set/t.json", "set/zipped.json.gz"]
    assert len(evaluate_jobs(find_jobs([root]))["traces"]) == 3


def test_a_damaged_file_is_a_job_that_will_say_so(tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"x" * 9999)[:-9])
    assert names(tmp_path) == [f"{tmp_path.name}/cut.json.gz"]


def test_a_file_and_the_demo(tmp_path: Path) -> None:
    assert names(save(tmp_path / "t.json", steps(*COSTS))) == ["t.json"]
    assert demo_job().name == "bundled demo"
    assert demo_job().path.is_file()


def test_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(PerfmodelError, match="no Kineto trace"):
        find_jobs([tmp_path])
    a = save(tmp_path / "a" / "t.json", steps(*COSTS))
    b = save(tmp_path / "b" / "t.json", steps(*COSTS))
    with pytest.raises(UsageError, match=r"both be 't\.json'"):
        find_jobs([a, b])
    assert names(a, a) == ["t.json"]
    assert json.loads(a.read_text())["traceEvents"]
