"""What goes wrong while measuring: a full disk, an interruption, a kill, no memory, no PyTorch."""

import csv
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import perfmodel

ROOT = Path(perfmodel.__file__).parents[1]
WAIT_S = 120
TINY_FILE_BYTES = 400
TINY = {
    "name": "tiny", "tables": 2, "rows": 50, "dim": 4, "pooling": 2, "batch": 8,
    "bottom": [4, 4], "top": [1],
}  # fmt: skip


PLAIN = ("-W", "ignore", "-m", "perfmodel.collect")


def started(
    folder: Path,
    *words: str,
    before: Callable[[], None] | None = None,
    program: tuple[str, ...] = PLAIN,
) -> subprocess.Popen[str]:
    """The collector, in a process that hears SIGINT even if the tests run in the background."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if before:
            before()

    return subprocess.Popen(
        [sys.executable, *program, *words, "-o", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        start_new_session=True,
    )


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and standard error of a command, once it has ended."""
    _, error = running.communicate(timeout=WAIT_S)
    return running.returncode, error


def small_disk(size_bytes: int) -> None:
    """Let no file grow beyond `size_bytes`, as a disk that fills would."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@pytest.fixture
def needs_torch() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")


KERNELS = (
    *("kernels", "--families", "copies,elementwise", "--device", "cpu"),
    *("--cache", "warm"),  # emptying a large cache before every call takes a second
    *("--minutes", "2"),
)


@pytest.mark.usefixtures("needs_torch")
@pytest.mark.parametrize("verb", ["steps", "kernels"])
def test_a_disk_that_fills_leaves_whole_files_or_none(verb: str, tmp_path: Path) -> None:
    chosen = ("--families", "copies") if verb == "kernels" else ("--configurations", "1")
    words = (verb, *chosen, "--minutes", "0.05", "--device", "cpu", "--name", "t")
    full = partial(small_disk, TINY_FILE_BYTES)
    status, error = ended(started(tmp_path, *words, before=full))
    assert status == 2
    assert "cannot be written: File too large" in error
    assert "Traceback" not in error
    assert not list(tmp_path.glob(".*.tmp"))
    for path in tmp_path.glob("t*"):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".gz":
            gzip.decompress(path.read_bytes())


SAYS_WHEN = """
import pathlib, sys
from perfmodel.collect import __main__, kernels
take = kernels.Bench._take
def told(self, jobs):
    take(self, jobs)
    pathlib.Path("{}").touch()
kernels.Bench._take = told
sys.exit(__main__.main(sys.argv[1:]))
"""
"""The collector, which leaves a file behind its first rows."""


@pytest.mark.usefixtures("needs_torch")
def test_a_process_that_is_told_to_end_keeps_what_was_measured(tmp_path: Path) -> None:
    first = tmp_path / "first"
    program = ("-W", "ignore", "-c", SAYS_WHEN.format(first))
    running = started(tmp_path, *KERNELS, program=program)
    until = time.monotonic() + WAIT_S
    while not first.exists() and running.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGTERM)
    status, error = ended(running)
    assert status == 130
    assert error.endswith("interrupted: what was measured is kept\n")
    record = json.loads((tmp_path / "kernels_meta.json").read_text())
    rows = list(csv.DictReader((tmp_path / "kernels.csv").read_text().splitlines()))
    assert record["rows"] == len(rows) >= 2
    assert all(float(row["duration_us"]) > 0 for row in rows)
