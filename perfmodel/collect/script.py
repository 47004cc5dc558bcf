"""Capture a user's own training or inference script: its steps are found, not declared.

A step begins when the module that was called first is called again and, where the script has an
optimizer, the optimizer has stepped since. So the script needs no change.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.capture import (
    PROFILER_WARMUP,
    Plan,
    Profiling,
    keep_traces,
    step_record,
    trace_head,
)
from perfmodel.collect.models import Ranks
from perfmodel.collect.records import write_record
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.units import NS_PER_US


class EnoughSteps(BaseException):
    """Ends the script when everything is captured; no `except Exception` of its own holds it."""


class StepRecorder:
    """Told where each step of a script begins, it times some and profiles those in between."""

    def __init__(self, backend: Backend, plan: Plan, folder: Path) -> None:
        self._backend, self._plan = backend, plan
        self.kineto, self.observed = folder / "kineto.json", folder / "et.json"
        half = max(1, plan.unprofiled // 2)
        phases = {
            "warm_up": plan.warmup,
            "before": half,
            "profiler_warm_up": PROFILER_WARMUP,
            "profiled": plan.active,
            "after": half,
        }
        self._phases = [name for name, steps in phases.items() for _ in range(steps)]
        self.taken_us: dict[str, list[float]] = {name: [] for name in phases}
        self.steps = 0
        self._profiling: Profiling | None = None
        self._began_ns: int | None = None

    @property
    def needed(self) -> int:
        """Whole steps that the script has to make."""
        return len(self._phases)

    def boundary(self) -> None:
        """A step is over, and the next begins; raises `EnoughSteps` when no more are needed."""
        self._backend.synchronize()
        now_ns = time.perf_counter_ns()
        if self._began_ns is not None:
            phase = self._phases[self.steps]
            self.taken_us[phase].append((now_ns - self._began_ns) / NS_PER_US)
            self.steps += 1
            self._turn(phase, self._phases[self.steps] if self.steps < self.needed else "")
        self._began_ns = time.perf_counter_ns()
        if self.steps == self.needed:
            raise EnoughSteps

    def _turn(self, phase: str, following: str) -> None:
        """Start, advance and stop the profilers between two steps."""
        if following == "profiler_warm_up" and self._profiling is None:
            active = self._plan.active
            self._profiling = Profiling(self._backend, active, self.kineto, self.observed)
        elif self._profiling is not None and phase != "after":
            self._profiling.step()
            if following in ("after", ""):
                self._profiling.stop()
                self._profiling = None

    def close(self) -> None:
        """Stop the profilers where the script ended while they ran."""
        if self._profiling is not None:
            self._profiling.stop()
            self._profiling = None


@contextmanager
def watched(torch: Any, boundary: Callable[[], None]) -> Iterator[None]:
    """Inside, `boundary` is called whenever a step of any PyTorch code begins."""
    first_hook = torch.nn.modules.module.register_module_forward_pre_hook
    step_hook = import_module("torch.optim.optimizer").register_optimizer_step_post_hook
    seen = {"optimizer": False, "stepped": False}
    handles: list[Any] = []

    def on_call(module: Any, inputs: Any) -> None:
        if seen["stepped"] or not seen["optimizer"]:
            seen["stepped"] = False
            boundary()

    def on_first_call(module: Any, inputs: Any) -> None:
        handles.pop().remove()
        handles.append(module.register_forward_pre_hook(on_call))
        on_call(module, inputs)

    def on_step(*_: Any) -> None:
        seen["optimizer"] = seen["stepped"] = True

    handles += [step_hook(on_step), first_hook(on_first_call)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace_script(
    backend: Backend, words: list[str], plan: Plan, stem: Path, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Run the script `words[0]` with the arguments after it; write what `capture` writes.

    Under a launcher that sets `RANK` and `WORLD_SIZE` each rank writes its own files. Raises
    `UsageError` where there is no such script, `PerfmodelError` where it makes too few steps.
    """
    script = Path(words[0])
    if not script.is_file():
        raise UsageError(f"{script}: there is no such script")
    ranks = Ranks(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    suffix = f"_rank{ranks.rank}" if ranks.world > 1 else ""
    target = stem.with_name(f"{stem.name}{suffix}")
    with tempfile.TemporaryDirectory() as folder:
        recorder = StepRecorder(backend, plan, Path(folder))
        _run(backend, script, words, recorder)
        if recorder.steps < recorder.needed:
            raise PerfmodelError(
                f"{script.name} ended after {recorder.steps} steps, and {recorder.needed} are "
                "needed: train longer, or lower --warmup, --steps or --active"
            )
        sizes = keep_traces(recorder.kineto, recorder.observed, target)
    taken_us = recorder.taken_us
    workload = {"model": "script", "script": script.name}
    record = {
        **trace_head(backend, ranks, workload, provenance),
        **step_record(taken_us["before"], taken_us["profiled"], taken_us["after"]),
        "files_bytes": sizes,
    }
    write_record(target.with_name(f"{target.name}.json"), record)
    return record


def _run(backend: Backend, script: Path, words: list[str], recorder: StepRecorder) -> None:
    """Run `script` as Python would, until enough of its steps are captured."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(script), *words[1:]], [str(script.parent)]
    try:
        with watched(backend.torch, recorder.boundary):
            runpy.run_path(str(script), run_name="__main__")
    except EnoughSteps:
        pass
    except SystemExit as done:
        if done.code:
            raise PerfmodelError(f"{script.name} ended with status {done.code}") from None
    finally:
        recorder.close()
        sys.argv, sys.path[:] = argv, path
