"""`collect ops`: time every operator inside real training steps, without the profiler."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.units import NS_PER_US
from perfmodel.collect.arguments import Verb, add_common, count, wrote
from perfmodel.collect.backend import device_name
from perfmodel.collect.dispatch import describe_mode, hidden_accumulation, meter_mode, page_faults
from perfmodel.collect.models import Ranks, Training
from perfmodel.collect.models.configuration import read_configs
from perfmodel.collect.records import REFERENCE_COLUMNS, deferred_interrupts, write_table
from perfmodel.collect.runs import Run, open_run
from perfmodel.collect.samples import STEP_COLUMNS, Pace, Samples, Store, Turns
from perfmodel.collect.timing import LOW_QUANTILE, reference_columns
from perfmodel.collect.truth import table_rows
from perfmodel.collect.workloads import Workload, calibration_workloads, dlrm_workload
from perfmodel.errors import UsageError

PACE = Pace(warm_up=1, target_us=40_000.0, least=3, most=8)
"""Of steps of each sort, with and without the meter."""
COUNTED_ROUNDS = 3
SAMPLES_SCHEMA = "perfmodel.collect.ops.samples/2"
TIMINGS = {"cpu": "dispatch_mode", "cuda": "dispatch_mode_host"}
PER_MINUTE = 24
MAX_ROUNDS = 200


class MeteredTurns(Turns):
    """Models trained in turns, in some steps of a round with a mode that times each operator."""

    def __init__(
        self, run: Run, workloads: Sequence[Workload], samples: dict[str, Samples]
    ) -> None:
        super().__init__(run, Ranks(), workloads, samples, PACE)
        self._leaves: dict[str, list[Any]] = {}

    def built(self, workload: Workload, training: Training) -> None:
        """Note the operators of a step, which have to be those of the earlier run."""
        leaves = list(self._described(training, []).leaves.values())
        seen, taken = self._described(training, leaves).seen, self.samples[workload.name]
        if taken.rounds_us and _operators(taken.signature) != _operators(seen):
            raise UsageError(
                f"{workload.name} ran other operators in the earlier run; name another --name"
            )
        taken.signature, self._leaves[workload.name] = seen, leaves

    def measure(self, name: str, training: Training) -> None:
        """Plain steps, as many metered ones, in the first rounds one that counts page faults."""
        taken = self.samples[name]
        reference_us, steps = self.run.read_reference(), self.warmed(training)
        faults = page_faults()
        plain_us = [round(self.step(training), 1) for _ in range(steps)]
        faults = page_faults() - faults
        readings: list[tuple[str, Any]] = [("step_faults", [faults / steps])]
        with hidden_accumulation(self.backend.torch, self._leaves[name]):
            for _ in range(steps):
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
            for array, reading in readings:
                taken.add(array, reading)

    def _metered_step(
        self, training: Training, taken: Samples, read: Callable[[], int]
    ) -> tuple[float, int, Any, Any] | None:
        """A step's microseconds, what `read` gave before it, and before and after each operator;
        None where the operators are not those of the signature."""
        meter, start = meter_mode(read), read()
        with meter:
            total_us = self.step(training)
        if [func.name() for func in meter.operators] != _operators(taken.signature):
            return None
        before, after = np.asarray(meter.readings, np.int64).reshape(-1, 2).T
        return total_us, start, before, after

    def _described(self, training: Training, leaves: list[Any]) -> Any:
        """The mode that has seen the next step."""
        describe = describe_mode(self.backend.torch)
        with hidden_accumulation(self.backend.torch, leaves), describe:
            self.step(training)
        return describe


def _operators(signature: list[dict[str, Any]]) -> list[str]:
    return [str(op["op"]) for op in signature]


IDENTITY = (
    *("configuration", "op", "phase", "node", "input_shapes", "input_dtypes", "input_layouts"),
    *("output_shapes", "scalars", "allocated_bytes", "artefact"),
)
OP_COLUMNS = (
    *IDENTITY,
    *("count", "unique_rows", "page_faults", "device", "timing", "duration_us", "median_us"),
    *("p90_us", "gap_us", "repeats", *REFERENCE_COLUMNS),
)


def op_rows(name: str, taken: Samples, device: str, timing: str) -> list[dict[str, Any]]:
    """One row per distinct operator of configuration `name`: means over its `count` places.

    A place's duration is a low quantile over the steps, so that count times duration sums up.
    """
    if not taken.arrays["op_us"]:
        return []
    quantiles = np.quantile(taken.stacked("op_us"), [LOW_QUANTILE, 0.5, 0.9], axis=0)
    gaps = np.quantile(taken.stacked("gap_us"), LOW_QUANTILE, axis=0)
    faults = np.mean(taken.stacked("op_faults"), axis=0)
    measured = {"device": device, "timing": timing, "repeats": len(taken.arrays["op_us"])}
    measured |= reference_columns(taken.reference_us)
    places_of: dict[str, list[int]] = {}
    for place, op in enumerate(taken.signature):
        key = json.dumps([op.get(column) for column in IDENTITY])
        places_of.setdefault(key, []).append(place)
    rows = []
    for places in places_of.values():
        low, middle, high = quantiles[:, places].mean(axis=1)
        unique = [taken.signature[place]["unique_rows"] for place in places]
        times = {"duration_us": low, "median_us": middle, "p90_us": high}
        rows.append(
            taken.signature[places[0]]
            | {
                "configuration": name,
                "count": len(places),
                "unique_rows": round(float(np.mean(unique)), 1) if any(unique) else None,
                "page_faults": round(float(faults[places].mean()), 2),
                "gap_us": gaps[places].mean(),
            }
            | times
            | measured
        )
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect ops`."""
    add_common(parser, "ops", 5.0)
    parser.add_argument(
        "--configurations",
        type=count,
        help=f"how many models to train in turns (default: {PER_MINUTE} per minute)",
    )
    parser.add_argument("--configs", type=Path, help="JSON file of DLRMs to train instead")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up; rounds already on file count."""
    wanted = arguments.configurations or max(1, round(PER_MINUTE * arguments.minutes))
    listed = arguments.configs
    if listed:
        arguments.configs = Path(listed.name)
    current, stem = open_run("ops", arguments)
    configs = [dlrm_workload(config) for config in read_configs(listed)] if listed else []
    workloads = configs or calibration_workloads(wanted)
    setting = {
        "device": device_name(current.backend),
        "threads_per_rank": current.backend.threads,
        "torch": current.backend.torch.__version__,
    }
    store = Store(stem.with_name(f"{stem.name}_samples.npz"), SAMPLES_SCHEMA, setting)
    turns = MeteredTurns(current, workloads, store.load(workloads))
    resumed = turns.rounds
    try:
        for _ in range(MAX_ROUNDS):
            if not turns.round():
                break
            store.save(turns.samples, workloads)
    finally:
        store.save(turns.samples, workloads)
        steps, timing = table_rows(turns), TIMINGS[current.backend.kind]
        rows = [
            row
            for step in steps
            for row in op_rows(step["name"], turns.samples[step["name"]], setting["device"], timing)
        ]
        path = stem.with_name(f"{stem.name}.csv.gz")
        write_table(path, OP_COLUMNS, rows)
        write_table(stem.with_name(f"{stem.name}_steps.csv"), STEP_COLUMNS, steps)
        current.write(
            stem.with_name(f"{stem.name}_meta.json"),
            setting=setting,
            configurations_planned=len(workloads),
            configurations=len(steps),
            rounds_resumed=resumed,
            rounds=turns.rounds,
        )
        wrote(path, f"operators of {len(steps)} configurations")


VERB = Verb(
    "time every operator inside real training steps, without the profiler", add_arguments, run
)
