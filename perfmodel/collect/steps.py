"""`collect steps`: training steps of many DLRMs, timed in turns, without the profiler."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from typing import Any

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.backend import device_name, open_backend
from perfmodel.collect.configurations import DIMS, FIGURES, calibration_configs, dims_of, figures_of
from perfmodel.collect.models import Training
from perfmodel.collect.models.dlrm import DlrmConfig, train_dlrm
from perfmodel.collect.runs import Run, add_common, count
from perfmodel.collect.timing import time_step

FIRST_WARM_UP = 4
"""Steps in which a new model first allocates memory and its libraries choose kernels."""
TARGET_US, LEAST, MOST = 40_000.0, 3, 8
"""Of the steps of a round: as many as fit, within limits."""
MEMORY_SHARE = 0.75
"""Of what is free, for models that stay side by side: other programs grow, too."""
MAX_ROUNDS = 200
PER_MINUTE = 24
"""Models: 2.5 seconds for each, all its rounds together."""


class Turns:
    """The models of `configs`, built when first due and trained in turns; `run.skipped` says why
    one is not.

    Rounds over all models spread slow drifts evenly.
    """

    def __init__(self, run: Run, configs: Sequence[DlrmConfig]) -> None:
        self.run, self.backend, self.configs = run, run.backend, configs
        self.rounds_us: dict[str, list[list[float]]] = {}
        self._left_bytes = MEMORY_SHARE * run.backend.free_bytes()
        self._trainings: dict[str, Training] = {}
        self._number = 0

    def take(self, most_rounds: int) -> None:
        """A few steps of every model per round, until the time or the rounds are used up."""
        for _ in range(most_rounds):
            for config in self.configs:
                if self.run.is_over:
                    return
                training = self._training(config)
                if training is not None:
                    steps = min(max(int(TARGET_US / max(self._step(training), 1.0)), LEAST), MOST)
                    taken_us = [round(self._step(training), 1) for _ in range(steps)]
                    self.rounds_us.setdefault(config.name, []).append(taken_us)
            if not self._trainings:
                return

    def rows(self) -> list[dict[str, Any]]:
        """A row per model with rounds: its dims and its figures."""
        setting = {
            "device": device_name(self.backend),
            "ranks": 1,
            "threads_per_rank": self.backend.threads,
        }
        return [
            {"model": "dlrm", **setting, **dims_of(each), **figures_of(self.rounds_us[each.name])}
            for each in self.configs
            if each.name in self.rounds_us
        ]

    def _step(self, training: Training) -> float:
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def _training(self, config: DlrmConfig) -> Training | None:
        """The model of `config`, warmed up; `None`, and a note, where it does not fit."""
        name, skipped = config.name, self.run.skipped
        if name in self._trainings or name in skipped:
            return self._trainings.get(name)
        if config.held_bytes >= min(self._left_bytes, self.backend.free_bytes()):
            skipped[name] = f"needs {config.held_bytes / BYTES_PER_GB:.1f} GB"
            return None
        self._left_bytes -= config.held_bytes
        try:
            training = train_dlrm(self.backend, config)
            for _ in range(FIRST_WARM_UP):
                self._step(training)
        except (RuntimeError, MemoryError) as error:
            if not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "steps", 5.0)
    parser.add_argument(
        "--configurations",
        type=count,
        help=f"how many models to train in turns (default: {PER_MINUTE} per minute)",
    )


def run(arguments: argparse.Namespace) -> None:
    wanted = arguments.configurations or max(1, round(PER_MINUTE * arguments.minutes))
    configs = tuple(islice(calibration_configs(), wanted))
    current = Run("steps", arguments, open_backend(arguments.device))
    turns = Turns(current, configs)
    try:
        turns.take(MAX_ROUNDS)
    finally:
        rows = turns.rows()
        current.write(
            ("model", *DIMS, *FIGURES),
            rows,
            "configurations",
            configurations_planned=len(configs),
            rounds=sum(row["rounds"] for row in rows),
        )
