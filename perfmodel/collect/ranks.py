"""Run a function on one or several ranks of this machine, in processes that find each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend, open_backend
from perfmodel.collect.models import Ranks
from perfmodel.errors import PerfmodelError, UsageError

JOIN_TIMEOUT_S = 300
LOOPBACK = Path("/sys/class/net/lo")


def join_group(backend: Backend, ranks: Ranks, store: Path) -> None:
    """Enter the group of `ranks` through the file `store`: no port or host name is needed."""
    if not backend.is_gpu and LOOPBACK.exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    backend.torch.distributed.init_process_group(
        "nccl" if backend.is_gpu else "gloo",
        init_method=store.as_uri(),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=JOIN_TIMEOUT_S),
    )


def leave_group(backend: Backend) -> None:
    """Leave the process group, where there is one."""
    distributed = backend.torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


Worker = Callable[..., None]


def run_ranks(world: int, device: str, worker: Worker, arguments: Sequence[Any]) -> None:
    """Call `worker(backend, ranks, *arguments)` on each of `world` ranks and wait for them.

    One rank runs in this process, without a process group of its own. Several run in fresh
    processes, over NCCL with a GPU each, or over Gloo on the loopback interface with the CPU's
    threads shared out. Raises `PerfmodelError` when a rank fails, `UsageError` when there are
    fewer GPUs than ranks.
    """
    backend = open_backend(device)
    if backend.is_gpu and backend.torch.cuda.device_count() < world:
        count = backend.torch.cuda.device_count()
        raise UsageError(f"--ranks {world}: only {count} GPU(s) here, one is needed per rank")
    if world == 1:
        try:
            worker(backend, Ranks(), *arguments)
        finally:
            leave_group(backend)
        return
    with tempfile.TemporaryDirectory() as folder:
        _spawn(world, backend.kind, Path(folder) / "store", worker, arguments)


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
    join_group(backend, ranks, store)
    try:
        worker(backend, ranks, *arguments)
    except PerfmodelError as error:
        raise SystemExit(f"perfmodel: rank {ranks.rank}: {error}") from None
    finally:
        leave_group(backend)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of Gloo that outlive the group now and then abort an orderly exit


def broadcast_from_first(backend: Backend, ranks: Ranks, value: int) -> int:
    """Rank 0's `value` on every rank."""
    if ranks.world == 1:
        return value
    shared = backend.torch.tensor([int(value)], device=backend.device)
    backend.torch.distributed.broadcast(shared, 0)
    return int(shared.item())
