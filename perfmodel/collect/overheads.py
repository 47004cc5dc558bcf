"""`collect overheads`: what the host pays to call, launch, wait and replay."""

from __future__ import annotations

import argparse
import time
from typing import Any

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
)
from perfmodel.collect.backend import Backend, open_backend
from perfmodel.collect.budget import Budget
from perfmodel.collect.machine import describe_machine
from perfmodel.collect.probes import PROBES, Probe
from perfmodel.collect.records import write_record
from perfmodel.collect.timing import summarize
from perfmodel.units import NS_PER_US, human_us

HELP = "time what the host pays per call: dispatch, launches, waits, small copies, CUDA graphs"
SCHEMA = "perfmodel.collect.overheads/1"
LEAST_REPEATS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect overheads`."""
    add_device(parser)
    parser.add_argument("--repeats", type=count, default=100, help="interleaved rounds at most")
    parser.add_argument("--minutes", type=minutes, default=3.0, help="time to spend (default 3)")
    parser.add_argument("--name", default="overheads", help="stem of the JSON file")


def run(arguments: argparse.Namespace) -> None:
    """Measure every probe that the device has, in turns, and write one JSON record."""
    backend = open_backend(arguments.device)
    folder = output_folder(arguments.output)
    probes = {name: PROBES[name] for name in PROBES if backend.is_gpu or not PROBES[name].gpu_only}
    calls = {name: probe.make(backend) for name, probe in probes.items()}
    budget = Budget(arguments.minutes)
    host_us: dict[str, list[float]] = {name: [] for name in probes}
    total_us: dict[str, list[float]] = {name: [] for name in probes}
    try:
        for number in range(arguments.repeats):
            if number >= LEAST_REPEATS and budget.is_over:
                break
            for name, call in calls.items():
                host, total = _time_calls(backend, probes[name], call)
                host_us[name].append(host)
                total_us[name].append(total)
    finally:
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "command": restore_command("overheads", arguments),
            "machine": describe_machine(backend),
            "probes": {
                name: {
                    "what": probe.what,
                    "calls": probe.calls,
                    "repeats": len(host_us[name]),
                    "host_per_call": summarize(host_us[name]),
                    "until_done_per_call": summarize(total_us[name]),
                }
                for name, probe in probes.items()
                if host_us[name]
            },
        }
        write_record(folder / f"{arguments.name}.json", record)
    for name, values in record["probes"].items():
        host, total = values["host_per_call"]["p10_us"], values["until_done_per_call"]["p10_us"]
        print(f"{name:20} {human_us(host):>10} host, {human_us(total):>10} until done")


def _time_calls(backend: Backend, probe: Probe, call: Any) -> tuple[float, float]:
    """Microseconds per call of `probe.calls` calls: of the host, and until the device is done."""
    call()
    backend.synchronize()
    start_ns = time.perf_counter_ns()
    for _ in range(probe.calls):
        call()
    called_ns = time.perf_counter_ns()
    backend.synchronize()
    done_ns = time.perf_counter_ns()
    per_call = NS_PER_US * probe.calls
    return (called_ns - start_ns) / per_call, (done_ns - start_ns) / per_call
