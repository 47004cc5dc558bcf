"""`collect truth`: step times of many DLRM configurations, for predictions to be held against."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import add_device, count, minutes, output_folder, restore_command
from perfmodel.collect.backend import Backend
from perfmodel.collect.budget import Budget
from perfmodel.collect.interleave import Interleaved, agree
from perfmodel.collect.ledger import Ledger
from perfmodel.collect.machine import describe_machine, device_name
from perfmodel.collect.models import Ranks
from perfmodel.collect.models.truths import TruthConfig, bundled, read_configs
from perfmodel.collect.ranks import run_ranks
from perfmodel.collect.records import write_record
from perfmodel.units import human_us

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
    configs = read_configs(listed) if listed else bundled(arguments.ranks)
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
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "machine": describe_machine(backend),
        "setting": setting,
        "configurations": len(configs),
        "rounds_resumed": ledger.rounds_resumed,
    }
    measured = Interleaved(backend, ranks, ledger, {"command": command})
    try:
        _rounds(measured, most_rounds, budget, began_s + limit_minutes * 60)
        measured.profile(budget)
    finally:
        if ranks.rank == 0:
            ledger.save()
            record["skipped"] = measured.skipped
            record["elapsed_s"] = round(time.monotonic() - began_s, 1)
            write_record(stem.with_name(f"{stem.name}_meta.json"), record)
    if ranks.rank == 0:
        _report(ledger, measured.skipped)


def _rounds(measured: Interleaved, most: int, budget: Budget, end_s: float) -> None:
    """Rounds over all configurations, `most` at the most, until what is left of the time is needed
    for profiling."""
    for number in range(most):
        left_s = end_s - time.monotonic()
        done = number > 0 and (budget.is_over or left_s < measured.profile_estimate_s())
        if agree(measured.backend, measured.ranks, done):
            return
        measured.round(budget, first=number == 0)
        if measured.ranks.rank == 0:
            measured.ledger.save()


def _report(ledger: Ledger, skipped: dict[str, str]) -> None:
    for config in ledger.configs:
        found = ledger.samples[config.name].figures()
        if not found:
            print(f"{config.name:20} {skipped.get(config.name, 'no time left')}")
            continue
        seen = "not profiled"
        if "profiled_p10_us" in found:
            cost_pct = 100 * found["profiler_cost_frac"]
            seen = f"profiled {human_us(found['profiled_p10_us'])} ({cost_pct:+.0f} %)"
        print(
            f"{config.name:20} step {human_us(found['p10_us'])} (median "
            f"{human_us(found['median_us'])}, {found['steps']} steps), {seen}"
        )
    print(f"{ledger.table}: {len(ledger.configs)} configurations", file=sys.stderr)
