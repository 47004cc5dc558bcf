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

from perfmodel.base.units import BYTES_PER_GB, human_us
from perfmodel.collect.arguments import (
    Verb,
    add_common,
    count,
    output_folder,
    restore_command,
    wrote,
)
from perfmodel.collect.backend import Backend, device_name
from perfmodel.collect.models import Ranks, Training
from perfmodel.collect.models.dlrm import ONE_RANK, TWO_RANKS, TruthConfig, read_configs
from perfmodel.collect.runs import Run, broadcast_from_first, run_ranks
from perfmodel.collect.timing import (
    REFERENCE_COLUMNS,
    halves_frac,
    reference_columns,
    summarize,
    time_step,
    write_table,
)
from perfmodel.collect.workloads import Workload, dlrm_workload

DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = ("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac")
TRUTH_COLUMNS = (*DIMS, *FIGURES, *REFERENCE_COLUMNS)


@dataclass
class Samples:
    """Of one model what each step took, microseconds, round by round; of metered steps also the
    whole step, and per operator its duration and the time since the operator before it."""

    rounds_us: list[list[float]] = field(default_factory=list)
    reference_us: list[list[float]] = field(default_factory=list)
    """Before each round, what each part of the reference work took."""
    signature: list[dict[str, Any]] = field(default_factory=list)
    metered_us: list[float] = field(default_factory=list)
    op_us: list[NDArray[np.float64]] = field(default_factory=list)
    gap_us: list[NDArray[np.float64]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The robust step time and its spread, without and with the meter, and the sum over
        operators; nothing without rounds."""
        steps_us = [value for taken in self.rounds_us for value in taken]
        if not steps_us:
            return {}
        figures: dict[str, Any] = {"rounds": len(self.rounds_us), "steps": len(steps_us)}
        figures |= {**summarize(steps_us), "halves_frac": halves_frac(self.rounds_us)}
        if self.op_us:
            figures |= {"ops_per_step": len(self.signature), "metered_steps": len(self.op_us)}
            metered, sums = summarize(self.metered_us), summarize(np.sum(self.op_us, axis=1))
            for name in ("p10_us", "median_us"):
                figures |= {f"metered_{name}": metered[name], f"ops_sum_{name}": sums[name]}
        return figures | reference_columns(self.reference_us)


FIRST_WARM_UP = 4
MEMORY_SHARE = 0.75
"""Of what is free, for models that stay side by side: other programs grow, too."""


class Pace(NamedTuple):
    """Warm-up steps of a round, and timed ones: as many as fit into `target_us`, within limits."""

    warm_up: int
    target_us: float
    least: int
    most: int


class Turns:
    """The models of `workloads`, built when first due; `run.skipped` says why one is not.

    All ranks take the same steps; rank 0 decides when the time is over.
    """

    def __init__(self, run: Run, ranks: Ranks, workloads: Sequence[Workload], pace: Pace) -> None:
        self.run, self.backend, self.ranks, self.pace = run, run.backend, ranks, pace
        self.workloads = workloads
        self.samples: dict[str, Samples] = {}
        sharing = 1 if run.backend.is_gpu else ranks.world
        self._left_bytes = MEMORY_SHARE * run.backend.free_bytes() / sharing
        self._trainings: dict[str, Training] = {}
        self._number = 0

    def take(self, most_rounds: int) -> None:
        """A few steps of every workload per round, until the time or the rounds are used up."""
        for _ in range(most_rounds):
            for workload in self.workloads:
                if broadcast_from_first(self.backend, self.ranks, self.run.is_over):
                    return
                training = self._training(workload)
                if training is not None:
                    self.measure(workload.name, training)
            if not self._trainings:
                return

    def measure(self, name: str, training: Training) -> None:
        """One round of a workload whose model is built and warm; it is kept when it is whole."""
        reference_us, steps = self.run.read_reference(), self.warmed(training)
        own_us = [self.step(training) for _ in range(steps)]
        times = self.backend.torch.tensor(own_us, dtype=self.backend.torch.float64)
        if self.ranks.world > 1:  # ranks keep step, but not to the microsecond: their mean
            times = times.to(self.backend.device)
            self.backend.torch.distributed.all_reduce(times)
            times = times / self.ranks.world
        self.samples[name].rounds_us.append([round(value, 1) for value in times.tolist()])
        self.samples[name].reference_us.append(reference_us)

    def warmed(self, training: Training) -> int:
        """How many steps to time, after those that warm up."""
        warm_us = [self.step(training) for _ in range(self.pace.warm_up)]
        fitting = int(self.pace.target_us / max(warm_us[-1], 1.0))
        steps = min(max(fitting, self.pace.least), self.pace.most)
        return broadcast_from_first(self.backend, self.ranks, steps)

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
            "ranks": self.ranks.world,
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
        needed = workload.held_bytes / self.ranks.world
        fits = needed < min(self._left_bytes, self.backend.free_bytes())
        if not broadcast_from_first(self.backend, self.ranks, fits):
            skipped[name] = f"needs {needed / BYTES_PER_GB:.1f} GB"
            return None
        self._left_bytes -= needed
        try:
            training = workload.build(self.backend, self.ranks)
            for _ in range(FIRST_WARM_UP):
                self.step(training)
            self.samples.setdefault(name, Samples())
            self.built(workload, training)
        except (RuntimeError, MemoryError) as error:
            if self.ranks.world > 1 or not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training


PACE = Pace(warm_up=2, target_us=120_000.0, least=3, most=12)
MAX_ROUNDS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect truth`."""
    add_common(parser, "truth", 6.0)
    parser.add_argument("--configs", type=Path, help="JSON file (default: the bundled list)")
    parser.add_argument("--rounds", type=count, help=f"at most so many (default {MAX_ROUNDS})")
    parser.add_argument(
        "--ranks", type=int, choices=(1, 2), default=1, help="processes (NCCL, or Gloo on CPU)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget or the rounds are used up."""
    configs = ONE_RANK if arguments.ranks == 1 else TWO_RANKS
    if arguments.configs:
        configs = read_configs(arguments.configs)
        arguments.configs = Path(arguments.configs.name)
    stem = output_folder(arguments.output) / arguments.name
    command = restore_command("truth", arguments)
    given = (configs, stem, arguments.minutes, arguments.rounds or MAX_ROUNDS, command)
    run_ranks(arguments.ranks, arguments.device, _measure, given)


VERB = Verb(
    "measure the step times of many DLRM configurations, interleaved, as the truth",
    add_arguments,
    run,
)


def _measure(
    backend: Backend,
    ranks: Ranks,
    configs: tuple[TruthConfig, ...],
    stem: Path,
    limit_minutes: float,
    most_rounds: int,
    command: str,
) -> None:
    """All ranks take the same steps; rank 0 decides, and keeps the files."""
    current = Run("truth", command, backend, limit_minutes)
    turns = Turns(current, ranks, [dlrm_workload(config) for config in configs], PACE)
    try:
        turns.take(most_rounds)
    finally:
        if ranks.rank == 0:
            path, rows = stem.with_name(f"{stem.name}.csv"), turns.rows()
            write_table(path, TRUTH_COLUMNS, rows)
            meta = stem.with_name(f"{stem.name}_meta.json")
            current.write(meta, ranks=ranks.world, configurations=len(configs))
            print("Step times, 10 % quantile and median")
            known = {row["name"]: row for row in rows}
            for config in configs:
                row = known.get(config.name)
                said = current.skipped.get(config.name, "no time left")
                if row is not None:
                    times = f"{human_us(row['p10_us']):>10}  {human_us(row['median_us']):>10}"
                    said = f"{times}  of {row['steps']} steps"
                print(f"{config.name:<40}  {said}")
            wrote(path, f"step times of {len(rows)} configurations")
