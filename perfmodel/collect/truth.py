"""`collect truth`: step times of many DLRM configurations, trained in turns."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from perfmodel.base.units import human_us
from perfmodel.collect.arguments import (
    Verb,
    add_common,
    count,
    output_folder,
    restore_command,
    table,
    wrote,
)
from perfmodel.collect.backend import Backend, device_name
from perfmodel.collect.models import Ranks
from perfmodel.collect.models.configuration import ONE_RANK, TWO_RANKS, TruthConfig, read_configs
from perfmodel.collect.records import write_table
from perfmodel.collect.runs import Run, run_ranks
from perfmodel.collect.samples import TRUTH_COLUMNS, Pace, Store, Turns
from perfmodel.collect.workloads import dlrm_workload

PACE = Pace(warm_up=2, target_us=120_000.0, least=3, most=12)
STEPS_SCHEMA = "perfmodel.collect.truth.steps/2"
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
    """Measure until the budget or the rounds are used up; those already on file go on."""
    listed = arguments.configs
    bundled = ONE_RANK if arguments.ranks == 1 else TWO_RANKS
    configs = read_configs(listed) if listed else bundled
    stem = output_folder(arguments.output) / arguments.name
    if listed:
        arguments.configs = Path(listed.name)
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
    setting = {
        "device": device_name(backend),
        "ranks": ranks.world,
        "threads_per_rank": backend.threads,
        "torch": backend.torch.__version__,
    }
    workloads = [dlrm_workload(config) for config in configs]
    store = Store(stem.with_name(f"{stem.name}_steps.json"), STEPS_SCHEMA, setting)
    turns = Turns(current, ranks, workloads, store.load(workloads), PACE)
    resumed = turns.rounds
    try:
        for _ in range(most_rounds):
            if not turns.round():
                break
            if ranks.rank == 0:
                store.save(turns.samples, workloads)
    finally:
        if ranks.rank == 0:
            store.save(turns.samples, workloads)
            path = stem.with_name(f"{stem.name}.csv")
            rows = table_rows(turns)
            write_table(path, TRUTH_COLUMNS, rows)
            current.write(
                stem.with_name(f"{stem.name}_meta.json"),
                setting=setting,
                configurations=len(configs),
                rounds_resumed=resumed,
            )
            print(table("Step times, 10 % quantile and median", HEADS, _lines(turns)))
            wrote(path, f"step times of {len(rows)} configurations")


def table_rows(turns: Turns) -> list[dict[str, Any]]:
    """A row per workload with rounds: its dims and its figures."""
    backend, rows = turns.backend, []
    setting = {"device": device_name(backend), "ranks": turns.ranks.world}
    setting["threads_per_rank"] = backend.threads
    for workload in turns.workloads:
        taken = turns.samples.get(workload.name)
        if taken is not None and taken.rounds_us:
            rows.append({"model": workload.model, **setting, **workload.dims, **taken.figures()})
    return rows


HEADS = ("configuration", "step", "median", "of")


def _lines(turns: Turns) -> list[tuple[str, ...]]:
    known = {row["name"]: row for row in table_rows(turns)}
    lines: list[tuple[str, ...]] = []
    for workload in turns.workloads:
        figures = known.get(workload.name)
        if figures is None:
            reason = turns.run.skipped.get(workload.name, "no time left")
            lines.append((workload.name, "-", "-", reason))
        else:
            times = (human_us(figures["p10_us"]), human_us(figures["median_us"]))
            lines.append((workload.name, *times, f"{figures['steps']} steps"))
    return lines
