"""`perfmodel evaluate` and `check`: predicted against measured, and against a baseline."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from perfmodel.cli import error_tables as tables
from perfmodel.cli.options import DEFAULT_MAX_GB, kernel_models, max_bytes
from perfmodel.cli.output import (
    FAILED,
    STDOUT,
    Output,
    check_target,
    working,
    wrote,
)
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.validate.evaluate.results import Errors


TOLERANCE_FRAC = 0.05


def traces(
    paths: list[str] | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    evaluation = evaluate_paths(paths or [], strict=strict, limit_bytes=max_bytes(max_memory))
    target.write_result(evaluation, tables.show_traces, evaluation.warnings)


def evaluate_paths(
    paths: list[str], *, strict: bool, limit_bytes: int, steps_by: str = ""
) -> Errors:
    """The errors over `paths`; without any, over the folder `traces` here and the demo."""
    from perfmodel import api

    with working("evaluating") as begin:
        return api.evaluate(
            *paths, strict=strict, max_bytes=limit_bytes, steps_by=steps_by, begin=begin
        )


def kernels(
    data: list[Path],
    models: Path | None = None,
    trust_models: bool = False,
    target: Output = STDOUT,
) -> None:
    from perfmodel.validate.evaluate.kernels import evaluate_kernels

    with working("evaluating"), kernel_models(models, trusted=trust_models):
        evaluation = evaluate_kernels(data)
    target.write_result(evaluation, tables.show_kernels, evaluation.warnings)


def collectives(
    curves: Path,
    data: Path,
    calibrate: str | None = None,
    model: Path | None = None,
    target: Output = STDOUT,
) -> None:
    try:
        sizes = [float(word) for word in (calibrate or "").split(",") if word.strip()]
    except ValueError:
        sizes = [-1.0]
    if any(not 0 < size < float("inf") for size in sizes):
        raise UsageError(f"--calibrate {calibrate}: expected sizes in bytes, as in 262144,2097152")

    from perfmodel.cost.collectives.learned import load
    from perfmodel.validate.evaluate.collectives import evaluate_collectives

    with working("evaluating"):
        learned = load(model) if model is not None else None
        evaluation = evaluate_collectives(str(curves), str(data), sizes, learned)
    target.write_result(evaluation, tables.show_collectives, evaluation.warnings)


def ops(
    traces: list[str] | None = None,
    by_op: bool = False,
    only: str = "*",
    target: Output = STDOUT,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    if not traces:
        raise UsageError("nothing to evaluate: give a trace or a folder")

    from perfmodel.validate.evaluate.ops import evaluate_ops

    limit = max_bytes(max_memory)
    with working("evaluating") as begin:
        evaluation = evaluate_ops(traces, only=only, by_op=by_op, max_bytes=limit, begin=begin)
    target.write_result(evaluation, tables.show_ops, evaluation.warnings)


def modules(
    table: Path,
    programs: Path,
    hardware: str | None = None,
    settings: list[str] | None = None,
    overheads: str | None = None,
    target: Output = STDOUT,
) -> None:
    from perfmodel.validate.evaluate.modules import evaluate_modules, read_calls

    calls = read_calls(table)
    asked: dict[str, Any] = {"hardware": hardware, "overheads": overheads}
    with working("predicting") as begin:
        evaluation = evaluate_modules(
            calls, programs, settings=settings or (), begin=begin, **asked
        )
    target.write_result(evaluation, tables.show_modules, evaluation.warnings)


def steps(
    truth: list[Path],
    hardware: str,
    settings: list[str] | None = None,
    overheads: str | None = None,
    blind: bool = False,
    target: Output = STDOUT,
) -> None:
    from perfmodel.hardware import node, with_settings
    from perfmodel.validate.calibrate.tables import read_steps
    from perfmodel.validate.evaluate.step_times import evaluate_steps

    machine = with_settings(node(hardware), settings or ())
    on = machine.device if machine.device.target == "cpu" else None
    if on is not None and overheads is not None:
        raise UsageError(f"--overheads: is of a GPU's host; {hardware} is a CPU")
    listed = [step for path in truth for step in read_steps(path)]
    with working("predicting") as begin:
        evaluation = evaluate_steps(
            listed, on or machine, overheads=overheads, blind=blind, begin=begin
        )
    target.write_result(evaluation, tables.show_steps, evaluation.warnings)


def pairs(
    traces: list[str],
    target: Output = STDOUT,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    from perfmodel.validate.evaluate.pairs import evaluate_pairs

    limit = max_bytes(max_memory)
    with working("evaluating") as begin:
        evaluation = evaluate_pairs(traces, max_bytes=limit, begin=begin)
    target.write_result(evaluation, tables.show_pairs)


def designs(
    only: list[str] | None = None,
    folder: Path | None = None,
    target: Output = STDOUT,
) -> None:
    roots = (Path.cwd(), Path(__file__).resolve().parents[2])  # a checkout here, or the package's
    root = next((each for each in roots if (each / "benchmarks" / "published").is_dir()), None)
    if root is None:
        raise UsageError(
            "evaluate designs needs a checkout: there is no folder benchmarks/published"
        )
    sys.path.append(str(root))
    runner = import_module("benchmarks.published.designs")
    with working("predicting") as begin:
        evaluation = runner.evaluate_designs(only=only or (), folder=folder, begin=begin)
    target.write_result(evaluation, tables.show_designs)


def check(
    folders: list[str] | None = None,
    baseline: Path | None = None,
    update: bool = False,
    tolerance: float = TOLERANCE_FRAC,
    markdown: Path | None = None,
    steps_by: str | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    if baseline is None:
        raise UsageError(
            "nothing to check against: give --baseline FILE; with --update it is written"
        )
    from perfmodel.validate.evaluate import baseline as held_by

    if update:
        check_target(baseline)
        held_by.check_replaceable(baseline)
    check_target(markdown)
    held_by.check_tolerance(tolerance)
    rows = None if update else held_by.read_baseline(baseline)
    limit = max_bytes(max_memory)
    evaluation = evaluate_paths(
        folders or [], strict=strict, limit_bytes=limit, steps_by=steps_by or ""
    )
    if rows is None:
        rows = evaluation.rows
        held_by.write_baseline(baseline, rows)
        wrote(baseline, "the baseline; commit it")
    held = held_by.compare(rows, evaluation, tolerance_frac=tolerance)
    if markdown:
        wrote(markdown, "Markdown, for a comment on the pull request", held_by.markdown(held))
    show = partial(tables.show_check, baseline=str(baseline), written=update)
    target.write_result(held, show, held.warnings)
    if not held.passed:
        raise typer.Exit(FAILED)


NOUNS = (collectives, traces, kernels, ops, modules, pairs, steps, designs)
