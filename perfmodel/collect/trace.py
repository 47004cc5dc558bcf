"""`collect trace`: train a reference model for a few steps and keep what the profiler says."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.collect.arguments import add_device, count, output_folder, restore_command
from perfmodel.collect.backend import Backend, capture_graph, open_backend
from perfmodel.collect.capture import Plan, capture
from perfmodel.collect.models import MODELS, Options, Ranks, Training, load_models
from perfmodel.collect.ranks import run_ranks
from perfmodel.collect.script import trace_script
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.units import human_us


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
    parser.add_argument("--model", default="dlrm", help=f"one of {', '.join(load_models())}")
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
    load_models()[arguments.model]
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
    load_models()
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
