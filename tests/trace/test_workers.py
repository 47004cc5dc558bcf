"""Several ranks decoded by several processes: the same answer, the same errors."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tiny import EtNode, Tiny, execution_trace_content

from perfmodel.errors import PerfmodelError, TraceError, UsageError
from perfmodel.trace import Trace, files, read


def ranks(folder: Path, count: int = 3) -> Path:
    for number in range(count):
        t = Tiny(number, count)
        for step in range(3):
            t.step(step, 100 * step, 100 * step + 100)
            t.op(f"aten::op{number}", 100 * step + 10, 100 * step + 30)
            t.launch(100 * step + 15, 100 * step + 20, (100 * step + 40, 100 * step + 90 + number))
        (folder / f"rank{number}.json").write_bytes(t.content())
    return folder


def same(one: Trace, other: Trace) -> bool:
    for mine, theirs in zip(one.ranks, other.ranks, strict=True):
        assert vars(mine).keys() >= {"start_us", "name"}
        for key, value in vars(mine).items():
            if isinstance(value, np.ndarray):
                assert value.dtype == vars(theirs)[key].dtype, key
                assert np.array_equal(value, vars(theirs)[key]), key
        assert mine.strings.texts == theirs.strings.texts
        assert (mine.where, mine.rank, mine.devices) == (theirs.where, theirs.rank, theirs.devices)
    return (one.warnings, one.chosen) == (other.warnings, other.chosen)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [None, slice(1, 2)])
def test_any_number_of_workers_reads_the_same(tmp_path: Path, steps: slice | None) -> None:
    folder = ranks(tmp_path)
    (folder / "notes.json").write_text("{}")
    one = read(folder, workers=1, steps=steps, context=1)
    assert len(one.ranks) == 3
    assert len(one.warnings) == 1
    for count in (2, 9):
        assert same(one, read(folder, workers=count, steps=steps, context=1))


def test_errors_are_those_of_the_first_file_that_has_one(tmp_path: Path) -> None:
    folder = ranks(tmp_path)
    for number in (1, 2):
        path = folder / f"rank{number}.json"
        path.write_bytes(path.read_bytes()[:-40])
    for count in (1, 2):
        with pytest.raises(TraceError, match=r"rank1\.json: damaged trace: it ends early"):
            read(folder, workers=count)
    with pytest.raises(PerfmodelError, match="above the limit of 100 bytes"):
        read(folder, workers=2, max_bytes=100)


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    for count in (1, 2):
        with pytest.raises(UsageError, match="matches none of the 3 steps"):
            read(ranks(tmp_path), workers=count, steps=slice(7, 9))


def test_execution_traces_come_back_too(tmp_path: Path) -> None:
    folder = ranks(tmp_path, 2)
    for number in range(2):
        (folder / f"et_rank{number}.json").write_bytes(
            execution_trace_content(EtNode("aten::mm", 1))
        )
    one, two = (read(folder, workers=count) for count in (1, 2))
    assert sorted(two.execution_traces) == [0, 1]
    for rank, trace in one.execution_traces.items():
        assert two.execution_traces[rank].where == trace.where
        assert len(two.execution_traces[rank]) == len(trace)


def test_a_worker_that_is_killed_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = f"import os, signal; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    monkeypatch.setattr(files, "_COMMAND", died)
    with pytest.raises(PerfmodelError, match=r"rank0\.json: the process that read it ended early"):
        read(ranks(tmp_path), workers=2)


def test_small_folders_need_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ranks(tmp_path)
    paths = sorted(folder.iterdir())
    assert files.usual_workers(paths) == 1
    monkeypatch.setattr(files, "MIN_BYTES", 100)
    expected = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert files.usual_workers(paths) == expected
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("not for one"))
    assert len(read(paths[0]).ranks) == 1
