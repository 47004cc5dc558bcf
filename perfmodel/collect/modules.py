"""`collect modules`: one call of whole PyTorch modules, as `predict FILE.py:CLASS` means it.

A file has a class, `get_inputs()` and perhaps `get_init_inputs()`; it is executed. Beside the call
on an idle device stand what its host alone and what its device alone took, which tell an error of
the host's model from one of the kernels'.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfmodel.collect.arguments import (
    add_device,
    listed,
    minutes,
    output_folder,
    restore_command,
    wrote,
)
from perfmodel.collect.backend import (
    Backend,
    BusyElsewhere,
    capture_graph,
    device_name,
    gpu_state,
    open_backend,
    record_head,
)
from perfmodel.collect.capture import profile_block
from perfmodel.collect.records import REFERENCE_COLUMNS, write_record
from perfmodel.collect.reference import Reference, reference_columns, reference_record
from perfmodel.collect.samples import write_table
from perfmodel.collect.timing import Budget, summarize
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.units import NS_PER_US, US_PER_MS

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
PROFILED_CALLS = 2
REASON_LENGTH = 160


class Called(NamedTuple):
    """What a module's file gives: a call of it, and what has to be undone before the next."""

    run: Callable[[], Any]
    before: Callable[[], Any]
    parameters: int


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
        inputs = [_on_device(backend, each) for each in get_inputs()]
    parameters = list(module.parameters())
    called = torch.compile(module) if compiled else module

    def forward() -> Any:
        with torch.no_grad():
            return called(*inputs)

    def train() -> None:
        outputs = [each for each in _tensors(torch, called(*inputs)) if each.requires_grad]
        if not outputs:
            raise PerfmodelError(f"{path.name}: no output depends on a parameter: nothing to train")
        sum(each.float().sum() for each in outputs).backward()

    def reset() -> None:
        for parameter in parameters:
            parameter.grad = None

    count = sum(parameter.numel() for parameter in parameters)
    return Called(train, reset, count) if training else Called(forward, lambda: None, count)


def _on_device(backend: Backend, value: Any) -> Any:
    return value.to(backend.device) if isinstance(value, backend.torch.Tensor) else value


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    is_list = isinstance(value, (list, tuple))
    return [tensor for each in value for tensor in _tensors(torch, each)] if is_list else []


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
            self._write_us = self._alone(self._write, lambda: None)[0]

    def measure(self, called: Called) -> dict[str, Any]:
        """Figures of the calls; `device_us` where there is a GPU."""
        began_ns = time.perf_counter_ns()
        for _ in range(WARM_UP_CALLS):
            called.before()
            called.run()
        self._backend.synchronize()
        first_us = (time.perf_counter_ns() - began_ns) / NS_PER_US / WARM_UP_CALLS
        cost_us = self._alone(called.run, called.before)[0]
        calls = int(min(max(TARGET_US / max(cost_us, 1.0), MIN_CALLS), MAX_CALLS))
        taken = np.array([self._alone(called.run, called.before) for _ in range(calls)])
        figures = summarize(list(taken[:, 0]))
        measured = {
            "duration_us": figures["p10_us"],
            "median_us": figures["median_us"],
            "mean_us": round(float(taken[:, 0].mean()), 4),
            "p90_us": figures["p90_us"],
            "host_us": round(float(np.median(taken[:, 1])), 3),
            "first_calls_us": round(first_us, 1),
            "calls": calls,
        }
        if self._backend.is_gpu:
            host_us = measured["host_us"]
            ahead = int(min(AHEAD_MULTIPLE * host_us / self._write_us + 2, MAX_AHEAD))
            queued = [self._queued(called, ahead) for _ in range(max(calls // 2, MIN_CALLS))]
            measured["device_us"] = round(float(np.median(queued)), 3)
        return measured

    def _alone(self, run: Callable[[], Any], before: Callable[[], Any]) -> tuple[float, float]:
        """Microseconds of a call from an idle device on, and of its host."""
        before()
        self._backend.synchronize()
        if not self._backend.is_gpu:
            began_ns = time.perf_counter_ns()
            run()
            taken_us = (time.perf_counter_ns() - began_ns) / NS_PER_US
            return taken_us, taken_us
        start, end = self._events()
        start.record()
        began_ns = time.perf_counter_ns()
        run()
        host_us = (time.perf_counter_ns() - began_ns) / NS_PER_US
        end.record()
        self._backend.synchronize()
        return start.elapsed_time(end) * US_PER_MS, host_us

    def _queued(self, called: Called, ahead: int) -> float:
        """Microseconds of a call whose launches are all there before its device begins."""
        called.before()
        for _ in range(ahead):
            self._write()
        start, end = self._events()
        start.record()
        called.run()
        end.record()
        self._backend.synchronize()
        return float(start.elapsed_time(end) * US_PER_MS)

    def _events(self) -> tuple[Any, Any]:
        event = self._backend.torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)


HELP = "time one call of modules in Python files, their host and their device; the files are run"
SCHEMA = "perfmodel.collect.modules/1"
COLUMNS = (
    *("program", "class", "mode", "training", "device", "torch", "parameters"),
    *("duration_us", "median_us", "mean_us", "p90_us", "host_us", "device_us", "first_calls_us"),
    *("calls", *REFERENCE_COLUMNS),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect modules`."""
    add_device(parser)
    parser.add_argument("programs", nargs="+", type=Path, help="Python files, or folders of them")
    parser.add_argument("--class-name", default="Model", help="default: Model")
    parser.add_argument("--mode", default="eager", help=f"comma-separated, of {', '.join(MODES)}")
    parser.add_argument("--training", action="store_true", help="the backward pass too")
    parser.add_argument("--traces", action="store_true", help="a profile of each module too")
    parser.add_argument("--minutes", type=minutes, default=10.0, help="time to spend (default 10)")
    parser.add_argument("--name", default="modules", help="stem of the files")


def run(arguments: argparse.Namespace) -> None:
    """Measure module after module until the time is used up; each is on file once measured."""
    modes = listed("--mode", arguments.mode or "eager", MODES)
    programs = list(_programs(arguments.programs))
    backend = open_backend(arguments.device)
    if "graphs" in modes and not backend.is_gpu:
        raise UsageError("--mode graphs needs --device cuda: a CPU has no graphs to launch")
    folder, budget = output_folder(arguments.output), Budget(arguments.minutes)
    names = [path.name for path in vars(arguments).pop("programs")]
    command = " ".join([restore_command("modules", arguments), *map(shlex.quote, names)])
    record = record_head(SCHEMA, command, backend)
    clock, reference, busy = ModuleClock(backend), Reference(backend), BusyElsewhere()
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    readings: list[list[float]] = []
    table = folder / f"{arguments.name}.csv"
    try:
        for path in programs:
            if rows and budget.is_over:
                break
            readings.append(reference.read_us())
            beside = reference_columns(readings[-1:])
            traces = folder / f"{arguments.name}_traces" / path.stem if arguments.traces else None
            try:
                for row in _measured(backend, clock, path, modes, arguments, traces):
                    rows.append({**row, **beside})
            except Exception as error:  # any fault of a user's module: the others go on
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                skipped[path.stem] = reason[:REASON_LENGTH]
            gc.collect()
            if backend.is_gpu:
                backend.torch.cuda.empty_cache()
    finally:
        write_table(table, COLUMNS, rows)
        record |= {
            "programs_planned": len(programs),
            "programs": len({row["program"] for row in rows}),
            "skipped": skipped,
            "gpu_state_at_end": gpu_state(backend),
            "reference": reference_record(readings),
            "busy_elsewhere_frac": busy.frac(),
        }
        write_record(table.with_name(f"{table.stem}_meta.json"), record)
        first = "".join(f" ({name}: {reason})" for name, reason in list(skipped.items())[:1])
        wrote(table, f"{len(rows)} calls of modules; {len(skipped)} could not be measured{first}")


def _measured(
    backend: Backend,
    clock: ModuleClock,
    path: Path,
    modes: Iterable[str],
    arguments: argparse.Namespace,
    traces: Path | None,
) -> Iterator[dict[str, Any]]:
    """A row per mode of the module in the file at `path`; a profile of its eager calls."""
    for mode in modes:
        called = module_call(
            backend,
            path,
            arguments.class_name,
            compiled=mode == "compiled",
            training=arguments.training,
        )
        if mode == "graphs":
            called = called._replace(run=capture_graph(backend, called.run))
        yield {
            "program": path.stem,
            "class": arguments.class_name,
            "mode": mode,
            "training": int(arguments.training),
            "device": device_name(backend),
            "torch": backend.torch.__version__,
            "parameters": called.parameters,
            **clock.measure(called),
        }
        if traces is not None and mode == "eager":
            traces.parent.mkdir(exist_ok=True)
            profile_block(backend, partial(_once, called), PROFILED_CALLS, traces)


def _once(called: Called, number: int) -> None:
    called.before()
    called.run()


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
