"""`collect truth`: step times of many DLRM configurations, trained in turns."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
    table,
    wrote,
)
from perfmodel.collect.backend import Backend, Room, device_name, record_head
from perfmodel.collect.capture import profile_block, trace_head
from perfmodel.collect.models import Options, Ranks, Training
from perfmodel.collect.models.configuration import TruthConfig, bundled_configs, read_configs
from perfmodel.collect.models.dlrm import DISTINCT_BATCHES, train_dlrm
from perfmodel.collect.ranks import broadcast_from_first, run_ranks
from perfmodel.collect.records import write_record
from perfmodel.collect.reference import Reference, reference_record
from perfmodel.collect.samples import Ledger
from perfmodel.collect.timing import Budget, summarize, time_steps
from perfmodel.units import BYTES_PER_GB, US_PER_S, human_us

FIRST_WARM_UP, WARM_UP = 4, 2
MIN_PER_ROUND, MAX_PER_ROUND = 3, 12
TARGET_US = 120_000.0
"""Timed steps per round and configuration: as many as fit, within the limits above."""
PROFILED_STEPS, KEPT_STEPS = 16, 8
"""Profiled steps where nothing, and where the traces are kept."""
PROFILE_FIXED_S = 0.5
PROFILE_SLOWDOWN = 3.0
KEPT_S = 2.0


class InterleavedTraining:
    """The models of a ledger's configurations, built once each; `skipped` says why one is not."""

    def __init__(
        self, backend: Backend, ranks: Ranks, ledger: Ledger, provenance: dict[str, Any]
    ) -> None:
        self.backend, self.ranks, self.ledger = backend, ranks, ledger
        self.skipped: dict[str, str] = {}
        self._room = Room(backend, ranks.world)
        self._reference = Reference(backend)
        self._provenance = provenance
        self._trainings: dict[str, Training] = {}
        self._steps_done: dict[str, int] = {}

    def round(self, budget: Budget, *, first: bool) -> None:
        """A few timed steps of every configuration, those with the fewest rounds first."""
        rounds = {name: len(taken.rounds_us) for name, taken in self.ledger.samples.items()}
        for config in sorted(self.ledger.configs, key=lambda config: rounds[config.name]):
            if broadcast_from_first(self.backend, self.ranks, budget.is_over):
                return
            training = self._training(config)
            if training is not None:
                reference_us = self._reference.read_us()
                taken_us = self._time(config, training, FIRST_WARM_UP if first else WARM_UP)
                self.ledger.samples[config.name].rounds_us.append(taken_us)
                self.ledger.samples[config.name].reference_us.append(reference_us)

    def profile_estimate_s(self) -> float:
        """About how long `profile` would take now."""
        total_s = 0.0
        for config in self.ledger.configs:
            taken = self.ledger.samples[config.name]
            if taken.rounds_us:
                step_s = taken.figures()["p10_us"] / US_PER_S
                total_s += PROFILE_FIXED_S + PROFILE_SLOWDOWN * _profiled(config) * step_s
                total_s += KEPT_S if config.keep_trace else 0.0
        return total_s

    def profile(self, budget: Budget) -> None:
        """One more profiled block of each configuration, those with the fewest steps first.

        The traces of those to keep are of the last block.
        """
        profiled = {name: len(taken.profiled_us) for name, taken in self.ledger.samples.items()}
        for config in sorted(self.ledger.configs, key=lambda config: profiled[config.name]):
            training, taken = self._trainings.get(config.name), self.ledger.samples[config.name]
            if training is None:
                continue
            if broadcast_from_first(self.backend, self.ranks, budget.is_over):
                return
            time_steps(self.backend, training.step, WARM_UP)
            suffix = f"_rank{self.ranks.rank}" if self.ranks.world > 1 else ""
            stem = trace_folder(self.ledger.stem, config) / f"trace{suffix}"
            kept = stem if config.keep_trace else None
            if kept is not None:
                kept.parent.mkdir(exist_ok=True)
            own_us, sizes = profile_block(self.backend, training.step, _profiled(config), kept)
            taken.profiled_us += self._mean_over_ranks(own_us)
            if kept is not None:
                head = trace_head(self.backend, self.ranks, training.description, self._provenance)
                record = head | {
                    "unprofiled": summarize([t for took in taken.rounds_us for t in took]),
                    "profiled": {**summarize(own_us), "step_us": [round(t, 3) for t in own_us]},
                    "profiler_cost_frac": taken.figures()["profiler_cost_frac"],
                    "files_bytes": sizes,
                }
                write_record(stem.with_name(f"{stem.name}.json"), record)

    def _time(self, config: TruthConfig, training: Training, warm_up: int) -> list[float]:
        done = self._steps_done.get(config.name, 0)
        warm_us = time_steps(self.backend, training.step, warm_up, start=done)
        fitting = int(TARGET_US / max(warm_us[-1], 1.0))
        wanted = min(max(fitting, MIN_PER_ROUND), MAX_PER_ROUND)
        count = broadcast_from_first(self.backend, self.ranks, wanted)
        taken_us = time_steps(self.backend, training.step, count, start=done + warm_up)
        self._steps_done[config.name] = done + warm_up + count
        return self._mean_over_ranks(taken_us)

    def _mean_over_ranks(self, own_us: list[float]) -> list[float]:
        """Each step's time averaged over the ranks, which keep step, but not to the microsecond."""
        times = self.backend.torch.tensor(own_us, dtype=self.backend.torch.float64)
        if self.ranks.world > 1:
            times = times.to(self.backend.device)
            self.backend.torch.distributed.all_reduce(times)
            times = times / self.ranks.world
        return [round(value, 1) for value in times.tolist()]

    def _training(self, config: TruthConfig) -> Training | None:
        """The model of `config`; `None`, and a note, where it does not fit on some rank."""
        if config.name in self.skipped:
            return None
        if config.name not in self._trainings:
            needed = config.held_bytes(DISTINCT_BATCHES) / self.ranks.world
            fits = self._room.take(needed)
            if not broadcast_from_first(self.backend, self.ranks, fits):
                self.skipped[config.name] = f"needs {needed / BYTES_PER_GB:.1f} GB per rank"
                return None
            options = Options(preset=config.name, batch=config.batch, zipf_alpha=config.zipf_alpha)
            try:
                self._trainings[config.name] = train_dlrm(
                    self.backend, self.ranks, options, config.dlrm
                )
            except (RuntimeError, MemoryError) as error:
                if self.ranks.world > 1 or not self.backend.out_of_memory(error):
                    raise
                self.skipped[config.name] = "out of memory"
                return None
        return self._trainings[config.name]


def trace_folder(stem: Path, config: TruthConfig) -> Path:
    """Where the traces of `config` are kept: a folder holds the ranks of one job."""
    return stem.with_name(f"{stem.name}_{config.name}")


def _profiled(config: TruthConfig) -> int:
    return KEPT_STEPS if config.keep_trace else PROFILED_STEPS


HELP = "measure the step times of many DLRM configurations, interleaved, as the truth"
SCHEMA = "perfmodel.collect.truth/1"
MAX_ROUNDS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect truth`."""
    add_device(parser)
    parser.add_argument("--configs", type=Path, help="JSON file (default: the bundled list)")
    parser.add_argument("--minutes", type=minutes, default=6.0, help="time to spend (default 6)")
    parser.add_argument("--rounds", type=count, help=f"at most so many (default {MAX_ROUNDS})")
    parser.add_argument(
        "--ranks", type=int, choices=(1, 2), default=1, help="processes (NCCL, or Gloo on CPU)"
    )
    parser.add_argument("--name", default="truth", help="stem of the files; resumed if they exist")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget or the rounds are used up; those already on file go on."""
    listed = arguments.configs
    configs = read_configs(listed) if listed else bundled_configs(arguments.ranks)
    stem = output_folder(arguments.output) / arguments.name
    if listed:
        arguments.configs = Path(listed.name)
    command = restore_command("truth", arguments)
    run_ranks(
        arguments.ranks,
        arguments.device,
        _measure,
        (configs, stem, arguments.minutes, arguments.rounds or MAX_ROUNDS, command),
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
    budget, began_s = Budget(limit_minutes), time.monotonic()
    setting = {
        "device": device_name(backend),
        "ranks": ranks.world,
        "threads_per_rank": backend.threads,
        "torch": backend.torch.__version__,
    }
    ledger = Ledger(stem, configs, setting)
    record = record_head(SCHEMA, command, backend) | {
        "setting": setting,
        "configurations": len(configs),
        "rounds_resumed": ledger.rounds_resumed,
    }
    measured = InterleavedTraining(backend, ranks, ledger, {"command": command})
    try:
        _rounds(measured, most_rounds, budget, began_s + limit_minutes * 60)
        measured.profile(budget)
    finally:
        if ranks.rank == 0:
            ledger.save()
            readings = [each for it in ledger.samples.values() for each in it.reference_us]
            record |= {
                "skipped": measured.skipped,
                "reference": reference_record(readings),
                "elapsed_s": round(time.monotonic() - began_s, 1),
            }
            write_record(stem.with_name(f"{stem.name}_meta.json"), record)
    if ranks.rank == 0:
        _report(ledger, measured.skipped)


def _rounds(measured: InterleavedTraining, most: int, budget: Budget, end_s: float) -> None:
    """Rounds over all configurations, `most` at the most, until what is left of the time is needed
    for profiling."""
    for number in range(most):
        left_s = end_s - time.monotonic()
        done = number > 0 and (budget.is_over or left_s < measured.profile_estimate_s())
        if broadcast_from_first(measured.backend, measured.ranks, done):
            return
        measured.round(budget, first=number == 0)
        if measured.ranks.rank == 0:
            measured.ledger.save()


def _report(ledger: Ledger, skipped: dict[str, str]) -> None:
    rows = []
    for config in ledger.configs:
        figures = ledger.samples[config.name].figures()
        if not figures:
            rows.append((config.name, *["-"] * 4, skipped.get(config.name, "no time left")))
            continue
        profiled, cost = "-", "-"
        if "profiled_p10_us" in figures:
            profiled = human_us(figures["profiled_p10_us"])
            cost = f"{100 * figures['profiler_cost_frac']:+.0f} %"
        times = (human_us(figures["p10_us"]), human_us(figures["median_us"]), profiled, cost)
        rows.append((config.name, *times, f"{figures['steps']} steps"))
    heads = ("configuration", "step", "median", "profiled", "its cost", "of")
    print(table("Step times, 10 % quantile and median", heads, rows))
    wrote(ledger.table, f"step times of {len(ledger.configs)} configurations")
