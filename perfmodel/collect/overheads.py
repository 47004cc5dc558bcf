"""`collect overheads`: what the host pays to call, launch, wait and replay; one probe each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.collect.arguments import add_device, count, minutes, output_folder, restore_command
from perfmodel.collect.backend import Backend, capture_graph, open_backend
from perfmodel.collect.machine import describe_machine
from perfmodel.collect.records import write_record
from perfmodel.collect.reference import Reference, reference_record
from perfmodel.collect.timing import Budget, summarize
from perfmodel.registry import Registry
from perfmodel.units import NS_PER_US, human_us

GRAPH_KERNELS = 100
SMALL_VALUES = 1024
Maker = Callable[[Backend], Callable[[], Any]]


@dataclass(frozen=True)
class Probe:
    """What is called, how often per sample, and whether only a GPU has it."""

    what: str
    make: Maker
    calls: int
    gpu_only: bool


PROBES: Registry[Probe] = Registry("overhead probe")


def _probe(name: str, what: str, *, calls: int = 50, gpu_only: bool = False) -> Callable[..., Any]:
    def add(make: Maker) -> Maker:
        PROBES.register(name)(Probe(what, make, calls, gpu_only))
        return make

    return add


@_probe("clock", "an empty Python call")
def _clock(backend: Backend) -> Callable[[], Any]:
    return lambda: None


@_probe("op", "one in-place op on one value: dispatch, and on a GPU the launch")
def _op(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device)
    return lambda: value.add_(1.0)


@_probe("op_allocating", "one op on one value that allocates its output")
def _op_allocating(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device)
    return lambda: value + 1.0


@_probe("view", "an op that launches nothing")
def _view(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(4, 4, device=backend.device)
    return lambda: value.t()


@_probe("op_and_wait", "one op on one value, then wait for the device")
def _op_and_wait(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device)

    def call() -> None:
        value.add_(1.0)
        backend.synchronize()

    return call


@_probe("item", "`item()`: a blocking copy of one value to the host")
def _item(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device)
    return lambda: value.item()


@_probe("module", "a small linear layer through `nn.Module`")
def _module(backend: Backend) -> Callable[[], Any]:
    layer = backend.torch.nn.Linear(8, 8, device=backend.device)
    inputs = backend.torch.ones(1, 8, device=backend.device)
    return lambda: layer(inputs)


@_probe("backward", "forward and backward of a product of single values")
def _backward(backend: Backend) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device, requires_grad=True)

    def call() -> None:
        value.grad = None
        (value * 2.0).backward()

    return call


@_probe("wait_idle", "wait for a device that is idle", gpu_only=True)
def _wait_idle(backend: Backend) -> Callable[[], Any]:
    return backend.synchronize


@_probe("event_record", "record an event", gpu_only=True)
def _event_record(backend: Backend) -> Callable[[], Any]:
    event = backend.torch.cuda.Event()
    return lambda: event.record()


@_probe("stream_wait", "let the stream wait for an event", gpu_only=True)
def _stream_wait(backend: Backend) -> Callable[[], Any]:
    event = backend.torch.cuda.Event()
    event.record()
    stream = backend.torch.cuda.current_stream()
    return lambda: stream.wait_event(event)


@_probe("copy_pinned", "copy 4 kB to the device from pinned memory", gpu_only=True)
def _copy_pinned(backend: Backend) -> Callable[[], Any]:
    host = backend.torch.ones(SMALL_VALUES).pin_memory()
    target = backend.torch.empty(SMALL_VALUES, device=backend.device)
    return lambda: target.copy_(host, non_blocking=True)


@_probe("copy_pageable", "copy 4 kB to the device from pageable memory", gpu_only=True)
def _copy_pageable(backend: Backend) -> Callable[[], Any]:
    host = backend.torch.ones(SMALL_VALUES)
    target = backend.torch.empty(SMALL_VALUES, device=backend.device)
    return lambda: target.copy_(host)


@_probe("graph_1", "replay a CUDA graph of one small kernel", gpu_only=True)
def _graph_1(backend: Backend) -> Callable[[], Any]:
    return _graph(backend, 1)


@_probe("graph_100", "replay a CUDA graph of 100 small kernels", calls=10, gpu_only=True)
def _graph_100(backend: Backend) -> Callable[[], Any]:
    return _graph(backend, GRAPH_KERNELS)


def _graph(backend: Backend, kernels: int) -> Callable[[], Any]:
    value = backend.torch.ones(1, device=backend.device)

    def body() -> None:
        for _ in range(kernels):
            value.add_(1.0)

    return capture_graph(backend, body)


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
    budget, reference = Budget(arguments.minutes), Reference(backend)
    readings_us: list[list[float]] = []
    host_us: dict[str, list[float]] = {name: [] for name in probes}
    total_us: dict[str, list[float]] = {name: [] for name in probes}
    try:
        for number in range(arguments.repeats):
            if number >= LEAST_REPEATS and budget.is_over:
                break
            readings_us.append(reference.read_us())
            for name, call in calls.items():
                host, total = _time_calls(backend, probes[name], call)
                host_us[name].append(host)
                total_us[name].append(total)
    finally:
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "command": restore_command("overheads", arguments),
            "machine": describe_machine(backend),
            "reference": reference_record(readings_us),
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
