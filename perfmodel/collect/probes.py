"""The calls whose host overhead is measured; a new one is one function with a decorator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.graphs import capture_graph
from perfmodel.registry import Registry

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
