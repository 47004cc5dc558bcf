"""`collect kernels`: microbenchmarks of kernel families into the measurement table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import add_device, minutes, output_folder, restore_command
from perfmodel.collect.backend import open_backend
from perfmodel.collect.bench import Bench
from perfmodel.collect.budget import Budget, informative_order
from perfmodel.collect.families import FAMILIES, Scope, load_families, scope_of
from perfmodel.collect.machine import BusyElsewhere, describe_machine, gpu_state
from perfmodel.collect.models.configuration import parse_histogram
from perfmodel.collect.records import write_record
from perfmodel.collect.stopwatch import CACHES
from perfmodel.collect.table import Table
from perfmodel.errors import UsageError

HELP = "time kernels of every family on this machine, the most informative shapes first"
SCHEMA = "perfmodel.collect.kernels/1"
ALL = "all"
BLOCK_MEMORY_SHARE = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect kernels`."""
    add_device(parser)
    parser.add_argument(
        "--families",
        default=ALL,
        help=f"comma-separated, of {', '.join(load_families())} (default: {ALL})",
    )
    parser.add_argument("--dtypes", help="comma-separated, of those that the machine has")
    parser.add_argument(
        "--histogram",
        help="reuse of embedding rows: LOOKUPS:ROWS shares, as in '0.9:0.1 0.1:0.9'",
    )
    parser.add_argument("--minutes", type=minutes, default=10.0, help="time to spend (default 10)")
    parser.add_argument("--cache", choices=(*CACHES, "both"), default="both")
    parser.add_argument("--threads", type=int, help="intra-op threads of the CPU")
    parser.add_argument("--name", default="kernels", help="stem of the CSV; resumed if it exists")


def run(arguments: argparse.Namespace) -> None:
    """Measure until the budget is used up; rows already in the CSV are not measured again."""
    families = chosen_families(arguments.families)
    backend = open_backend(arguments.device, threads=arguments.threads)
    folder = output_folder(arguments.output)
    path = folder / f"{arguments.name}.csv"
    budget = Budget(arguments.minutes)
    caches = CACHES if arguments.cache == "both" else (arguments.cache,)
    scope = scope_of(backend)
    if arguments.histogram:
        parse_histogram(arguments.histogram)
        scope = replace(scope, histograms=(arguments.histogram,))
    if arguments.dtypes:
        scope = replace(scope, dtypes=chosen_dtypes(arguments.dtypes, scope))
    cases = informative_order({name: list(FAMILIES[name].cases(scope)) for name in families})
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "command": restore_command("kernels", arguments),
        "machine": describe_machine(backend),
        "cases_planned": len(cases),
    }
    table = Table(path)
    resumed = len(table)
    busy = BusyElsewhere()
    bench = Bench(backend, table, budget, caches)
    try:
        bench.measure_floors()
        bench.measure(cases, scope.max_bytes * BLOCK_MEMORY_SHARE)
    finally:
        record["gpu_state_at_end"] = gpu_state(backend)
        record["busy_elsewhere_frac"] = busy.frac()
        record["rows"] = len(table)
        record["rows_resumed"] = resumed
        record["skipped"] = bench.skipped
        write_record(_record_path(path), record)
        print(
            f"{path}: {len(table)} rows, {len(table) - resumed} of them new; "
            f"{sum(bench.skipped.values())} of {len(cases)} cases cannot run here",
            file=sys.stderr,
        )


def chosen_families(text: str) -> list[str]:
    """Family names of the comma-separated `text`; `PerfmodelError` for an unknown one."""
    load_families()
    if text == ALL:
        return list(FAMILIES)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        FAMILIES[name]
    return names or list(FAMILIES)


def chosen_dtypes(text: str, scope: Scope) -> tuple[str, ...]:
    """The dtypes of the comma-separated `text`; `UsageError` for one that the machine lacks."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in scope.dtypes:
            raise UsageError(f"--dtypes {name}: this machine has {', '.join(scope.dtypes)}")
    return names or scope.dtypes


def _record_path(table: Path) -> Path:
    return table.with_name(f"{table.stem}_meta.json")
