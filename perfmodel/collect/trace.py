"""`collect trace`: a few steps of a reference model, or of a user's own script, in traces.

Of a script, steps are found, not declared: one begins when the module that was called first is
called again and, where the script has an optimizer, the optimizer has stepped since.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import add_device, count, output_folder, restore_command
from perfmodel.collect.backend import Backend, capture_graph, open_backend
from perfmodel.collect.capture import (
    PROFILER_WARMUP,
    Plan,
    Profiling,
    capture,
    keep_traces,
    step_record,
    trace_head,
)
from perfmodel.collect.models import MODELS, Options, Ranks, Training
from perfmodel.collect.ranks import run_ranks
from perfmodel.collect.records import write_record
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.units import NS_PER_US, human_us


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


def with_graph(backend: Backend, training: Training) -> Training:
    """`training` with its compute part replayed from a CUDA graph."""
    if not backend.is_gpu:
        raise UsageError("--cuda-graph needs --device cuda: a CPU has no graphs to launch")
    load, compute = training.load, training.compute
    if load is None or compute is None:
        raise UsageError(
            "--cuda-graph: this model cannot be captured; use --model dlrm "
            "--embedding-update inplace"
        )
    load(0)
    replay = capture_graph(backend, compute)

    def step(number: int) -> None:
        load(number)
        replay()

    return replace(training, step=step, description={**training.description, "cuda_graph": True})


HELP = "capture Kineto and execution traces of a reference model, with un-profiled step times"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `collect trace`."""
    add_device(parser)
    add_model_options(parser)
    parser.add_argument("--ranks", type=count, default=1, help="processes (NCCL, or Gloo on CPU)")
    parser.add_argument("--warmup", type=count, default=10, help="steps before any measurement")
    parser.add_argument("--steps", type=count, default=40, help="un-profiled steps to time")
    parser.add_argument("--active", type=count, default=6, help="profiled steps")
    parser.add_argument("--cuda-graph", action="store_true", help="replay the step from a graph")
    parser.add_argument("--name", help="stem of the files (default: model_preset_batch)")
    parser.add_argument(
        "script",
        nargs="*",
        help="after `--`: a Python script of your own and its arguments, traced instead of a model",
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose a model."""
    parser.add_argument("--model", default="dlrm", help=f"one of {', '.join(MODELS)}")
    parser.add_argument("--preset", default="", help="configuration of the model")
    parser.add_argument("--batch", type=count, default=512, help="samples per rank")
    parser.add_argument("--max-rows", type=count, help="cap on the rows of every table")
    parser.add_argument("--pooling", type=count, help="lookups per sample and table")
    parser.add_argument("--zipf", type=float, default=0.0, help="skew of the indices, 0 = uniform")
    parser.add_argument(
        "--embedding-update",
        default="sparse",
        help="dlrm: `sparse` gradients and SGD, or `inplace` SGD that a CUDA graph can hold",
    )
    parser.add_argument("--seed", type=int, default=0)


def model_options(arguments: argparse.Namespace) -> Options:
    """The `Options` that the command line asks for."""
    names = ("preset", "batch", "max_rows", "pooling", "embedding_update", "seed")
    return Options(**{n: getattr(arguments, n) for n in names}, zipf_alpha=arguments.zipf)


def run(arguments: argparse.Namespace) -> None:
    """Capture, and print one line per rank."""
    MODELS[arguments.model]
    folder = output_folder(arguments.output)
    options = model_options(arguments)
    words = [arguments.model, options.preset, f"b{options.batch}"]
    plan = Plan(arguments.warmup, arguments.steps, arguments.active)
    if arguments.script:
        _trace_own(arguments, plan, folder)
        return
    stem = folder / (arguments.name or "_".join(filter(None, words)))
    provenance = {"command": restore_command("trace", arguments)}
    run_ranks(
        arguments.ranks,
        arguments.device,
        _trace_rank,
        (arguments.model, options, plan, stem, provenance, arguments.cuda_graph),
    )


def _trace_own(arguments: argparse.Namespace, plan: Plan, folder: Path) -> None:
    """Trace the user's script; of its command line the record holds the script's name only."""
    words: list[str] = arguments.script
    stem = folder / (arguments.name or Path(words[0]).stem)
    options = {name: getattr(arguments, name) for name in ("active", "device", "steps", "warmup")}
    command = restore_command("trace", argparse.Namespace(**options))
    command = f"{command} -- {Path(words[0]).name} ..."
    record = trace_script(open_backend(arguments.device), words, plan, stem, {"command": command})
    _report(stem.name, record)


def _trace_rank(
    backend: Backend,
    ranks: Ranks,
    model: str,
    options: Options,
    plan: Plan,
    stem: Path,
    provenance: dict[str, Any],
    cuda_graph: bool,
) -> None:
    try:
        training = MODELS[model](backend, ranks, options)
        if cuda_graph:
            training = with_graph(backend, training)
        record = capture(backend, ranks, training, plan, stem, provenance)
    except (RuntimeError, MemoryError) as error:
        if not backend.out_of_memory(error):
            raise
        raise PerfmodelError(
            f"out of memory with {model} {options.preset} at batch {options.batch}: lower --batch, "
            "or cap the tables with --max-rows"
        ) from None
    _report(stem.name, record)


def _report(name: str, record: dict[str, Any]) -> None:
    """One line on what was captured."""
    truth, seen = record["unprofiled"], record["profiled"]
    sys.stdout.write(
        f"{name} rank {record['rank']}: step {human_us(truth['p10_us'])} (median "
        f"{human_us(truth['median_us'])}), profiled {human_us(seen['p10_us'])} (median "
        f"{human_us(seen['median_us'])}), {sum(record['files_bytes'].values()) / 1e3:.0f} kB\n"
    )
