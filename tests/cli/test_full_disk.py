"""A full disk is one line that names the file; what stood there stays."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run

MIN_BYTES = 64


@pytest.fixture
def _full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes through a temporary file finds no space after a few bytes."""
    opened = os.fdopen

    class Full:
        def __init__(self, handle: int, *arguments: Any) -> None:
            self.file = opened(handle, *arguments)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, content: bytes) -> int:
            self.file.write(content[:MIN_BYTES])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    monkeypatch.setattr(os, "fdopen", Full)


@pytest.mark.usefixtures("_full")
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("predict", "{trace}", "-o"), "out.json"),
        (("predict", "{trace}", "--figure"), "steps.svg"),
        (("breakdown", "{trace}", "-o"), "out.csv"),
        (("export", "{trace}", "-o"), "trace.json"),
        (("report", "{trace}", "-o"), "page.html"),
        (("fit", "overheads", "{trace}", "-o"), "profile.json"),
    ],
)
def test_a_full_disk_is_one_line(
    run: Run, trace: Path, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    out = tmp_path / "out" / name
    out.parent.mkdir()
    out.write_text("old")
    ran = run(*(word.replace("{trace}", str(trace)) for word in words), out)
    assert ran.status == 2
    assert "No space left on device" in ran.err
    assert str(out) in ran.err
    assert ran.err.count("\n") == 1
    assert out.read_text() == "old"
    assert [each.name for each in out.parent.iterdir()] == [name]
