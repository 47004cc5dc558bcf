"""Sweeps on Dask's workers: the same rows, also where workers die."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from explore.conftest import MakeSpec

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore import sweep

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
    monkeypatch.setattr("perfmodel.explore.run._CONNECT_S", 0.2)
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9: no scheduler answers") as error:
        sweep(spec(), tmp_path / "results", scheduler="tcp://127.0.0.1:9")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no scheduler answers"):
        sweep(spec(), tmp_path / "results", scheduler="nonsense")


@pytest.mark.slow
def test_a_scheduler_that_ends_costs_no_row(spec: MakeSpec, tmp_path: Path) -> None:
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
