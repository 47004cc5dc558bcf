"""A run of a verb: on one or several ranks, with its time and its record; `collect reference`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from perfmodel.base.units import human_us
from perfmodel.collect.arguments import Verb, add_common, output_folder, restore_command, wrote
from perfmodel.collect.backend import Backend, describe_machine, gpu_state, open_backend
from perfmodel.collect.models import Ranks
from perfmodel.collect.timing import PARTS, Reference, reference_record, write_record
from perfmodel.errors import PerfmodelError, UsageError

JOIN_TIMEOUT_S = 300
LOOPBACK = Path("/sys/class/net/lo")


def open_run(
    verb: str, arguments: argparse.Namespace, words: Sequence[str] = (), threads: int | None = None
) -> tuple[Run, Path]:
    """A run on one rank, and the stem of its files; `words` end its command."""
    backend = open_backend(arguments.device, threads=threads)
    stem = output_folder(arguments.output) / arguments.name
    command = " ".join([restore_command(verb, arguments), *map(shlex.quote, words)])
    return Run(verb, command, backend, arguments.minutes), stem


class Run:
    """What every verb has: its time, the reference work beside it, what it skipped, its record."""

    def __init__(self, verb: str, command: str, backend: Backend, limit_minutes: float) -> None:
        self.backend, self.end_s = backend, time.monotonic() + 60 * limit_minutes
        self.readings_us: list[list[float]] = []
        self.skipped: dict[str, Any] = {}
        self._reference = Reference(backend)
        self._began_s = time.monotonic()
        schema = f"perfmodel.collect.{verb}/1"
        self._head = {"schema": schema, "command": command, "machine": describe_machine(backend)}

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.end_s

    def read_reference(self, *, evict: bool = False) -> list[float]:
        """What each part of the reference work takes now, microseconds; kept for the record.

        With `evict`, after its memory was read, as a step in between would empty the caches.
        """
        if evict:
            self._reference.evict()
        self.readings_us.append(self._reference.read_us())
        return self.readings_us[-1]

    def write(self, path: Path, **about: Any) -> None:
        """Write the record: what was run where, what it did, and how the machine was meanwhile."""
        meanwhile = {
            "skipped": self.skipped,
            "reference": reference_record(self.readings_us),
            "gpu_state_at_end": gpu_state(self.backend),
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }
        write_record(path, {**self._head, **about, **meanwhile})


def run_ranks(
    world: int, device: str, worker: Callable[..., None], arguments: Sequence[Any]
) -> None:
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
    worker: Callable[..., None],
    arguments: Sequence[Any],
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
        worker(backend, ranks, *arguments)
    except PerfmodelError as error:
        raise SystemExit(f"perfmodel: rank {ranks.rank}: {error}") from None
    finally:
        leave_group(backend)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of Gloo that outlive the group now and then abort an orderly exit


def leave_group(backend: Backend) -> None:
    """Leave the process group, where there is one."""
    distributed = backend.torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def broadcast_from_first(backend: Backend, ranks: Ranks, value: int) -> int:
    """Rank 0's `value` on every rank."""
    if ranks.world == 1:
        return value
    shared = backend.torch.tensor([int(value)], device=backend.device)
    backend.torch.distributed.broadcast(shared, 0)
    return int(shared.item())


def run_reference(arguments: argparse.Namespace) -> None:
    """Read the reference work until the time is used up, and write one JSON record."""
    current, stem = open_run("reference", arguments)
    while not current.readings_us or not current.is_over:
        current.read_reference(evict=True)
    path = stem.with_name(f"{stem.name}.json")
    current.write(path)
    record = reference_record(current.readings_us)
    parts = (f"{part} {human_us(record[part]['p10_us'])}" for part in PARTS)
    wrote(path, f"{', '.join(parts)}, {len(current.readings_us)} readings")


REFERENCE_VERB = Verb(
    "time the reference work alone: has this machine changed its speed since a calibration?",
    partial(add_common, name="reference", usual_minutes=0.2),
    run_reference,
)
