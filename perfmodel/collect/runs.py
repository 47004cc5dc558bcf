"""A run of a verb: on one or several ranks, with its time, its table and its record."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from perfmodel.base.files import write_text
from perfmodel.collect.arguments import restore_command, say
from perfmodel.collect.backend import Backend, describe_machine, gpu_state, open_backend
from perfmodel.collect.models import Ranks
from perfmodel.collect.timing import write_table
from perfmodel.errors import PerfmodelError, UsageError

JOIN_TIMEOUT_S = 300
LOOPBACK = Path("/sys/class/net/lo")


def stem_of(folder: Path, name: str) -> Path:
    """What the names of a run's files begin with; `UsageError` where `folder` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {folder}: cannot be written; name another folder")
    return folder / name


class Run:
    """What every verb has: its time, what it skipped, its files."""

    def __init__(self, verb: str, arguments: argparse.Namespace, backend: Backend) -> None:
        self.backend, self._began_s = backend, time.monotonic()
        self.end_s: float = self._began_s + 60 * arguments.minutes
        self.skipped: dict[str, Any] = {}
        self.stem = stem_of(arguments.output, arguments.name)
        self._head = {
            "schema": f"perfmodel.collect.{verb}/1",
            "command": restore_command(verb, arguments),
            "machine": describe_machine(backend),
        }

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.end_s

    def path(self, ending: str) -> Path:
        """The file of this run with that ending."""
        return self.stem.with_name(self.stem.name + ending)

    def write(
        self,
        columns: Sequence[str],
        rows: Sequence[dict[str, Any]],
        said: str,
        ending: str = ".csv",
        **about: Any,
    ) -> None:
        """Write the table and the record beside it, and say so."""
        write_table(self.path(ending), columns, rows)
        meanwhile = {
            "rows": len(rows),
            "skipped": self.skipped,
            "gpu_state_at_end": gpu_state(self.backend),
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }
        record = {**self._head, **about, **meanwhile}
        write_text(self.path("_meta.json"), json.dumps(record, indent=1) + "\n")
        skipped = [f"{name}: {why}" for name, why in self.skipped.items()]
        more = f"; {len(skipped)} could not be measured ({skipped[0]})" if skipped else ""
        say(f"wrote {self.path(ending)}: {len(rows):,} {said}{more}")


Worker = Callable[[Backend, Ranks, argparse.Namespace], None]


def run_ranks(world: int, device: str, worker: Worker, arguments: argparse.Namespace) -> None:
    """Call `worker(backend, ranks, arguments)` on each of `world` ranks and wait for them.

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
        worker(backend, Ranks(), arguments)
        return
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or world) // world)
    with tempfile.TemporaryDirectory() as folder:
        given = (backend.kind, threads, Path(folder) / "store", worker, arguments)
        processes = [
            context.Process(target=_run_rank, args=(Ranks(rank, world), *given))
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
        listed = ", ".join(map(str, failed))
        raise PerfmodelError(f"rank {listed} of {world} failed: see its message above")


def _run_rank(
    ranks: Ranks,
    kind: str,
    threads: int,
    store: Path,
    worker: Worker,
    arguments: argparse.Namespace,
) -> None:
    """One rank in a process of its own; the group meets in the file `store`, without a port."""
    index = ranks.rank if kind == "cuda" else 0
    backend = open_backend(kind, threads=threads, index=index)
    if not backend.is_gpu and LOOPBACK.exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    backend.torch.distributed.init_process_group(
        "nccl" if backend.is_gpu else "gloo",
        init_method=store.as_uri(),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=JOIN_TIMEOUT_S),
    )
    try:
        worker(backend, ranks, arguments)
    except PerfmodelError as error:
        raise SystemExit(f"perfmodel: rank {ranks.rank}: {error}") from None
    finally:
        backend.torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of Gloo that outlive the group now and then abort an orderly exit
