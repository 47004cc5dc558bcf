"""`collect trace`: a few steps of a reference model, or of a user's own script, in traces.

Of a script, steps are found, not declared: one begins when the module that was called first is
called again and, where the script has an optimizer, the optimizer has stepped since.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.base.files import write_text
from perfmodel.base.units import human_us
from perfmodel.collect.backend import Backend, describe_machine, open_backend
from perfmodel.collect.capture import EnoughSteps, Recorder, record_steps
from perfmodel.collect.models import MODELS, Options
from perfmodel.collect.runs import add_device, count, restore_command, stem_of
from perfmodel.errors import PerfmodelError, UsageError

SCHEMA = "perfmodel.collect.trace/1"


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


def run_script(backend: Backend, words: list[str], recorder: Recorder) -> None:
    """Run the script `words[0]` with the arguments after it as Python would, until enough of its
    steps are captured; `PerfmodelError` where it makes too few or fails."""
    script = Path(words[0])
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
        recorder.stop()
        sys.argv, sys.path[:] = argv, path
    if recorder.steps < recorder.needed:
        raise PerfmodelError(
            f"{script.name} ended after {recorder.steps} steps, and {recorder.needed} are "
            "needed: train longer, or lower --warmup, --steps or --active"
        )


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
    """Trace the user's script; of its command line the record holds the script's name only."""
    words: list[str] = arguments.script
    script = Path(words[0])
    if not script.is_file():
        raise UsageError(f"{script}: there is no such script")
    stem = stem_of(arguments.output, arguments.name or script.stem)
    options = {name: getattr(arguments, name) for name in ("active", "device", "steps", "warmup")}
    command = f"{restore_command('trace', argparse.Namespace(**options))} -- {script.name} ..."
    backend = open_backend(arguments.device)
    with _recorder(backend, arguments) as recorder:
        run_script(backend, words, recorder)
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
