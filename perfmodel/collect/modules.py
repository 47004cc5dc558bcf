"""`collect modules`: one call of whole PyTorch modules, as `predict FILE.py:CLASS` means it.

A file has a class, `get_inputs()` and perhaps `get_init_inputs()`; it is executed. Beside the call
on an idle device stand what its host alone and what its device alone took, which tell an error of
the host's model from one of the kernels'.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.collect.backend import Backend, device_name, open_backend
from perfmodel.collect.capture import Recorder, record_steps
from perfmodel.collect.runs import Run, add_common, listed
from perfmodel.collect.timing import Stopwatch, summarize
from perfmodel.errors import PerfmodelError, UsageError

MODES = ("eager", "compiled", "graphs")
WARM_UP_CALLS = 3
MIN_CALLS, MAX_CALLS = 8, 100
TARGET_US = 150_000.0
"""Time per module, mode and clock: as many calls as fit, within the limits above."""
AHEAD_MULTIPLE, MAX_AHEAD = 1.5, 400
"""How often caches are emptied to keep the device busy while the host runs ahead: for how much
longer than the host needs, and at most."""
REASON_LENGTH = 160


class Called(NamedTuple):
    """What a module's file gives: a call of it, and what has to be undone before the next."""

    run: Callable[[], Any]
    before: Callable[[], Any] = lambda: None

    def once(self, number: int) -> None:
        self.before()
        self.run()


def tensors_of(torch: Any, values: Any) -> Iterator[Any]:
    """Every tensor among `values` and in lists and dictionaries among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors_of(torch, value.values() if isinstance(value, dict) else value)


def module_call(
    backend: Backend, path: Path, class_name: str, *, compiled: bool = False, training: bool = False
) -> Called:
    """The module of `class_name` in the file at `path` on the device, with its inputs.

    With `training`, a call is forward and the backward pass of the sum of its outputs, in fp32.
    Raises `PerfmodelError` where the file has no such class or inputs.
    """
    torch = backend.torch
    spec = importlib.util.spec_from_file_location("_perfmodel_measured", path)
    if spec is None or spec.loader is None:
        raise PerfmodelError(f"{path.name}: cannot be read as Python")
    source = importlib.util.module_from_spec(spec)
    with torch.device(backend.device):
        spec.loader.exec_module(source)
        made, get_inputs = getattr(source, class_name, None), getattr(source, "get_inputs", None)
        if made is None or get_inputs is None:
            raise PerfmodelError(f"{path.name}: has no {'get_inputs()' if made else class_name}")
        get_init_inputs = getattr(source, "get_init_inputs", list)
        module = made(*get_init_inputs()).to(backend.device)
        inputs = [
            each.to(backend.device) if isinstance(each, torch.Tensor) else each
            for each in get_inputs()
        ]
    parameters = list(module.parameters())
    called = torch.compile(module) if compiled else module

    def forward() -> Any:
        with torch.no_grad():
            return called(*inputs)

    def train() -> None:
        outputs = [each for each in tensors_of(torch, [called(*inputs)]) if each.requires_grad]
        if not outputs:
            raise PerfmodelError(f"{path.name}: no output depends on a parameter: nothing to train")
        sum(each.float().sum() for each in outputs).backward()

    def reset() -> None:
        for parameter in parameters:
            parameter.grad = None

    return Called(train, reset) if training else Called(forward)


def figures_of(backend: Backend, stopwatch: Stopwatch, called: Called) -> dict[str, Any]:
    """Figures of the calls from an idle device on; `device_us`, where there is a GPU, is of calls
    whose launches are all there before they begin."""

    def on_idle_device() -> None:
        called.before()
        backend.synchronize()

    cost_us = stopwatch.samples(called.run, WARM_UP_CALLS, on_idle_device)[-1][0]
    calls = int(min(max(TARGET_US / max(cost_us, 1.0), MIN_CALLS), MAX_CALLS))
    taken = np.array(stopwatch.samples(called.run, calls, on_idle_device))
    figures, host_us = summarize(list(taken[:, 0])), round(float(np.median(taken[:, 1])), 3)
    measured = {
        "duration_us": figures["p10_us"],
        "median_us": figures["median_us"],
        "p90_us": figures["p90_us"],
        "host_us": host_us,
        "calls": calls,
    }
    if backend.is_gpu:
        flush_us = stopwatch.samples(stopwatch.flush, WARM_UP_CALLS, backend.synchronize)[-1][0]
        ahead = int(min(AHEAD_MULTIPLE * host_us / flush_us + 2, MAX_AHEAD))

        def behind_work() -> None:
            on_idle_device()
            for _ in range(ahead):
                stopwatch.flush()

        queued = stopwatch.samples(called.run, max(calls // 2, MIN_CALLS), behind_work)
        measured["device_us"] = round(float(np.median(np.array(queued)[:, 0])), 3)
    return measured


def graphed(backend: Backend, run: Callable[[], Any]) -> Callable[[], None]:
    """What replays `run` in a CUDA graph, warmed up on a side stream and captured once.

    Raises `UsageError` where `run` does something that a graph cannot hold.
    """
    cuda = backend.torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UP_CALLS):
            run()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            run()
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"this cannot be captured into a CUDA graph: {reason}") from None
    return lambda: graph.replay()


COLUMNS = (
    *("program", "class", "mode", "training", "device", "torch"),
    *("duration_us", "median_us", "p90_us", "host_us", "device_us", "calls"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "modules", 10.0)
    parser.add_argument("programs", nargs="+", type=Path, help="Python files, or folders of them")
    parser.add_argument("--class-name", default="Model", help="default: Model")
    parser.add_argument("--mode", default="eager", help=f"comma-separated, of {', '.join(MODES)}")
    parser.add_argument("--training", action="store_true", help="the backward pass too")
    parser.add_argument("--traces", action="store_true", help="a profile of each module too")


def run(arguments: argparse.Namespace) -> None:
    arguments.mode = listed("--mode", arguments.mode or "eager", MODES)
    programs = list(_programs(arguments.programs))
    current = Run("modules", arguments, open_backend(arguments.device))
    backend = current.backend
    rows: list[dict[str, Any]] = []
    if "graphs" in arguments.mode and not backend.is_gpu:
        raise UsageError("--mode graphs needs --device cuda: a CPU has no graphs to launch")
    stopwatch = Stopwatch(backend)
    try:
        for path in programs:
            if rows and current.is_over:
                break
            traces = current.path("_traces") / path.stem if arguments.traces else None
            try:
                rows.extend(_measured(backend, stopwatch, path, arguments, traces))
            except Exception as error:  # any fault of a user's module: the others go on
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                current.skipped[path.stem] = reason[:REASON_LENGTH]
            gc.collect()
            if backend.is_gpu:
                backend.torch.cuda.empty_cache()
    finally:
        measured = len({row["program"] for row in rows})
        current.write(
            COLUMNS, rows, "calls of modules", programs_planned=len(programs), programs=measured
        )


def _measured(
    backend: Backend,
    stopwatch: Stopwatch,
    path: Path,
    arguments: argparse.Namespace,
    traces: Path | None,
) -> Iterator[dict[str, Any]]:
    """A row per mode of the module in the file at `path`; a profile of its eager calls."""
    training = bool(arguments.training)
    for mode in arguments.mode:
        called = module_call(
            backend, path, arguments.class_name, compiled=mode == "compiled", training=training
        )
        if mode == "graphs":
            called = called._replace(run=graphed(backend, called.run))
        yield {
            "program": path.stem,
            "class": arguments.class_name,
            "mode": mode,
            "training": int(training),
            "device": device_name(backend),
            "torch": backend.torch.__version__,
            **figures_of(backend, stopwatch, called),
        }
        if traces is not None and mode == "eager":
            traces.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                recorder = Recorder(backend, Path(folder), warmup=0, steps=2, active=2)
                record_steps(recorder, called.once)
                recorder.keep(traces)


def _programs(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(path.glob("*.py"))
            if not found:
                raise UsageError(f"{path}: no Python file in it")
            yield from found
        elif path.is_file():
            yield path
        else:
            raise UsageError(f"{path}: no such file")
