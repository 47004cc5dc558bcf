"""Train many workloads in turns: plain steps, then steps whose operators are metered."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.budget import Budget
from perfmodel.collect.dispatch import describe_mode, meter_mode, page_faults
from perfmodel.collect.interleave import MEMORY_SHARE
from perfmodel.collect.interruption import interruptions_wait
from perfmodel.collect.models import Training
from perfmodel.collect.op_samples import OpSamples
from perfmodel.collect.sparse_gradients import taken_unseen
from perfmodel.collect.timing import time_step
from perfmodel.collect.workloads import Workload
from perfmodel.errors import UsageError
from perfmodel.units import BYTES_PER_GB, NS_PER_US

FIRST_WARM_UP, WARM_UP = 4, 1
MIN_PER_ROUND, MAX_PER_ROUND = 3, 8
COUNTED_ROUNDS = 3
TARGET_US = 40_000.0
"""Steps per round of each sort: as many as fit, within the limits above."""


class Metered:
    """The models of `workloads`, built when first due; `skipped` says why one is not."""

    def __init__(
        self, backend: Backend, workloads: list[Workload], samples: dict[str, OpSamples]
    ) -> None:
        self.backend, self.workloads, self.samples = backend, workloads, samples
        self.skipped: dict[str, str] = {}
        self._trainings: dict[str, tuple[Training, list[Any]]] = {}
        self._number = 0

    @property
    def rounds(self) -> int:
        """The rounds there are of all workloads."""
        return sum(len(taken.rounds_us) for taken in self.samples.values())

    def round(self, budget: Budget) -> bool:
        """A few steps of every workload, those with the fewest rounds first; whether time is left.

        What a workload's round has measured is kept when the whole of it is there.
        """
        done = {name: len(taken.rounds_us) for name, taken in self.samples.items()}
        for workload in sorted(self.workloads, key=lambda each: done.get(each.name, 0)):
            if budget.is_over:
                return False
            if self._is_ready(workload):
                training, leaves = self._trainings[workload.name]
                self._measure(training, leaves, self.samples[workload.name])
        return not budget.is_over and bool(self._trainings)

    def _measure(self, training: Training, leaves: list[Any], taken: OpSamples) -> None:
        """One round of a workload whose model is built and warm."""
        warm_us = [self._step(training) for _ in range(WARM_UP)]
        count = min(max(int(TARGET_US / max(warm_us[-1], 1.0)), MIN_PER_ROUND), MAX_PER_ROUND)
        faults = page_faults()
        plain_us = [round(self._step(training), 1) for _ in range(count)]
        faults = page_faults() - faults
        found: dict[str, list[Any]] = {"step_faults": [[faults / count]]}
        with taken_unseen(self.backend.torch, leaves):
            for _ in range(count):
                self._metered_step(training, taken, found)
            if len(taken.rounds_us) < COUNTED_ROUNDS:
                self._counted_step(training, taken, found)
        with interruptions_wait():
            taken.rounds_us.append(plain_us)
            for name, readings in found.items():
                for reading in readings:
                    taken.add(name, reading)

    def _step(self, training: Training) -> float:
        """Microseconds of the next step."""
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def _metered_step(
        self, training: Training, taken: OpSamples, found: dict[str, list[Any]]
    ) -> None:
        """A step whose operators are timed; nothing where they are not those of the signature."""
        meter = meter_mode(time.perf_counter_ns)
        start_ns = time.perf_counter_ns()
        with meter:
            total_us = self._step(training)
        if _same_operators(meter, taken):
            before_ns, after_ns = np.asarray(meter.readings, np.int64).reshape(-1, 2).T
            ended_ns = np.concatenate([[start_ns], after_ns[:-1]])
            found.setdefault("metered_us", []).append([total_us])
            found.setdefault("op_us", []).append((after_ns - before_ns) / NS_PER_US)
            found.setdefault("gap_us", []).append((before_ns - ended_ns) / NS_PER_US)

    def _counted_step(
        self, training: Training, taken: OpSamples, found: dict[str, list[Any]]
    ) -> None:
        """A step whose operators' page faults are counted."""
        meter = meter_mode(page_faults)
        with meter:
            self._step(training)
        if _same_operators(meter, taken):
            before, after = np.asarray(meter.readings, np.int64).reshape(-1, 2).T
            found["op_faults"] = [after - before]

    def _is_ready(self, workload: Workload) -> bool:
        """Whether the model of `workload` is there, warmed up; a note is kept where it is not."""
        name = workload.name
        if name in self._trainings or name in self.skipped:
            return name in self._trainings
        if workload.held_bytes > MEMORY_SHARE * self.backend.free_bytes():
            self.skipped[name] = f"needs {workload.held_bytes / BYTES_PER_GB:.1f} GB"
            return False
        try:
            training = workload.build(self.backend)
            for _ in range(FIRST_WARM_UP):
                self._step(training)
            leaves = list(self._described(training, []).leaves.values())
            described = self._described(training, leaves)
        except (RuntimeError, MemoryError) as error:
            if not self.backend.out_of_memory(error):
                raise
            self.skipped[name] = "out of memory"
            return False
        self._keep_signature(name, described.seen)
        self._trainings[name] = (training, leaves)
        return True

    def _described(self, training: Training, leaves: list[Any]) -> Any:
        """The mode that has seen the next step."""
        describe = describe_mode(self.backend.torch)
        with taken_unseen(self.backend.torch, leaves), describe:
            self._step(training)
        return describe

    def _keep_signature(self, name: str, seen: list[dict[str, Any]]) -> None:
        """The operators of `name`; `UsageError` where an earlier run had others."""
        taken = self.samples.setdefault(name, OpSamples())
        if taken.rounds_us and _operators(taken.signature) != _operators(seen):
            raise UsageError(f"{name} ran other operators in the earlier run; name another --name")
        taken.signature = seen


def _operators(signature: list[dict[str, Any]]) -> list[str]:
    return [str(op["op"]) for op in signature]


def _same_operators(meter: Any, taken: OpSamples) -> bool:
    return [func.name() for func in meter.operators] == _operators(taken.signature)
