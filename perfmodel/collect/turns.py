"""`collect truth`: models trained in turns, a few timed, un-profiled steps of each per round.

Rounds over all models spread slow drifts evenly.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.arguments import Verb, add_common, count
from perfmodel.collect.backend import device_name, open_backend
from perfmodel.collect.models import Training
from perfmodel.collect.models.dlrm import ONE_RANK, read_configs
from perfmodel.collect.runs import Run
from perfmodel.collect.timing import halves_frac, summarize, time_step
from perfmodel.collect.workloads import Workload, dlrm_workload

DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = ("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac")
TRUTH_COLUMNS = (*DIMS, *FIGURES)


@dataclass
class Samples:
    """Of one model what each step took, microseconds, round by round; of metered steps also the
    whole step, and per operator its duration."""

    rounds_us: list[list[float]] = field(default_factory=list)
    signature: list[dict[str, Any]] = field(default_factory=list)
    metered_us: list[float] = field(default_factory=list)
    op_us: list[NDArray[np.float64]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The robust step time and its spread, without and with the meter, and the sum over
        operators."""
        steps_us = [value for taken in self.rounds_us for value in taken]
        figures: dict[str, Any] = {"rounds": len(self.rounds_us), "steps": len(steps_us)}
        figures |= {**summarize(steps_us), "halves_frac": halves_frac(self.rounds_us)}
        if self.op_us:
            figures |= {"ops_per_step": len(self.signature), "metered_steps": len(self.op_us)}
            sums = summarize(np.sum(self.op_us, axis=1))
            figures["metered_p10_us"] = summarize(self.metered_us)["p10_us"]
            figures["ops_sum_p10_us"] = sums["p10_us"]
        return figures


FIRST_WARM_UP = 4
MEMORY_SHARE = 0.75
"""Of what is free, for models that stay side by side: other programs grow, too."""
MAX_ROUNDS = 200


class Pace(NamedTuple):
    """Warm-up steps of a round, and timed ones: as many as fit into `target_us`, within limits."""

    warm_up: int
    target_us: float
    least: int
    most: int


class Turns:
    """The models of `workloads`, built when first due; `run.skipped` says why one is not."""

    def __init__(self, run: Run, workloads: Sequence[Workload], pace: Pace) -> None:
        self.run, self.backend, self.pace, self.workloads = run, run.backend, pace, workloads
        self.samples: dict[str, Samples] = {}
        self._left_bytes = MEMORY_SHARE * run.backend.free_bytes()
        self._trainings: dict[str, Training] = {}
        self._number = 0

    def take(self, most_rounds: int) -> None:
        """A few steps of every workload per round, until the time or the rounds are used up."""
        for _ in range(most_rounds):
            for workload in self.workloads:
                if self.run.is_over:
                    return
                training = self._training(workload)
                if training is not None:
                    self.measure(workload.name, training)
            if not self._trainings:
                return

    def measure(self, name: str, training: Training) -> None:
        """One round of a workload whose model is built and warm; it is kept when it is whole."""
        own_us = [round(self.step(training), 1) for _ in range(self.warmed(training))]
        self.samples[name].rounds_us.append(own_us)

    def warmed(self, training: Training) -> int:
        """How many steps to time, after those that warm up."""
        warm_us = [self.step(training) for _ in range(self.pace.warm_up)]
        fitting = int(self.pace.target_us / max(warm_us[-1], 1.0))
        return min(max(fitting, self.pace.least), self.pace.most)

    def step(self, training: Training) -> float:
        """Microseconds of the next step."""
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def built(self, workload: Workload, training: Training) -> None:
        """Called with a model that was built and has warmed up."""

    def rows(self) -> list[dict[str, Any]]:
        """A row per workload with rounds: its dims and its figures."""
        setting = {
            "device": device_name(self.backend),
            "ranks": 1,
            "threads_per_rank": self.backend.threads,
        }
        return [
            {"model": each.model, **setting, **each.dims, **self.samples[each.name].figures()}
            for each in self.workloads
            if each.name in self.samples and self.samples[each.name].rounds_us
        ]

    def _training(self, workload: Workload) -> Training | None:
        """The model of `workload`; `None`, and a note, where it does not fit."""
        name, skipped = workload.name, self.run.skipped
        if name in self._trainings or name in skipped:
            return self._trainings.get(name)
        if workload.held_bytes >= min(self._left_bytes, self.backend.free_bytes()):
            skipped[name] = f"needs {workload.held_bytes / BYTES_PER_GB:.1f} GB"
            return None
        self._left_bytes -= workload.held_bytes
        try:
            training = workload.build(self.backend)
            for _ in range(FIRST_WARM_UP):
                self.step(training)
            self.samples[name] = Samples()
            self.built(workload, training)
        except (RuntimeError, MemoryError) as error:
            if not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training


PACE = Pace(warm_up=2, target_us=120_000.0, least=3, most=12)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect truth`."""
    add_common(parser, "truth", 6.0)
    parser.add_argument("--configs", type=Path, help="JSON file (default: the bundled list)")
    parser.add_argument(
        "--rounds", type=count, default=MAX_ROUNDS, help=f"at most so many (default {MAX_ROUNDS})"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget or the rounds are used up."""
    configs = read_configs(arguments.configs) if arguments.configs else ONE_RANK
    current = Run("truth", arguments, open_backend(arguments.device))
    turns = Turns(current, [dlrm_workload(config) for config in configs], PACE)
    try:
        turns.take(arguments.rounds)
    finally:
        current.write(
            TRUTH_COLUMNS, turns.rows(), "step times", configurations=len(configs), ranks=1
        )


VERB = Verb(
    "measure the step times of many DLRM configurations, interleaved, as the truth",
    add_arguments,
    run,
)
