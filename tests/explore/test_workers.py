"""Sweeps on Dask's workers: the same rows, also where workers die."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from explore.conftest import MakeSpec

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore import sweep
from perfmodel.explore.run import _patiently

pytest.importorskip("distributed", reason="Dask is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
MANY = "device.hbm_gb_per_s = { low = 600, high = 2400, steps = 300 }"


def _children() -> set[int]:
    """Processes below this one whose command line is a Dask worker's."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if int(stat[1]) == os.getpid() and b"spawn_main" in line:
            found.add(int(entry.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_worker_that_dies_costs_no_row(spec: MakeSpec, tmp_path: Path) -> None:
    wanted = spec("chunk = 2", MANY)
    whole = sweep(wanted, tmp_path / "whole").frame
    killed: list[int] = []

    def kill() -> None:
        while not list((tmp_path / "spread").glob("part-*.parquet")):
            time.sleep(0.01)
        victim = min(_children())
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    threading.Thread(target=kill, daemon=True).start()
    found = sweep(wanted, tmp_path / "spread", workers=2).frame
    assert killed
    pd.testing.assert_frame_equal(found, whole)


def test_a_scheduler_that_does_not_answer(
    spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.explore.run._PATIENCE_S", 0.2)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9: no scheduler answers") as error:
        sweep(spec(), tmp_path / "results", scheduler="tcp://127.0.0.1:9")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no scheduler answers"):
        sweep(spec(), tmp_path / "results", scheduler="nonsense")


@pytest.mark.parametrize(
    "says",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, b"\xff" * 64],
    ids=["nothing", "http", "noise"],
)
def test_what_takes_the_connection_and_is_no_scheduler(
    spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """A silent one held the folder of the sweep for ever; another was `not enough memory`."""
    monkeypatch.setattr("perfmodel.explore.run._PATIENCE_S", 0.3)
    taken: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                taken.append(server.accept()[0])
                taken[-1].sendall(says)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"no scheduler answers: .") as error:
            sweep(spec(), tmp_path / "results", scheduler=address)
    assert "\n" not in str(error.value)
    assert taken
    for each in taken:
        each.close()


def test_a_scheduler_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long work is waited for while the scheduler answers, and no longer."""
    monkeypatch.setattr("perfmodel.explore.run._PATIENCE_S", 0.01)
    answers = ["here", "here", None]
    asked = []

    def sync(ask: object, callback_timeout: float) -> str:
        answer = answers.pop(0)
        if answer is None:
            raise TimeoutError
        return answer

    def work() -> None:
        asked.append(1)
        raise TimeoutError

    client = SimpleNamespace(sync=sync, scheduler=SimpleNamespace(address="tcp://h:1", identity=1))
    with pytest.raises(PerfmodelError, match="tcp://h:1: the scheduler does not answer any more"):
        _patiently(client, work)
    assert len(asked) == 3


@pytest.mark.slow
def test_a_scheduler_that_ends_costs_no_row(
    spec: MakeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfmodel.explore.run._PATIENCE_S", 2)
    distributed = pytest.importorskip("distributed")
    wanted, folder = spec("chunk = 2", MANY), tmp_path / "spread"
    own = distributed.LocalCluster(processes=False, n_workers=1, dashboard_address=None)

    def end() -> None:
        while not list(folder.glob("part-*.parquet")):
            time.sleep(0.01)
        own.sync(own.scheduler.close)

    threading.Thread(target=end, daemon=True).start()
    with pytest.raises(PerfmodelError, match="does not answer any more"):
        sweep(wanted, folder, scheduler=own.scheduler_address)
    with suppress(TimeoutError):
        own.close(timeout=0.1)
    own.status = distributed.core.Status.closed  # its scheduler is: nothing is left to complain of
    found = sweep(wanted, folder).frame
    pd.testing.assert_frame_equal(found, sweep(wanted, tmp_path / "whole").frame)
