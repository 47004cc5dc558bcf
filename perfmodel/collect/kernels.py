"""`collect kernels`: interleaved microbenchmarks of kernel families, row by row into a table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfmodel.collect.arguments import (
    add_device,
    listed,
    minutes,
    output_folder,
    restore_command,
    wrote,
)
from perfmodel.collect.backend import (
    Backend,
    BusyElsewhere,
    device_name,
    gpu_state,
    open_backend,
    record_head,
)
from perfmodel.collect.families import FAMILIES, Case, Prepared, informative_order, scope_of
from perfmodel.collect.models.configuration import parse_histogram
from perfmodel.collect.records import Table, write_record
from perfmodel.collect.reference import Reference, reference_columns, reference_record
from perfmodel.collect.timing import CACHES, Budget, Sample, Stopwatch, summarize
from perfmodel.units import NS_PER_US

BLOCK_CASES = 8
ROUNDS = 4
MIN_PER_ROUND, MAX_PER_ROUND = 2, 10
TARGET_US = {"cpu": 60_000.0, "cuda": 40_000.0}
"""Time per row: as many repeats as fit, within the limits above."""
WARM_UP_CALLS = 2
REASON_LENGTH = 160


@dataclass
class _Job:
    """A row in the making."""

    row: dict[str, Any]
    prepared: Prepared
    cache: str
    per_round: int = MAX_PER_ROUND
    taken: list[Sample] = field(default_factory=list)


class Bench:
    """Measures cases into a table until the budget is used up; `skipped` says what it could not."""

    def __init__(
        self, backend: Backend, table: Table, budget: Budget, caches: tuple[str, ...]
    ) -> None:
        self.backend, self.table, self.budget, self.caches = backend, table, budget, caches
        self.stopwatch = Stopwatch(backend)
        self.device = device_name(backend)
        self.reference = Reference(backend)
        self.readings_us: list[list[float]] = []
        self.skipped: dict[str, int] = {}

    def measure(self, cases: Iterable[tuple[str, Case]], memory_bytes: float) -> int:
        """Time `cases` (each with its family) in blocks of at most `memory_bytes`; rows added.

        However little time there is, one case is tried, so that run after run gets on.
        """
        before = len(self.table)
        block: list[tuple[str, Case]] = []
        held_bytes = 0.0
        tried = False
        for family, case in cases:
            if tried and self.budget.is_over:
                break
            if all(self._identity(case, cache) in self.table for cache in self.caches):
                continue
            full = len(block) == BLOCK_CASES or held_bytes + case.size_bytes > memory_bytes
            if block and full:
                self._measure_block(block)
                block, held_bytes, tried = [], 0.0, True
            block.append((family, case))
            held_bytes += case.size_bytes
        if not (tried and self.budget.is_over):
            self._measure_block(block)
        return len(self.table) - before

    def measure_floors(self) -> None:
        """Rows for what timing itself costs: no call at all, and the smallest call there is."""
        one = self.backend.torch.ones(1, device=self.backend.device)
        floors: dict[str, Callable[[], Any]] = {
            "clock_floor": lambda: None,
            "launch_floor": lambda: one.add_(1.0),
        }
        jobs = [
            _Job(self._identity(Case(op, "fp32", {"elements": 1}), cache), Prepared(run), cache)
            for op, run in floors.items()
            for cache in self.caches
        ]
        self._run([job for job in jobs if job.row not in self.table])

    def _identity(self, case: Case, cache: str) -> dict[str, Any]:
        return {
            "op": case.op,
            "device": self.device,
            "dtype": case.dtype,
            "direction": case.direction,
            "timing": self.stopwatch.timing,
            "cache": cache,
            "variant": case.variant,
            **case.dims,
        }

    def _measure_block(self, block: list[tuple[str, Case]]) -> None:
        jobs: list[_Job] = []
        try:
            for number, (family, case) in enumerate(block):
                if number and self.budget.is_over:
                    break
                jobs += self._prepare(family, case)
        finally:
            self._run(jobs)

    def _prepare(self, family: str, case: Case) -> list[_Job]:
        """The rows of `case`, warmed up; none, and a note, when this machine cannot do it."""
        try:
            prepared = FAMILIES[family].prepare(self.backend, case)
            for _ in range(WARM_UP_CALLS):
                prepared.run()
            self.backend.synchronize()
            jobs = [self._job(case, prepared, cache) for cache in self.caches]
        except (RuntimeError, MemoryError, TypeError, NotImplementedError, ValueError) as error:
            self._skip(case, error)
            return []
        return [job for job in jobs if job.row not in self.table]

    def _job(self, case: Case, prepared: Prepared, cache: str) -> _Job:
        """With as many repeats per round as fit into the target, from the cost of one."""
        before_ns = time.perf_counter_ns()
        self.stopwatch.samples(prepared.run, cache, 1)
        cost_us = (time.perf_counter_ns() - before_ns) / NS_PER_US
        fitting = int(TARGET_US[self.backend.kind] / ROUNDS / max(cost_us, 1.0))
        per_round = min(max(fitting, MIN_PER_ROUND), MAX_PER_ROUND)
        row = {**self._identity(case, cache), **prepared.facts}
        return _Job(row, prepared, cache, per_round)

    def _skip(self, case: Case, error: BaseException) -> None:
        exhausted = self.backend.out_of_memory(error)
        if exhausted and self.backend.is_gpu:
            self.backend.torch.cuda.empty_cache()
        reason = "out of memory" if exhausted else str(error).strip().split("\n")[0]
        note = f"{'/'.join(filter(None, case.group))}: {reason[:REASON_LENGTH]}"
        self.skipped[note] = self.skipped.get(note, 0) + 1

    def _run(self, jobs: list[_Job]) -> None:
        """Take the repeats of `jobs` in turns; an interruption keeps what has been taken."""
        before = len(self.readings_us)
        try:
            for number in range(ROUNDS):
                if number and self.budget.is_over:
                    break
                self.readings_us.append(self.reference.read_us())
                for job in jobs:
                    job.taken += self.stopwatch.samples(job.prepared.run, job.cache, job.per_round)
        finally:
            beside = reference_columns(self.readings_us[before:])
            self.table.add(_finish(job) | beside for job in jobs if job.taken)


def _finish(job: _Job) -> dict[str, Any]:
    """The row of `job` with its robust duration and spread."""
    summary = summarize([sample.duration_us for sample in job.taken])
    host_us = float(np.median([sample.host_us for sample in job.taken]))
    duration_us = summary.pop("p10_us")
    counted = {"repeats": len(job.taken), "host_us": round(host_us, 3)}
    return {**job.row, "duration_us": duration_us, **summary, **counted}


HELP = "time kernels of every family on this machine, the most informative shapes first"
SCHEMA = "perfmodel.collect.kernels/1"
ALL = "all"
BLOCK_MEMORY_SHARE = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect kernels`."""
    add_device(parser)
    parser.add_argument(
        "--families",
        default=ALL,
        help=f"comma-separated, of {', '.join(FAMILIES)} (default: {ALL})",
    )
    parser.add_argument("--dtypes", help="comma-separated, of those that the machine has")
    parser.add_argument(
        "--histogram", help="reuse of embedding rows: LOOKUPS:ROWS shares, as in '0.9:0.1 0.1:0.9'"
    )
    parser.add_argument("--minutes", type=minutes, default=10.0, help="time to spend (default 10)")
    parser.add_argument("--cache", choices=(*CACHES, "both"), default="both")
    parser.add_argument("--threads", type=int, help="intra-op threads of the CPU")
    parser.add_argument("--name", default="kernels", help="stem of the CSV; resumed if it exists")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up; rows already in the CSV are not measured again."""
    asked = "" if arguments.families == ALL else arguments.families
    families = listed("--families", asked, list(FAMILIES))
    backend = open_backend(arguments.device, threads=arguments.threads)
    folder = output_folder(arguments.output)
    path = folder / f"{arguments.name}.csv"
    budget = Budget(arguments.minutes)
    caches = CACHES if arguments.cache == "both" else (arguments.cache,)
    scope = scope_of(backend)
    if arguments.histogram:
        parse_histogram(arguments.histogram)
        scope = replace(scope, histograms=(arguments.histogram,))
    if arguments.dtypes:
        dtypes = tuple(listed("--dtypes", arguments.dtypes, scope.dtypes))
        scope = replace(scope, dtypes=dtypes)
    cases = informative_order({name: list(FAMILIES[name].cases(scope)) for name in families})
    record = record_head(SCHEMA, restore_command("kernels", arguments), backend)
    table = Table(path)
    resumed = len(table)
    busy = BusyElsewhere()
    bench = Bench(backend, table, budget, caches)
    try:
        bench.measure_floors()
        bench.measure(cases, scope.max_bytes * BLOCK_MEMORY_SHARE)
    finally:
        record |= {
            "cases_planned": len(cases),
            "gpu_state_at_end": gpu_state(backend),
            "reference": reference_record(bench.readings_us),
            "busy_elsewhere_frac": busy.frac(),
            "rows": len(table),
            "rows_resumed": resumed,
            "skipped": bench.skipped,
        }
        write_record(path.with_name(f"{path.stem}_meta.json"), record)
        wrote(
            path,
            f"{len(table):,} rows, {len(table) - resumed:,} of them new; "
            f"{sum(bench.skipped.values())} of {len(cases):,} cases cannot run here",
        )
