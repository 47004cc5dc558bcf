"""Run a function on one or several ranks of this machine, in processes that find each other."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend, open_backend
from perfmodel.collect.models import Ranks
from perfmodel.errors import PerfmodelError, UsageError

Worker = Callable[..., None]
TIMEOUT_S = 300


def run_ranks(world: int, device: str, worker: Worker, arguments: Sequence[Any]) -> None:
    """Call `worker(backend, ranks, *arguments)` on each of `world` ranks and wait for them.

    One rank runs in this process. Several run in fresh processes over NCCL with a GPU each, or
    over Gloo on the loopback interface with the CPU's threads shared out. Raises
    `PerfmodelError` when a rank fails, `UsageError` when there are fewer GPUs than ranks.
    """
    backend = open_backend(device)
    if backend.is_gpu and backend.torch.cuda.device_count() < world:
        count = backend.torch.cuda.device_count()
        raise UsageError(f"--ranks {world}: only {count} GPU(s) here, one is needed per rank")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        if world == 1:
            _join(backend, Ranks(0, 1), store)
            try:
                worker(backend, Ranks(0, 1), *arguments)
            finally:
                backend.torch.distributed.destroy_process_group()
            return
        _spawn(world, backend.kind, store, worker, arguments)


def _spawn(world: int, kind: str, store: Path, worker: Worker, arguments: Sequence[Any]) -> None:
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or world) // world)
    processes = [
        context.Process(
            target=_run_rank, args=(kind, threads, Ranks(rank, world), store, worker, arguments)
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.terminate()
        raise
    failed = [rank for rank, process in enumerate(processes) if process.exitcode]
    if failed:
        ranks = ", ".join(map(str, failed))
        raise PerfmodelError(f"rank {ranks} of {world} failed: see its message above")


def _run_rank(
    kind: str, threads: int, ranks: Ranks, store: Path, worker: Worker, arguments: Sequence[Any]
) -> None:
    index = ranks.rank if kind == "cuda" else 0
    backend = open_backend(kind, threads=threads, index=index)
    _join(backend, ranks, store)
    try:
        worker(backend, ranks, *arguments)
    except PerfmodelError as error:
        raise SystemExit(f"error: rank {ranks.rank}: {error}") from None
    finally:
        backend.torch.distributed.destroy_process_group()


def _join(backend: Backend, ranks: Ranks, store: Path) -> None:
    """Enter the process group through a file: no port to choose, no host name to resolve."""
    if not backend.is_gpu and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend.torch.distributed.init_process_group(
        "nccl" if backend.is_gpu else "gloo",
        init_method=store.as_uri(),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
