"""Time cases block by block, their repeats interleaved, and keep every row that is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.budget import Budget
from perfmodel.collect.families import FAMILIES, Case, Prepared
from perfmodel.collect.machine import device_name
from perfmodel.collect.stopwatch import Sample, Stopwatch
from perfmodel.collect.table import Table
from perfmodel.collect.timing import summarize
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
    per_round: int
    taken: list[Sample] = field(default_factory=list)


class Bench:
    """Measures cases into a table until the budget is used up; `skipped` says what it could not."""

    def __init__(
        self, backend: Backend, table: Table, budget: Budget, caches: tuple[str, ...]
    ) -> None:
        self.backend, self.table, self.budget, self.caches = backend, table, budget, caches
        self.stopwatch = Stopwatch(backend)
        self.device = device_name(backend)
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
        jobs = []
        for op, run in floors.items():
            for cache in self.caches:
                row = self._identity(Case(op, "fp32", {"elements": 1}), cache)
                if row not in self.table:
                    jobs.append(_Job(row, Prepared(run), cache, MAX_PER_ROUND))
        self._run(jobs)

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
            repeats = {cache: self._repeats(prepared, cache) for cache in self.caches}
        except (RuntimeError, MemoryError, TypeError, NotImplementedError, ValueError) as error:
            self._skip(case, error)
            return []
        rows = [(self._identity(case, cache), cache) for cache in self.caches]
        return [
            _Job({**row, **prepared.facts}, prepared, cache, repeats[cache])
            for row, cache in rows
            if row not in self.table
        ]

    def _repeats(self, prepared: Prepared, cache: str) -> int:
        """As many repeats per round as fit into the target, from the cost of one."""
        before_ns = time.perf_counter_ns()
        self.stopwatch.samples(prepared.run, cache, 1)
        cost_us = (time.perf_counter_ns() - before_ns) / NS_PER_US
        fitting = int(TARGET_US[self.backend.kind] / ROUNDS / max(cost_us, 1.0))
        return min(max(fitting, MIN_PER_ROUND), MAX_PER_ROUND)

    def _skip(self, case: Case, error: BaseException) -> None:
        exhausted = self.backend.out_of_memory(error)
        if exhausted and self.backend.is_gpu:
            self.backend.torch.cuda.empty_cache()
        reason = "out of memory" if exhausted else str(error).strip().split("\n")[0]
        note = f"{'/'.join(filter(None, case.group))}: {reason[:REASON_LENGTH]}"
        self.skipped[note] = self.skipped.get(note, 0) + 1

    def _run(self, jobs: list[_Job]) -> None:
        """Take the repeats of `jobs` in turns; an interruption keeps what has been taken."""
        try:
            for number in range(ROUNDS):
                if number and self.budget.is_over:
                    break
                for job in jobs:
                    job.taken += self.stopwatch.samples(job.prepared.run, job.cache, job.per_round)
        finally:
            self.table.add(_finish(job) for job in jobs if job.taken)


def _finish(job: _Job) -> dict[str, Any]:
    """The row of `job` with its robust duration and spread."""
    summary = summarize([sample.duration_us for sample in job.taken])
    host_us = float(np.median([sample.host_us for sample in job.taken]))
    duration_us = summary.pop("p10_us")
    counted = {"repeats": len(job.taken), "host_us": round(host_us, 3)}
    return {**job.row, "duration_us": duration_us, **summary, **counted}
