"""`perfmodel fit`."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Run
from tiny import Tiny

from perfmodel.lowering.host import load_profile


def _write(path: Path) -> Path:
    """Two operators, 4 us apart."""
    tiny = Tiny()
    tiny.step(1, 0, 200)
    tiny.op("aten::mm", 10, 30)
    tiny.op("aten::mm", 34, 54)
    path.write_bytes(tiny.content())
    return path


def test_the_verb_writes_a_profile(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.json"
    ran = run("fit", "overheads", _write(tmp_path / "one.json"), "-o", target)
    assert ran.status == 0
    assert "Python, between ops (T1) 4.0 us (n 1)" in ran.out
    assert load_profile(target).lookup("T1") == 4


def test_the_input_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    path = _write(tmp_path / "one.json")
    ran = run("fit", "overheads", path, "-o", path)
    assert ran.status == 2
    assert "is the input" in ran.err
