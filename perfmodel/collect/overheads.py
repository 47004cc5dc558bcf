"""`collect overheads`: what the host pays to call, launch, wait and replay; `collect reference`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from perfmodel.base.units import human_us
from perfmodel.collect.arguments import Verb, add_common, count, table, wrote
from perfmodel.collect.backend import Backend, capture_graph
from perfmodel.collect.records import PARTS
from perfmodel.collect.runs import open_run
from perfmodel.collect.timing import loop_us, reference_record, summarize

GRAPH_KERNELS = 100
SMALL_VALUES = 1024
MIN_REPEATS = 5


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect overheads`."""
    add_common(parser, "overheads", 3.0)
    parser.add_argument("--repeats", type=count, default=100, help="interleaved rounds at most")


def run(arguments: argparse.Namespace) -> None:
    """Measure every probe that the device has, in turns, and write one JSON record."""
    current, stem = open_run("overheads", arguments)
    probes = probes_of(current.backend)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in probes}
    records: dict[str, Any] = {}
    path = stem.with_name(f"{stem.name}.json")
    try:
        for number in range(arguments.repeats):
            if number >= MIN_REPEATS and current.budget.is_over:
                break
            current.read_reference()
            for name, probe in probes.items():
                probe.run()
                taken[name].append(loop_us(current.backend, probe.run, probe.calls))
    finally:
        for name, samples in taken.items():
            if samples:
                host_us, total_us = zip(*samples, strict=True)
                records[name] = {
                    "what": probes[name].what,
                    "calls": probes[name].calls,
                    "repeats": len(samples),
                    "host_per_call": summarize(host_us),
                    "until_done_per_call": summarize(total_us),
                }
        current.write(path, probes=records)
        wrote(path, "host times of calls")
    columns = ("host_per_call", "until_done_per_call")
    rows = [
        (name, *(human_us(values[key]["p10_us"]) for key in columns))
        for name, values in records.items()
    ]
    print(table("Time per call, 10 % quantile", ("call", "host", "until done"), rows))


def add_reference_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect reference`."""
    add_common(parser, "reference", 0.2)


def run_reference(arguments: argparse.Namespace) -> None:
    """Read the reference work until the time is used up, and write one JSON record."""
    current, stem = open_run("reference", arguments)
    while not current.readings_us or not current.budget.is_over:
        current.read_reference(evict=True)
    path = stem.with_name(f"{stem.name}.json")
    current.write(path)
    record = reference_record(current.readings_us)
    parts = (f"{part} {human_us(record[part]['p10_us'])}" for part in PARTS)
    wrote(path, f"{', '.join(parts)}, {len(current.readings_us)} readings")


VERB = Verb(
    "time what the host pays per call: dispatch, launches, waits, small copies, CUDA graphs",
    add_arguments,
    run,
)
REFERENCE_VERB = Verb(
    "time the reference work alone: has this machine changed its speed since a calibration?",
    add_reference_arguments,
    run_reference,
)
