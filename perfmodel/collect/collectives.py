"""`collect collectives`: what collectives cost over ranks of this machine, NCCL or Gloo."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from perfmodel.base.units import US_PER_MS
from perfmodel.collect.arguments import Verb, add_common, count
from perfmodel.collect.backend import Backend, device_name
from perfmodel.collect.families import log_points, round_robin
from perfmodel.collect.models import Ranks
from perfmodel.collect.runs import Run, broadcast_from_first, run_ranks
from perfmodel.collect.timing import COLUMNS, loop_us, summarize
from perfmodel.errors import UsageError

DTYPE, BYTES = "fp32", 4
MAX_BYTES = {"cpu": 64_000_000, "cuda": 1_000_000_000}
POINTS = 60
ROUNDS = 6
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
    add_common(parser, "collectives", 1.0)
    parser.add_argument("--ranks", type=count, default=2, help="processes (default 2)")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up."""
    if arguments.ranks < 2:
        raise UsageError("--ranks: a collective needs at least 2")
    run_ranks(arguments.ranks, arguments.device, _measure, arguments)


VERB = Verb("time collectives over several ranks of this machine", add_arguments, run)


def collective_cases(kind: str, world: int) -> Iterator[tuple[str, int]]:
    """Collectives in turns, each with the values that a rank hands in, a multiple of `world`."""
    largest = MAX_BYTES[kind] // BYTES // world
    sizes = [point["elements"] for point in islice(log_points({"elements": (1, largest)}), POINTS)]
    sizes = [max(1, round(size / world)) * world for size in sizes]
    listed = {op: [(op, size) for size in sizes] for op in OPS}
    listed["barrier"] = [("barrier", world)]
    return round_robin(listed.values())


def _measure(backend: Backend, ranks: Ranks, arguments: argparse.Namespace) -> None:
    """All ranks run the same calls; rank 0 decides, and writes the table."""
    current, rows = Run("collectives", arguments, backend), []
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
        for op, elements in collective_cases(backend.kind, ranks.world):
            if op not in current.skipped and (figures := _timed(current, ranks, op, elements)):
                rows.append({**base, "op": op, "elements": elements, **figures})
            if broadcast_from_first(backend, ranks, current.is_over):
                break
    finally:
        if ranks.rank == 0:
            current.write(COLUMNS, rows, "collectives", threads_per_rank=backend.threads)


def _timed(current: Run, ranks: Ranks, op: str, elements: int) -> dict[str, Any]:
    """Figures of a call, of which a sample is the mean of a loop, and that over the ranks; none,
    and a note, where this library does not offer it."""
    backend, torch = current.backend, current.backend.torch
    distributed = torch.distributed
    values = torch.ones(elements, device=backend.device)
    room = torch.empty(elements * ranks.world, device=backend.device)
    call = calls_of(distributed, values, room, ranks.world)[op]

    def together_us(repeats: int) -> float:
        distributed.barrier()
        return loop_us(backend, call, repeats)[1]

    try:
        call()
        backend.synchronize()
    except (RuntimeError, NotImplementedError) as error:
        current.skipped[op] = str(error).strip().split("\n")[0][:160]
        return {}
    fitting = int(ROUND_US / max(together_us(2), 1.0))
    repeats = broadcast_from_first(backend, ranks, min(max(fitting, 2), MAX_CALLS))
    samples = [together_us(repeats) for _ in range(ROUNDS)]
    summed = torch.tensor(samples, dtype=torch.float64, device=backend.device)
    distributed.all_reduce(summed)
    figures = summarize((summed / ranks.world).tolist())
    figures["duration_us"] = figures.pop("p10_us")
    return figures | {"repeats": repeats * ROUNDS}
