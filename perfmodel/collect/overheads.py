"""`collect overheads`: what the host pays to call, launch, wait and replay; one probe each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from perfmodel.collect.arguments import (
    add_device,
    count,
    minutes,
    output_folder,
    restore_command,
    table,
    wrote,
)
from perfmodel.collect.backend import Backend, capture_graph, open_backend, record_head
from perfmodel.collect.records import write_record
from perfmodel.collect.reference import Reference, reference_record
from perfmodel.collect.timing import Budget, summarize
from perfmodel.units import NS_PER_US, human_us

GRAPH_KERNELS = 100
SMALL_VALUES = 1024


class Probe(NamedTuple):
    """What is called, and how often per sample."""

    what: str
    run: Callable[[], Any]
    calls: int = 50


def probes_of(backend: Backend) -> dict[str, Probe]:
    """All probes that the device has, by name."""
    torch, device = backend.torch, backend.device
    value, matrix = torch.ones(1, device=device), torch.ones(4, 4, device=device)
    weight = torch.ones(1, device=device, requires_grad=True)
    layer, inputs = torch.nn.Linear(8, 8, device=device), torch.ones(1, 8, device=device)

    def wait_for_op() -> None:
        value.add_(1.0)
        backend.synchronize()

    def backward() -> None:
        weight.grad = None
        (weight * 2.0).backward()

    probes = {
        "clock": Probe("an empty Python call", lambda: None),
        "op": Probe(
            "one in-place op on one value: dispatch, and on a GPU the launch",
            lambda: value.add_(1.0),
        ),
        "op_allocating": Probe(
            "one op on one value that allocates its output", lambda: value + 1.0
        ),
        "view": Probe("an op that launches nothing", lambda: matrix.t()),
        "op_and_wait": Probe("one op on one value, then wait for the device", wait_for_op),
        "item": Probe("`item()`: a blocking copy of one value to the host", lambda: value.item()),
        "module": Probe("a small linear layer through `nn.Module`", lambda: layer(inputs)),
        "backward": Probe("forward and backward of a product of single values", backward),
    }
    return probes | (_gpu_probes(backend) if backend.is_gpu else {})


def _gpu_probes(backend: Backend) -> dict[str, Probe]:
    torch = backend.torch
    event, stream = torch.cuda.Event(), torch.cuda.current_stream()
    event.record()
    pageable, pinned = torch.ones(SMALL_VALUES), torch.ones(SMALL_VALUES).pin_memory()
    value = torch.ones(1, device=backend.device)
    target = torch.empty(SMALL_VALUES, device=backend.device)

    def graph(kernels: int) -> Callable[[], Any]:
        def body() -> None:
            for _ in range(kernels):
                value.add_(1.0)

        return capture_graph(backend, body)

    return {
        "wait_idle": Probe("wait for a device that is idle", backend.synchronize),
        "event_record": Probe("record an event", lambda: event.record()),
        "stream_wait": Probe("let the stream wait for an event", lambda: stream.wait_event(event)),
        "copy_pinned": Probe(
            "copy 4 kB to the device from pinned memory",
            lambda: target.copy_(pinned, non_blocking=True),
        ),
        "copy_pageable": Probe(
            "copy 4 kB to the device from pageable memory", lambda: target.copy_(pageable)
        ),
        "graph_1": Probe("replay a CUDA graph of one small kernel", graph(1)),
        "graph_100": Probe(
            "replay a CUDA graph of 100 small kernels", graph(GRAPH_KERNELS), calls=10
        ),
    }


HELP = "time what the host pays per call: dispatch, launches, waits, small copies, CUDA graphs"
_UNTIL_DONE = "until_done_per_call"
SCHEMA = "perfmodel.collect.overheads/1"
MIN_REPEATS = 5


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
    probes = probes_of(backend)
    budget, reference = Budget(arguments.minutes), Reference(backend)
    readings_us: list[list[float]] = []
    host_us: dict[str, list[float]] = {name: [] for name in probes}
    total_us: dict[str, list[float]] = {name: [] for name in probes}
    try:
        for number in range(arguments.repeats):
            if number >= MIN_REPEATS and budget.is_over:
                break
            readings_us.append(reference.read_us())
            for name, probe in probes.items():
                host, total = _time_calls(backend, probe)
                host_us[name].append(host)
                total_us[name].append(total)
    finally:
        record = record_head(SCHEMA, restore_command("overheads", arguments), backend) | {
            "reference": reference_record(readings_us),
            "probes": {
                name: {
                    "what": probe.what,
                    "calls": probe.calls,
                    "repeats": len(host_us[name]),
                    "host_per_call": summarize(host_us[name]),
                    _UNTIL_DONE: summarize(total_us[name]),
                }
                for name, probe in probes.items()
                if host_us[name]
            },
        }
        path = folder / f"{arguments.name}.json"
        write_record(path, record)
        wrote(path, "host times of calls")
    rows = [
        (name, *(human_us(values[key]["p10_us"]) for key in ("host_per_call", _UNTIL_DONE)))
        for name, values in record["probes"].items()
    ]
    print(table("Time per call, 10 % quantile", ("call", "host", "until done"), rows))


def _time_calls(backend: Backend, probe: Probe) -> tuple[float, float]:
    """Microseconds per call of `probe.calls` calls: of the host, and until the device is done."""
    call = probe.run
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
