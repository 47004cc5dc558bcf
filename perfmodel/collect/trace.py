"""`collect trace`: a few steps of a reference model, or of a user's own script, in traces: Kineto
profile and execution trace of the same steps, scrubbed, and un-profiled step times.

The profiler slows the host, so the truth is the un-profiled time. It is measured before and
after the profiled steps of the same process, to tell the profiler's cost from drift.

Of a script, steps are found, not declared: one begins when the module that was called first is
called again and, where the script has an optimizer, the optimizer has stepped since.
"""

from __future__ import annotations

import argparse
import getpass
import inspect
import json
import os
import re
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count as numbers
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_bytes, write_text
from perfmodel.base.units import NS_PER_US, human_us
from perfmodel.collect.backend import Backend, describe_machine, open_backend
from perfmodel.collect.models import MODELS, Options
from perfmodel.collect.runs import add_device, count, restore_command, robust_us, stem_of, summarize
from perfmodel.errors import PerfmodelError, UsageError

SCHEMA = "perfmodel.collect.trace/1"
HOST, USER, ADDRESS = "host", "user", "0.0.0.0"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PATH = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?(?:/|\\/)(?:[\w.+@~-]+(?:/|\\/))+([\w.+@~-]*)")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_SHARED_NAMES = {"root", "user", "host", "localhost", "runner", "ubuntu", "docker", "main", "test"}
_LOOPBACK = {"127.0.0.1", ADDRESS}


def scrub_text(text: str, *, hosts: Iterable[str] = (), users: Iterable[str] = ()) -> str:
    """JSON `text` with absolute paths cut to their last part and names and addresses replaced.

    Works string literal by string literal: numbers keep every digit. `hosts` and `users` are the
    names to replace; generic ones such as `root` are left alone, because they identify nobody and
    occur as ordinary words.
    """
    words = [(name, HOST) for name in hosts] + [(name, USER) for name in users]
    patterns = [
        (re.compile(rf"(?<!\w){re.escape(name)}(?!\w)"), replacement)
        for name, replacement in words
        if len(name) > 1 and name.lower() not in _SHARED_NAMES
    ]

    def clean(match: re.Match[str]) -> str:
        value = _PATH.sub(lambda path: path.group(1) or "path", match.group())
        value = _IPV4.sub(lambda ip: ip.group() if ip.group() in _LOOPBACK else ADDRESS, value)
        for pattern, replacement in patterns:
            value = pattern.sub(replacement, value)
        return value

    return _STRING.sub(clean, text)


def names_of_this_machine() -> tuple[set[str], set[str]]:
    """Host names and user names that a trace taken here could hold."""
    host = socket.gethostname()
    users = set()
    with suppress(OSError, KeyError):
        users.add(getpass.getuser())
    return {host, host.split(".")[0]}, users


def scrub_file(source: Path, target: Path) -> int:
    """Write `source` (JSON, gzipped or not), scrubbed, to `target` (`.gz`); its size in bytes. The
    output depends on the content alone: no time stamp and no file name goes into the gzip."""
    hosts, users = names_of_this_machine()
    write_text(target, scrub_text(read_bytes(source).decode(), hosts=hosts, users=users))
    return target.stat().st_size


PROFILER_WARMUP = 2
BEFORE, PROFILER_STARTS, PROFILED, AFTER = "before", "profiler_starts", "profiled", "after"


class EnoughSteps(BaseException):
    """Ends what trains when all is captured; no `except Exception` of a user's script holds it."""


class Recorder:
    """Told where each step begins, it times some and profiles those in between. `steps` are
    un-profiled, half of them before and half after the `active` ones. The profilers write to
    `folder`, from where `keep` takes what is wanted."""

    def __init__(
        self, backend: Backend, folder: Path, *, warmup: int, steps: int, active: int
    ) -> None:
        half = max(1, steps // 2)
        phases = {
            "warm_up": warmup,
            BEFORE: half,
            PROFILER_STARTS: PROFILER_WARMUP,
            PROFILED: active,
            AFTER: half,
        }
        self._backend, self._active = backend, active
        self._phases = [*(name for name, steps in phases.items() for _ in range(steps)), ""]
        self._kineto, self._observed = folder / "kineto.json", folder / "et.json"
        self._profiling: Any = None
        self._observer: Any = None
        self._began_ns: int | None = None
        self.taken_us: dict[str, list[float]] = {name: [] for name in phases}
        self.steps, self.needed = 0, len(self._phases) - 1

    def boundary(self) -> None:
        """A step is over, and the next begins; raises `EnoughSteps` when no more are needed."""
        self._backend.synchronize()
        if self._began_ns is not None:
            taken_us = (time.perf_counter_ns() - self._began_ns) / NS_PER_US
            self.taken_us[self._phases[self.steps]].append(round(taken_us, 3))
            self.steps += 1
            if self._profiling is not None:
                self._profiling.step()
        following = self._phases[self.steps]
        is_profiled = following in (PROFILER_STARTS, PROFILED)
        if is_profiled and self._profiling is None:
            self._start()
        elif not is_profiled:
            self.stop()
        if not following:
            raise EnoughSteps
        self._began_ns = time.perf_counter_ns()

    def _start(self) -> None:
        """Both profilers on `PROFILER_WARMUP` and then the active steps."""
        profiler = self._backend.torch.profiler
        self._observer = profiler.ExecutionTraceObserver()
        self._observer.register_callback(str(self._observed))
        activities = [profiler.ProfilerActivity.CPU]
        if self._backend.is_gpu:
            activities.append(profiler.ProfilerActivity.CUDA)
        options = {}
        if "acc_events" in inspect.signature(profiler.profile).parameters:
            options["acc_events"] = True  # one cycle: without it, some versions warn of a second
        steps = {"wait": 0, "warmup": PROFILER_WARMUP, "active": self._active, "repeat": 1}
        self._profiling = profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=profiler.schedule(**steps),
            on_trace_ready=lambda done: done.export_chrome_trace(str(self._kineto)),
            # Handed to the profiler, the observer starts and stops with it: both files cover the
            # same steps.
            execution_trace_observer=self._observer,
            **options,
        )
        self._profiling.start()

    def stop(self) -> None:
        if self._profiling is not None:
            self._profiling.stop()
            self._observer.unregister_callback()
            self._profiling = None

    def keep(self, stem: Path) -> dict[str, Any]:
        """Write both traces, scrubbed and packed, beside `stem`; what a record says of the steps.
        All times are in microseconds."""
        sizes = {}
        for kind, source in (("kineto", self._kineto), ("et", self._observed)):
            target = stem.with_name(f"{stem.name}_{kind}.json.gz")
            sizes[target.name] = scrub_file(source, target)
        before_us, profiled_us, after_us = (self.taken_us[n] for n in (BEFORE, PROFILED, AFTER))
        unprofiled_us = before_us + after_us
        cost_frac = robust_us(profiled_us) / robust_us(unprofiled_us) - 1
        return {
            "unprofiled": {
                **summarize(unprofiled_us),
                "before_us": before_us,
                "after_us": after_us,
            },
            "profiled": {**summarize(profiled_us), "step_us": profiled_us},
            "profiler_cost_frac": round(cost_frac, 4),
            "files_bytes": sizes,
        }


def record_steps(recorder: Recorder, step: Callable[[int], Any]) -> None:
    """Run `step` (of its number) until the recorder has enough."""
    try:
        for number in numbers():
            recorder.boundary()
            step(number)
    except EnoughSteps:
        pass
    finally:
        recorder.stop()


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device(parser)
    parser.add_argument("--model", default="dlrm", help=f"one of {', '.join(MODELS)}")
    parser.add_argument("--preset", default="", help="configuration of the model")
    parser.add_argument("--batch", type=count, default=512, help="samples per rank")
    parser.add_argument("--max-rows", type=count, help="cap on the rows of every table")
    parser.add_argument("--pooling", type=count, help="lookups per sample and table")
    parser.add_argument("--zipf", type=float, default=0.0, help="skew of the indices, 0 = uniform")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup", type=count, default=10, help="steps before any measurement")
    parser.add_argument("--steps", type=count, default=40, help="un-profiled steps to time")
    parser.add_argument("--active", type=count, default=6, help="profiled steps")
    parser.add_argument("--name", help="stem of the files (default: model_preset_batch)")
    parser.add_argument(
        "script",
        nargs="*",
        help="after `--`: a Python script of your own and its arguments, traced instead of a model",
    )


def run(arguments: argparse.Namespace) -> None:
    MODELS[arguments.model]
    (_trace_script if arguments.script else _trace_model)(arguments)


@contextmanager
def _recorder(backend: Backend, arguments: argparse.Namespace) -> Iterator[Recorder]:
    with tempfile.TemporaryDirectory() as folder:
        given = {name: getattr(arguments, name) for name in ("warmup", "steps", "active")}
        yield Recorder(backend, Path(folder), **given)


def _trace_script(arguments: argparse.Namespace) -> None:
    """Trace the user's script, run as Python would until enough of its steps are captured; of its
    command line the record holds the script's name only."""
    words: list[str] = arguments.script
    script = Path(words[0])
    if not script.is_file():
        raise UsageError(f"{script}: there is no such script")
    stem = stem_of(arguments.output, arguments.name or script.stem)
    options = {name: getattr(arguments, name) for name in ("active", "device", "steps", "warmup")}
    command = f"{restore_command('trace', argparse.Namespace(**options))} -- {script.name} ..."
    backend = open_backend(arguments.device)
    argv, path = sys.argv, list(sys.path)
    with _recorder(backend, arguments) as recorder:
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
            recorder.stop()
            sys.argv, sys.path[:] = argv, path
        if recorder.steps < recorder.needed:
            raise PerfmodelError(
                f"{script.name} ended after {recorder.steps} steps, and {recorder.needed} are "
                "needed: train longer, or lower --warmup, --steps or --active"
            )
        _write(backend, recorder, stem, command, {"model": "script", "script": script.name})


def _trace_model(arguments: argparse.Namespace) -> None:
    backend = open_backend(arguments.device)
    model, preset, batch = arguments.model, arguments.preset, arguments.batch
    names = ("preset", "batch", "max_rows", "pooling", "seed")
    chosen = {name: getattr(arguments, name) for name in names}
    usual = "_".join(filter(None, (model, preset, f"b{batch}")))
    stem = stem_of(arguments.output, arguments.name or usual)
    command = restore_command("trace", arguments)
    try:
        training = MODELS[model](backend, Options(**chosen, zipf_alpha=arguments.zipf))
        with _recorder(backend, arguments) as recorder:
            record_steps(recorder, training.step)
            _write(backend, recorder, stem, command, training.description)
    except (RuntimeError, MemoryError) as error:
        if not backend.out_of_memory(error):
            raise
        raise PerfmodelError(
            f"out of memory with {model} {preset} at batch {batch}: lower --batch, or cap the "
            "tables with --max-rows"
        ) from None


def _write(
    backend: Backend, recorder: Recorder, stem: Path, command: str, workload: dict[str, Any]
) -> None:
    """Write `STEM_kineto.json.gz`, `STEM_et.json.gz` and `STEM.json`, under a launcher that sets
    `RANK` and `WORLD_SIZE` `STEM_rankN...`; one line on what was captured."""
    rank, world = (int(os.environ.get(*each)) for each in (("RANK", "0"), ("WORLD_SIZE", "1")))
    target = stem.with_name(f"{stem.name}_rank{rank}") if world > 1 else stem
    record = {
        "schema": SCHEMA,
        "command": command,
        "rank": rank,
        "world": world,
        "machine": describe_machine(backend),
        "workload": workload,
        **recorder.keep(target),
    }
    truth, seen = record["unprofiled"], record["profiled"]
    write_text(target.with_name(f"{target.name}.json"), json.dumps(record, indent=1) + "\n")
    sys.stdout.write(
        f"{stem.name} rank {rank}: step {human_us(truth['p10_us'])} (median "
        f"{human_us(truth['median_us'])}), profiled {human_us(seen['p10_us'])} (median "
        f"{human_us(seen['median_us'])}), {sum(record['files_bytes'].values()) / 1e3:.0f} kB\n"
    )
