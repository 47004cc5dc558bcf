"""`collect kernels`: interleaved microbenchmarks of kernel families, row by row into a table."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.collect.backend import device_name, open_backend
from perfmodel.collect.families import FAMILIES, Case, Prepared, informative_order, scope_of
from perfmodel.collect.runs import Run, add_common, listed
from perfmodel.collect.timing import CACHES, COLUMNS, Sample, Stopwatch, call_us, summarize

BLOCK_CASES = 8
BLOCK_MEMORY_SHARE = 2.0
ROUNDS = 4
MIN_PER_ROUND, MAX_PER_ROUND = 2, 10
"""The cases of a block are timed in turns, so that what disturbs the machine meets all of them: so
many, in so many times the memory of the largest case."""
TARGET_US = {"cpu": 60_000.0, "cuda": 40_000.0}
"""Time per row: as many repeats as fit, within the limits above."""
WARM_UP_CALLS = 2
REASON_LENGTH = 160
ALL = "all"


@dataclass
class _Job:
    """A row in the making."""

    row: dict[str, Any]
    run: Callable[[], Any]
    before: Callable[[], Any]
    per_round: int = MAX_PER_ROUND
    taken: list[Sample] = field(default_factory=list)

    def finished(self) -> dict[str, Any]:
        durations_us, hosts_us = zip(*self.taken, strict=True)
        summary, host_us = summarize(durations_us), float(np.median(hosts_us))
        times = {"duration_us": summary.pop("p10_us"), **summary, "host_us": round(host_us, 3)}
        return {**self.row, **times, "repeats": len(self.taken)}


class Bench:
    """Measures cases into `rows` until the time is over; `run.skipped` says what it could not."""

    def __init__(self, run: Run, caches: tuple[str, ...]) -> None:
        self.run, self.backend, self.caches = run, run.backend, caches
        self.stopwatch = Stopwatch(run.backend)
        self.device = device_name(run.backend)
        self.rows: list[dict[str, Any]] = []

    def measure(self, cases: Iterable[tuple[str, Case]], memory_bytes: float) -> None:
        """Time `cases` (each with its family) in blocks of at most `memory_bytes`."""
        block: list[_Job] = []
        held_bytes, tried = 0.0, False
        try:
            for family, case in cases:
                if tried and self.run.is_over:
                    break
                is_full = len(block) >= BLOCK_CASES * len(self.caches)
                if block and (is_full or held_bytes + case.size_bytes > memory_bytes):
                    full, block, held_bytes = block, [], 0.0
                    self._take(full)
                block += self._prepare(family, case)
                held_bytes += case.size_bytes
                tried = True
        finally:
            self._take(block)

    def measure_floors(self) -> None:
        """Rows for what timing itself costs: no call at all, and the smallest call there is."""
        one = self.backend.torch.ones(1, device=self.backend.device)
        floors: dict[str, Callable[[], Any]] = {
            "clock_floor": lambda: None,
            "launch_floor": lambda: one.add_(1.0),
        }
        cases = [(Case(op, "fp32", {"elements": 1}), Prepared(run)) for op, run in floors.items()]
        self._take([self._job(*each, cache) for each in cases for cache in self.caches])

    def _prepare(self, family: str, case: Case) -> list[_Job]:
        """The rows of `case`, warmed up; none, and a note, when this machine cannot do it."""
        try:
            prepared = FAMILIES[family].prepare(self.backend, case)
            for _ in range(WARM_UP_CALLS):
                prepared.run()
            self.backend.synchronize()
            return [self._job(case, prepared, cache) for cache in self.caches]
        except (RuntimeError, MemoryError, TypeError, NotImplementedError, ValueError) as error:
            exhausted = self.backend.out_of_memory(error)
            if exhausted and self.backend.is_gpu:
                self.backend.torch.cuda.empty_cache()
            reason = "out of memory" if exhausted else str(error).strip().split("\n")[0]
            note = f"{'/'.join(filter(None, case.group))}: {reason[:REASON_LENGTH]}"
            self.run.skipped[note] = self.run.skipped.get(note, 0) + 1
            return []

    def _job(self, case: Case, prepared: Prepared, cache: str) -> _Job:
        """With as many repeats per round as fit into the target, from the cost of one."""
        run, before = prepared.run, self.stopwatch.before(prepared.run, cache)
        cost_us = call_us(lambda: self.stopwatch.samples(run, 1, before))
        fitting = int(TARGET_US[self.backend.kind] / ROUNDS / max(cost_us, 1.0))
        row = {
            "op": case.op,
            "device": self.device,
            "dtype": case.dtype,
            "direction": case.direction,
            "timing": self.stopwatch.timing,
            "cache": cache,
            "variant": case.variant,
            **case.dims,
            **prepared.facts,
        }
        return _Job(row, run, before, min(max(fitting, MIN_PER_ROUND), MAX_PER_ROUND))

    def _take(self, jobs: list[_Job]) -> None:
        """Take the repeats of `jobs` in turns; an interruption keeps what has been taken."""
        try:
            for number in range(ROUNDS):
                if number and self.run.is_over:
                    break
                for job in jobs:
                    job.taken += self.stopwatch.samples(job.run, job.per_round, job.before)
        finally:
            self.rows += [job.finished() for job in jobs if job.taken]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "kernels", 10.0)
    parser.add_argument(
        "--families",
        default=ALL,
        help=f"comma-separated, of {', '.join(FAMILIES)} (default: {ALL})",
    )
    parser.add_argument("--dtypes", help="comma-separated, of those that the machine has")
    parser.add_argument("--cache", choices=(*CACHES, "both"), default="both")


def run(arguments: argparse.Namespace) -> None:
    asked = "" if arguments.families == ALL else arguments.families
    families = listed("--families", asked, list(FAMILIES))
    backend = open_backend(arguments.device)
    scope = scope_of(backend)
    if arguments.dtypes:
        scope = replace(scope, dtypes=tuple(listed("--dtypes", arguments.dtypes, scope.dtypes)))
    cases = informative_order({name: list(FAMILIES[name].cases(scope)) for name in families})
    caches = CACHES if arguments.cache == "both" else (arguments.cache,)
    current = Run("kernels", arguments, backend)
    bench = Bench(current, caches)
    try:
        bench.measure_floors()
        bench.measure(cases, scope.max_bytes * BLOCK_MEMORY_SHARE)
    finally:
        current.write(COLUMNS, bench.rows, "kernels", cases_planned=len(cases))
