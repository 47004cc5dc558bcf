"""`collect ops`: time every operator inside real training steps, without the profiler."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
)
from perfmodel.collect.backend import open_backend
from perfmodel.collect.budget import Budget
from perfmodel.collect.host_probes import probe_rows
from perfmodel.collect.ledger import dims_of
from perfmodel.collect.machine import BusyElsewhere, describe_machine, device_name
from perfmodel.collect.metered import Metered
from perfmodel.collect.op_samples import load_samples, save_samples
from perfmodel.collect.op_table import COLUMNS, STEP_COLUMNS, op_rows, write_table
from perfmodel.collect.records import write_record
from perfmodel.collect.workloads import calibration_workloads, workloads_of_file

HELP = "time every operator inside real training steps, without the profiler"
SCHEMA = "perfmodel.collect.ops/1"
TIMINGS = {"cpu": "dispatch_mode", "cuda": "dispatch_mode_host"}
PER_MINUTE = 24
MAX_ROUNDS = 200
PROBE_SHARE = 0.05


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
    workloads = workloads_of_file(listed) if listed else calibration_workloads(wanted)
    if listed:
        arguments.configs = Path(listed.name)
    setting = {
        "device": device_name(backend),
        "threads_per_rank": backend.threads,
        "torch": backend.torch.__version__,
    }
    store = stem.with_name(f"{stem.name}_samples.npz")
    metered = Metered(backend, workloads, load_samples(store, setting))
    busy = BusyElsewhere()
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "command": restore_command("ops", arguments),
        "machine": describe_machine(backend),
        "setting": setting,
        "configurations_planned": len(workloads),
        "rounds_resumed": metered.rounds,
    }
    probes: list[dict[str, Any]] = []
    try:
        probes = probe_rows(backend, setting["device"], Budget(arguments.minutes * PROBE_SHARE))
        for _ in range(MAX_ROUNDS):
            if not metered.round(budget):
                break
            save_samples(store, metered.samples, setting)
    finally:
        save_samples(store, metered.samples, setting)
        steps = _write_tables(stem, metered, probes, setting, TIMINGS[backend.kind])
        record |= {"configurations": steps, "rounds": metered.rounds, "skipped": metered.skipped}
        record["busy_elsewhere_frac"] = busy.frac()
        record["elapsed_s"] = round(time.monotonic() - began_s, 1)
        write_record(stem.with_name(f"{stem.name}_meta.json"), record)
        print(f"{stem}.csv.gz: operators of {steps} configurations", file=sys.stderr)


def _write_tables(
    stem: Path,
    metered: Metered,
    probes: list[dict[str, Any]],
    setting: dict[str, Any],
    timing: str,
) -> int:
    """Write the table of operators and that of steps; how many configurations they hold."""
    rows, steps = list(probes), []
    for workload in metered.workloads:
        taken = metered.samples.get(workload.name)
        if taken is None or not taken.rounds_us:
            continue
        rows += op_rows(workload.name, taken, setting["device"], timing)
        dims = dims_of(workload.dlrm) if workload.dlrm else {"name": workload.name}
        steps.append(
            {
                "model": workload.model,
                "description": workload.description,
                "ranks": 1,
                **setting,
                **dims,
                **taken.step_figures(),
            }
        )
    write_table(stem.with_name(f"{stem.name}.csv.gz"), COLUMNS, rows)
    write_table(stem.with_name(f"{stem.name}_steps.csv"), STEP_COLUMNS, steps)
    return len(steps)
