"""The command line in process, and a trace to give it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from cli.samples import document, write

from perfmodel.cli import main


class Ran(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("predict", path, ...)`: exit status, standard output and standard error."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run_main(*arguments: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Ran(status, *capsys.readouterr())

    return run_main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three steps on one GPU."""
    return write(tmp_path / "trace.json.gz", document())
