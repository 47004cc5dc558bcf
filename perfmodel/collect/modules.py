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
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.base.units import NS_PER_US, US_PER_MS
from perfmodel.collect.arguments import Verb, add_common, listed, wrote
from perfmodel.collect.backend import Backend, capture_graph, device_name
from perfmodel.collect.capture import Plan, Recorder, record_steps
from perfmodel.collect.ops import tensors_of
from perfmodel.collect.runs import open_run
from perfmodel.collect.timing import (
    REFERENCE_COLUMNS,
    call_us,
    reference_columns,
    summarize,
    write_table,
)
from perfmodel.errors import PerfmodelError, UsageError

MODES = ("eager", "compiled", "graphs")
WARM_UP_CALLS = 3
MIN_CALLS, MAX_CALLS = 8, 100
TARGET_US = 150_000.0
"""Time per module, mode and clock: as many calls as fit, within the limits above."""
AHEAD_BYTES = 256_000_000
AHEAD_MULTIPLE = 1.5
MAX_AHEAD = 400
"""Memory that is written to keep the device busy while the host runs ahead, and how much longer
than the host needs."""
PROFILED = Plan(warmup=0, unprofiled=2, active=2)
REASON_LENGTH = 160


class Called(NamedTuple):
    """What a module's file gives: a call of it, and what has to be undone before the next."""

    run: Callable[[], Any]
    before: Callable[[], Any] = lambda: None
    parameters: int = 0

    def once(self, number: int) -> None:
        """One call, the `number`th."""
        self.before()
        self.run()


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
    count = sum(parameter.numel() for parameter in parameters)
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

    return Called(train, reset, count) if training else Called(forward, parameters=count)


class ModuleClock:
    """Times calls in three ways: alone on an idle device, its host, and queued behind work."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        if backend.is_gpu:
            torch = backend.torch
            written = torch.zeros(AHEAD_BYTES, dtype=torch.uint8, device=backend.device)
            self._write: Callable[[], Any] = partial(written.add_, 1)
            for _ in range(WARM_UP_CALLS):
                self._write()
            self._write_us = self._call_and_host_us(Called(self._write))[0]

    def measure(self, called: Called) -> dict[str, Any]:
        """Figures of the calls; `device_us` where there is a GPU."""
        began_ns = time.perf_counter_ns()
        for number in range(WARM_UP_CALLS):
            called.once(number)
        self._backend.synchronize()
        first_us = (time.perf_counter_ns() - began_ns) / NS_PER_US / WARM_UP_CALLS
        cost_us = self._call_and_host_us(called)[0]
        calls = int(min(max(TARGET_US / max(cost_us, 1.0), MIN_CALLS), MAX_CALLS))
        taken = np.array([self._call_and_host_us(called) for _ in range(calls)])
        figures, host_us = summarize(list(taken[:, 0])), round(float(np.median(taken[:, 1])), 3)
        measured = {
            "duration_us": figures["p10_us"],
            "median_us": figures["median_us"],
            "mean_us": round(float(taken[:, 0].mean()), 4),
            "p90_us": figures["p90_us"],
            "host_us": host_us,
            "first_calls_us": round(first_us, 1),
            "calls": calls,
        }
        if self._backend.is_gpu:
            ahead = int(min(AHEAD_MULTIPLE * host_us / self._write_us + 2, MAX_AHEAD))
            queued = [
                self._call_and_host_us(called, ahead)[0] for _ in range(max(calls // 2, MIN_CALLS))
            ]
            measured["device_us"] = round(float(np.median(queued)), 3)
        return measured

    def _call_and_host_us(self, called: Called, ahead: int = 0) -> tuple[float, float]:
        """Microseconds of a call from an idle device on, and of its host.

        On a GPU and behind `ahead` writes, all launches are there before it begins.
        """
        called.before()
        if not self._backend.is_gpu:
            taken_us = call_us(called.run)
            return taken_us, taken_us
        if not ahead:
            self._backend.synchronize()
        for _ in range(ahead):
            self._write()
        start, end = (self._backend.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        host_us = call_us(called.run)
        end.record()
        self._backend.synchronize()
        return start.elapsed_time(end) * US_PER_MS, host_us


COLUMNS = (
    *("program", "class", "mode", "training", "device", "torch", "parameters"),
    *("duration_us", "median_us", "mean_us", "p90_us", "host_us", "device_us", "first_calls_us"),
    *("calls", *REFERENCE_COLUMNS),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect modules`."""
    add_common(parser, "modules", 10.0)
    parser.add_argument("programs", nargs="+", type=Path, help="Python files, or folders of them")
    parser.add_argument("--class-name", default="Model", help="default: Model")
    parser.add_argument("--mode", default="eager", help=f"comma-separated, of {', '.join(MODES)}")
    parser.add_argument("--training", action="store_true", help="the backward pass too")
    parser.add_argument("--traces", action="store_true", help="a profile of each module too")


def run(arguments: argparse.Namespace) -> None:
    """Measure module after module until the time is used up; each is on file once measured."""
    arguments.mode = listed("--mode", arguments.mode or "eager", MODES)
    given = vars(arguments).pop("programs")
    programs = list(_programs(given))
    current, stem = open_run("modules", arguments, [path.name for path in given])
    if "graphs" in arguments.mode and not current.backend.is_gpu:
        raise UsageError("--mode graphs needs --device cuda: a CPU has no graphs to launch")
    clock, table = ModuleClock(current.backend), stem.with_name(f"{stem.name}.csv")
    rows: list[dict[str, Any]] = []
    try:
        for path in programs:
            if rows and current.is_over:
                break
            beside = reference_columns([current.read_reference()])
            traces = stem.with_name(f"{stem.name}_traces") / path.stem if arguments.traces else None
            try:
                for row in _measured(current.backend, clock, path, arguments, traces):
                    rows.append({**row, **beside})
            except Exception as error:  # any fault of a user's module: the others go on
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                current.skipped[path.stem] = reason[:REASON_LENGTH]
            gc.collect()
            if current.backend.is_gpu:
                current.backend.torch.cuda.empty_cache()
    finally:
        write_table(table, COLUMNS, rows)
        measured = len({row["program"] for row in rows})
        meta = stem.with_name(f"{stem.name}_meta.json")
        current.write(meta, programs_planned=len(programs), programs=measured)
        skipped = current.skipped
        first = "".join(f" ({name}: {reason})" for name, reason in list(skipped.items())[:1])
        wrote(table, f"{len(rows)} calls of modules; {len(skipped)} could not be measured{first}")


VERB = Verb(
    "time one call of modules in Python files, their host and their device; the files are run",
    add_arguments,
    run,
)


def _measured(
    backend: Backend,
    clock: ModuleClock,
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
            called = called._replace(run=capture_graph(backend, called.run))
        yield {
            "program": path.stem,
            "class": arguments.class_name,
            "mode": mode,
            "training": int(training),
            "device": device_name(backend),
            "torch": backend.torch.__version__,
            "parameters": called.parameters,
            **clock.measure(called),
        }
        if traces is not None and mode == "eager":
            traces.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                recorder = Recorder(backend, PROFILED, Path(folder))
                record_steps(recorder, called.once)
                recorder.keep(traces)


def _programs(paths: Iterable[Path]) -> Iterator[Path]:
    """The files of `paths`, and those of the folders among them."""
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
