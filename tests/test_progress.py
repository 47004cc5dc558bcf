"""What long work does by now, and who is told: a terminal, and nobody else."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

import perfmodel
from perfmodel.base.answers import begun
from perfmodel.cli import main
from perfmodel.cli.output import working

TRACE = "traces/cpu_dlrm_2rank/dlrm_rank0_kineto.json.gz"
SWEEP = """
workload = "criteo-terabyte"
hardware = "dgx-a100-80gb"

[axes]
batch = [8192, 16384]
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_each_part_is_told_before_it_is_done() -> None:
    told: list[object] = []
    for part in begun([3, 5], lambda *each: told.append(each), lambda part: f"part {part}"):
        told.append(part)
    assert told == [("part 3", 0, 2), 3, ("part 5", 1, 2), 5]


def test_a_terminal_sees_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    import sys

    with working("fitting") as begin:
        begin("matmul", 0, 4)
        begin("vector", 1, 4)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "fitting: vector 25 % done, " in shown


def test_pipes_see_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with working("fitting") as begin:
        begin("matmul", 0, 4)
    assert capsys.readouterr() == ("", "")


VERBS = [
    ("plan", "--workload", "hotline-rm1", "--hardware", "dgx-a100-80gb"),
    ("evaluate", "traces", TRACE),
    ("fit", "overheads", TRACE, "-o", "PLACE/mine.json"),
    ("sweep", "PLACE/small.toml", "-o", "PLACE/results"),
]


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
def test_long_verbs_tell_a_terminal_and_print_the_same(
    words: Sequence[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "small.toml").write_text(SWEEP)
    line = [word.replace("PLACE", str(tmp_path)) for word in words]
    assert main(line) == 0
    quiet = capsys.readouterr()
    assert " done" not in quiet.err
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        patch.setenv("TERM", "xterm")
        assert main(line) == 0
    assert capsys.readouterr().out == quiet.out
    assert " % done" in terminal.getvalue()


def test_functions_tell_who_asks() -> None:
    told: list[tuple[str, int, int]] = []
    perfmodel.plan("hotline-rm1", "dgx-a100-80gb", begin=lambda *each: told.append(each))
    assert told[0] == ("searching", 0, 0)
    done = [done for _, done, total in told if total]
    assert done == sorted(done)
    assert all(done < total for _, done, total in told if total)
