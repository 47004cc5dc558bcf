"""`collect collectives`: what collectives cost over ranks of this machine, NCCL or Gloo."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
    wrote,
)
from perfmodel.collect.backend import Backend, device_name, record_head
from perfmodel.collect.families import log_points, round_robin
from perfmodel.collect.models import Ranks
from perfmodel.collect.ranks import broadcast_from_first, run_ranks
from perfmodel.collect.records import Table, write_record
from perfmodel.collect.reference import Reference, reference_columns
from perfmodel.collect.timing import Budget, summarize
from perfmodel.errors import UsageError
from perfmodel.units import NS_PER_US, US_PER_MS

HELP = "time collectives over several ranks of this machine"
SCHEMA = "perfmodel.collect.collectives/1"
DTYPE, BYTES = "fp32", 4
MAX_BYTES = {"cpu": 64_000_000, "cuda": 1_000_000_000}
POINTS = 60
BLOCK, ROUNDS = 6, 6
ROUND_US, MAX_CALLS = 15.0 * US_PER_MS, 50

Call = Callable[[], Any]


def calls_of(distributed: Any, values: Any, room: Any, world: int) -> dict[str, Call]:
    """Per collective, what calls it on `values`, which each rank hands in, with `room` for the
    result."""
    count, parts = len(values), list(room.chunk(world))
    renamed = getattr(distributed, "reduce_scatter_single", None)
    scatter = renamed or distributed.reduce_scatter_tensor
    same, scattered = room[:count], room[: count // world]
    return {
        "all_reduce": lambda: distributed.all_reduce(values),
        "all_to_all": lambda: distributed.all_to_all_single(same, values),
        "all_gather": lambda: distributed.all_gather(parts, values),
        "reduce_scatter": lambda: scatter(scattered, values),
        "broadcast": lambda: distributed.broadcast(values, 0),
        "barrier": lambda: distributed.barrier(),
    }


OPS = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast", "barrier")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect collectives`."""
    add_device(parser)
    parser.add_argument("--ranks", type=count, default=2, help="processes (default 2)")
    parser.add_argument("--minutes", type=minutes, default=1.0, help="time to spend (default 1)")
    parser.add_argument("--name", default="collectives", help="stem of the CSV; resumed")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up; rows already in the CSV are not measured again."""
    if arguments.ranks < 2:
        raise UsageError("--ranks: a collective needs at least 2")
    path = output_folder(arguments.output) / f"{arguments.name}.csv"
    command = restore_command("collectives", arguments)
    run_ranks(arguments.ranks, arguments.device, _measure, (path, arguments.minutes, command))


def collective_cases(kind: str, world: int) -> Iterator[tuple[str, int]]:
    """Collectives in turns, each with the values that a rank hands in, a multiple of `world`."""
    largest = MAX_BYTES[kind] // BYTES // world
    sizes = [point["elements"] for point in islice(log_points({"elements": (1, largest)}), POINTS)]
    sizes = [max(1, round(size / world)) * world for size in sizes]
    listed = {op: [(op, size) for size in sizes] for op in OPS}
    listed["barrier"] = [("barrier", world)]
    return round_robin(listed.values())


def _measure(
    backend: Backend, ranks: Ranks, path: Path, limit_minutes: float, command: str
) -> None:
    """All ranks run the same calls; rank 0 decides, and keeps the table."""
    budget = Budget(limit_minutes)
    table = Table(path) if ranks.rank == 0 else None
    reference = Reference(backend)
    skipped: dict[str, str] = {}
    base = {
        "device": device_name(backend),
        "dtype": DTYPE,
        "direction": "fwd",
        "timing": "host_loop_mean",
        "cache": "warm",
        "ranks": ranks.world,
        "library": "nccl" if backend.is_gpu else "gloo",
    }
    try:
        block: list[tuple[dict[str, Any], Call]] = []
        for op, elements in collective_cases(backend.kind, ranks.world):
            row = {**base, "op": op, "elements": elements}
            known = table is not None and row in table
            if op in skipped or broadcast_from_first(backend, ranks, known):
                continue
            call = _prepared(backend, ranks, op, elements, skipped)
            block += [(row, call)] if call is not None else []
            if len(block) == BLOCK:
                _run_block(backend, ranks, block, table, reference)
                block = []
                if broadcast_from_first(backend, ranks, budget.is_over):
                    return
        _run_block(backend, ranks, block, table, reference)
    finally:
        if table is not None:
            about = {"threads_per_rank": backend.threads, "rows": len(table), "skipped": skipped}
            record = record_head(SCHEMA, command, backend) | about
            write_record(path.with_name(f"{path.stem}_meta.json"), record)
            wrote(path, f"{len(table):,} rows")


def _prepared(
    backend: Backend, ranks: Ranks, op: str, elements: int, skipped: dict[str, str]
) -> Call | None:
    """The call, warmed up; `None`, and a note, where this library does not offer it."""
    torch = backend.torch
    values = torch.ones(elements, device=backend.device)
    room = torch.empty(elements * ranks.world, device=backend.device)
    call = calls_of(torch.distributed, values, room, ranks.world)[op]
    try:
        call()
        backend.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        skipped[op] = str(error).strip().split("\n")[0][:160]
        return None
    return call


def _run_block(
    backend: Backend,
    ranks: Ranks,
    block: list[tuple[dict[str, Any], Call]],
    table: Table | None,
    reference: Reference,
) -> None:
    """Rounds over the calls of `block`; a sample is the mean of a loop, and that over the ranks."""
    if not block:
        return
    calls = []
    for _, call in block:
        fitting = int(ROUND_US / max(_loop_us(backend, call, 2), 1.0))
        calls.append(broadcast_from_first(backend, ranks, min(max(fitting, 2), MAX_CALLS)))
    samples: list[list[float]] = [[] for _ in block]
    readings_us = []
    for _ in range(ROUNDS):
        readings_us.append(reference.read_us())
        for (_, call), repeats, taken_us in zip(block, calls, samples, strict=True):
            taken_us.append(_loop_us(backend, call, repeats))
    means = backend.torch.tensor(samples, dtype=backend.torch.float64, device=backend.device)
    backend.torch.distributed.all_reduce(means)
    if table is not None:
        rows = []
        for (row, _), repeats, summed in zip(block, calls, means.tolist(), strict=True):
            figures = summarize([value / ranks.world for value in summed])
            figures["duration_us"] = figures.pop("p10_us")
            rows.append(row | figures | {"repeats": repeats * ROUNDS})
        reference_us = reference_columns(readings_us)
        table.add(row | reference_us for row in rows)


def _loop_us(backend: Backend, call: Call, repeats: int) -> float:
    """Microseconds per call of a loop that all ranks enter together."""
    backend.torch.distributed.barrier()
    backend.synchronize()
    before_ns = time.perf_counter_ns()
    for _ in range(repeats):
        call()
    backend.synchronize()
    return (time.perf_counter_ns() - before_ns) / NS_PER_US / repeats
