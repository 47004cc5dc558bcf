"""`collect ops`: time every operator inside real training steps, without the profiler."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
    wrote,
)
from perfmodel.collect.backend import (
    Backend,
    BusyElsewhere,
    Room,
    device_name,
    open_backend,
    record_head,
)
from perfmodel.collect.dispatch import describe_mode, hidden_accumulation, meter_mode, page_faults
from perfmodel.collect.models import Training
from perfmodel.collect.models.configuration import read_configs
from perfmodel.collect.records import deferred_interrupts, write_record
from perfmodel.collect.reference import Reference, reference_record
from perfmodel.collect.samples import (
    OP_COLUMNS,
    STEP_COLUMNS,
    OpSamples,
    dims_of,
    load_samples,
    op_rows,
    save_samples,
    write_table,
)
from perfmodel.collect.timing import Budget, time_step
from perfmodel.collect.workloads import Workload, calibration_workloads, dlrm_workload
from perfmodel.errors import UsageError
from perfmodel.units import BYTES_PER_GB, NS_PER_US

FIRST_WARM_UP, WARM_UP = 4, 1
MIN_PER_ROUND, MAX_PER_ROUND = 3, 8
COUNTED_ROUNDS = 3
TARGET_US = 40_000.0
"""Steps per round of each sort: as many as fit, within the limits above."""


class MeteredTraining:
    """The models of `workloads`, built when first due; `skipped` says why one is not."""

    def __init__(
        self, backend: Backend, workloads: list[Workload], samples: dict[str, OpSamples]
    ) -> None:
        self.backend, self.workloads, self.samples = backend, workloads, samples
        self.skipped: dict[str, str] = {}
        self._room = Room(backend)
        self._reference = Reference(backend)
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
        reference_us = self._reference.read_us()
        warm_us = [self._step(training) for _ in range(WARM_UP)]
        count = min(max(int(TARGET_US / max(warm_us[-1], 1.0)), MIN_PER_ROUND), MAX_PER_ROUND)
        faults = page_faults()
        plain_us = [round(self._step(training), 1) for _ in range(count)]
        faults = page_faults() - faults
        readings: list[tuple[str, Any]] = [("step_faults", [faults / count])]
        with hidden_accumulation(self.backend.torch, leaves):
            for _ in range(count):
                timed = self._metered_step(training, taken, time.perf_counter_ns)
                if timed is not None:
                    total_us, start_ns, before_ns, after_ns = timed
                    ended_ns = np.concatenate([[start_ns], after_ns[:-1]])
                    readings.append(("metered_us", [total_us]))
                    readings.append(("op_us", (after_ns - before_ns) / NS_PER_US))
                    readings.append(("gap_us", (before_ns - ended_ns) / NS_PER_US))
            if len(taken.rounds_us) < COUNTED_ROUNDS:
                counted = self._metered_step(training, taken, page_faults)
                if counted is not None:
                    readings.append(("op_faults", counted[3] - counted[2]))
        with deferred_interrupts():
            taken.rounds_us.append(plain_us)
            taken.reference_us.append(reference_us)
            for name, reading in readings:
                taken.add(name, reading)

    def _step(self, training: Training) -> float:
        """Microseconds of the next step."""
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def _metered_step(
        self, training: Training, taken: OpSamples, read: Callable[[], int]
    ) -> tuple[float, int, Any, Any] | None:
        """A step's microseconds, what `read` gave before it, and before and after each operator;
        None where the operators are not those of the signature."""
        meter, start = meter_mode(read), read()
        with meter:
            total_us = self._step(training)
        if [func.name() for func in meter.operators] != _operators(taken.signature):
            return None
        before, after = np.asarray(meter.readings, np.int64).reshape(-1, 2).T
        return total_us, start, before, after

    def _is_ready(self, workload: Workload) -> bool:
        """Whether the model of `workload` is there, warmed up; a note is kept where it is not."""
        name = workload.name
        if name in self._trainings or name in self.skipped:
            return name in self._trainings
        if not self._room.take(workload.held_bytes):
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
        taken = self.samples.setdefault(name, OpSamples())
        if taken.rounds_us and _operators(taken.signature) != _operators(described.seen):
            raise UsageError(f"{name} ran other operators in the earlier run; name another --name")
        taken.signature = described.seen
        self._trainings[name] = (training, leaves)
        return True

    def _described(self, training: Training, leaves: list[Any]) -> Any:
        """The mode that has seen the next step."""
        describe = describe_mode(self.backend.torch)
        with hidden_accumulation(self.backend.torch, leaves), describe:
            self._step(training)
        return describe


def _operators(signature: list[dict[str, Any]]) -> list[str]:
    return [str(op["op"]) for op in signature]


HELP = "time every operator inside real training steps, without the profiler"
SCHEMA = "perfmodel.collect.ops/1"
TIMINGS = {"cpu": "dispatch_mode", "cuda": "dispatch_mode_host"}
PER_MINUTE = 24
MAX_ROUNDS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect ops`."""
    add_device(parser)
    parser.add_argument("--minutes", type=minutes, default=5.0, help="time to spend (default 5)")
    parser.add_argument(
        "--configurations",
        type=count,
        help=f"how many models to train in turns (default: {PER_MINUTE} per minute)",
    )
    parser.add_argument("--configs", type=Path, help="JSON file of DLRMs to train instead")
    parser.add_argument("--name", default="ops", help="stem of the files; resumed if they exist")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up; rounds already on file count."""
    budget, began_s = Budget(arguments.minutes), time.monotonic()
    backend = open_backend(arguments.device)
    stem = output_folder(arguments.output) / arguments.name
    wanted = arguments.configurations or max(1, round(PER_MINUTE * arguments.minutes))
    listed = arguments.configs
    if listed:
        workloads = [dlrm_workload(config) for config in read_configs(listed)]
        arguments.configs = Path(listed.name)
    else:
        workloads = calibration_workloads(wanted)
    setting = {
        "device": device_name(backend),
        "threads_per_rank": backend.threads,
        "torch": backend.torch.__version__,
    }
    store = stem.with_name(f"{stem.name}_samples.npz")
    metered = MeteredTraining(backend, workloads, load_samples(store, setting))
    busy = BusyElsewhere()
    record = record_head(SCHEMA, restore_command("ops", arguments), backend) | {
        "setting": setting,
        "configurations_planned": len(workloads),
        "rounds_resumed": metered.rounds,
    }
    try:
        for _ in range(MAX_ROUNDS):
            if not metered.round(budget):
                break
            save_samples(store, metered.samples, setting)
    finally:
        save_samples(store, metered.samples, setting)
        steps = _write_tables(stem, metered, setting, TIMINGS[backend.kind])
        readings = [each for it in metered.samples.values() for each in it.reference_us]
        record |= {
            "configurations": steps,
            "rounds": metered.rounds,
            "skipped": metered.skipped,
            "reference": reference_record(readings),
            "busy_elsewhere_frac": busy.frac(),
            "elapsed_s": round(time.monotonic() - began_s, 1),
        }
        write_record(stem.with_name(f"{stem.name}_meta.json"), record)
        wrote(Path(f"{stem}.csv.gz"), f"operators of {steps} configurations")


def _write_tables(
    stem: Path,
    metered: MeteredTraining,
    setting: dict[str, Any],
    timing: str,
) -> int:
    """Write the table of operators and that of steps; how many configurations they hold."""
    rows: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    for workload in metered.workloads:
        taken = metered.samples.get(workload.name)
        if taken is not None and taken.rounds_us:
            rows += op_rows(workload.name, taken, setting["device"], timing)
            about = {"model": workload.model, "description": workload.description, "ranks": 1}
            dims = dims_of(workload.dlrm) if workload.dlrm else {"name": workload.name}
            steps.append({**about, **setting, **dims, **taken.step_figures()})
    write_table(stem.with_name(f"{stem.name}.csv.gz"), OP_COLUMNS, rows)
    write_table(stem.with_name(f"{stem.name}_steps.csv"), STEP_COLUMNS, steps)
    return len(steps)
