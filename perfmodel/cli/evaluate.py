"""`perfmodel evaluate` and `check`: predicted against measured, and against a baseline."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from perfmodel.cli.options import DEFAULT_MAX_GB, PACKAGED, KernelOptions, max_bytes
from perfmodel.cli.output import FAILED, STDOUT, Output, check_target, working, wrote
from perfmodel.errors import UsageError
from perfmodel.plot.names import named
from perfmodel.reporting.tables import Block, Table, figure_text, form_of

if TYPE_CHECKING:
    from perfmodel.validate.evaluate.results import Errors


TOLERANCE_FRAC = 0.05
_KERNELS = (
    "op;device;dtype;n:,d;mape_pct=MAPE:.1f;gmae_pct=GMAE:.1f;median_pct=median:.1f;"
    "bias_pct=bias:.1f;coverage_frac=coverage:.2f;width_frac=width:.2f"
)
_TRACES = (
    "name=of;kind=prediction;n:d;mape_pct=mean:.2f;median_pct=median:.2f;worst_pct=worst:.2f;"
    "bias_pct=bias:+.2f"
)
_KINDS = {
    "step_replay": "replay (in-sample)",
    "shapes": "from shapes alone",
    "model": "mode model",
    "null": "baseline: mean of the others",
}
"""What a prediction had seen; of all other kinds the steps were held out."""
_COLLECTIVES = "collective;where;curves:d;median_pct=median %:.1f;within_frac=coverage:share"
_PREDICTED = "predicted_us=predicted:human;measured_us=measured:human"
_MODULES = (
    f"program=module;mode;is_training=training;{_PREDICTED};error_pct=error %:+.1f;"
    "host_error_pct=host %:+.1f;device_error_pct=device %:+.1f"
)
_STEPS = (
    f"name=configuration;{_PREDICTED};low_us=from:human;high_us=to:human;"
    "error_pct=error %:+.1f;spread_pct=spread %:.1f"
)
_LIN = (
    f"name;device;{_PREDICTED};error_pct=error %:+.1f;paper_error_pct=the paper's:+.1f;"
    "active_error_pct=GPU active %:+.1f;paper_active_error_pct=the paper's:+.1f"
)
_DESIGNS = (
    "id=figure:name;predicted:,.4g;target=published:,.4g;unit;error_pct=error %:+.1f;"
    "pass=holds;evidence"
)
_CHANGES = "trace;kind;name;figure;baseline=baseline:.2f;present=now:.2f;status"


def _blocks(
    evaluation: Any, *, title: str, heads: str, rows: str = "rows", sums: Sequence[str] = ()
) -> Iterator[Block]:
    """The `rows` of an evaluation, and in a line each what sums them up."""
    answer = evaluation.to_dict()
    listed = answer[rows] if answer.get(rows) else evaluation.rows
    cells = [{key: _cell(value) for key, value in row.items()} for row in listed]
    yield Table(title, heads, cells)
    for key in sums:
        each = answer[key]
        for record in each if isinstance(each, list) else [each]:
            yield _facts(record if isinstance(record, Mapping) else {key: record})


def _write(target: Output, evaluation: Any, title: str, heads: str, **shown: Any) -> None:
    blocks = partial(_blocks, title=title, heads=heads, **shown)
    target.write_result(evaluation, blocks, getattr(evaluation, "warnings", ()))


def _cell(value: Any) -> Any:
    """What a table shows as text; numbers stay."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
        return " to ".join(f"{each:,.4g}" for each in value)
    return value


def _facts(told: Mapping[str, Any]) -> str:
    """`median 3.1 %` of `median_pct`, and so on of what is a number or a text."""
    return ", ".join(
        figure_text(name, value)
        if isinstance(value, float)
        else f"{form_of(name)[0]} {_cell(value)}"
        for name, value in told.items()
        if isinstance(value, str | int | float)
    )


def traces(
    paths: list[str] | None = None,
    target: Output = STDOUT,
    strict: bool = False,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    evaluation = _evaluated(paths, max_memory, strict=strict)

    def blocks(found: Errors) -> Iterator[Block]:
        facts = {each["trace"]: each for each in found["traces"]}
        for at, trace in enumerate(dict.fromkeys(row["trace"] for row in found.rows)):
            yield "\n" * (at > 0) + _facts(facts[trace])
            rows = [
                row | {"kind": _KINDS.get(row["kind"], "held out"), "name": named(row["name"])}
                for row in found.rows
                if row["trace"] == trace
            ]
            yield Table("Errors, in % of what was measured", _TRACES, rows)

    target.write_result(evaluation, blocks, evaluation.warnings)


def _evaluated(paths: list[str] | None, max_memory: float, **reading: Any) -> Errors:
    """The errors over `paths`; without any, over the folder `traces` here and the demo."""
    from perfmodel import api

    limit = max_bytes(max_memory)
    with working("evaluating") as begin:
        return api.evaluate(*(paths or ()), max_bytes=limit, begin=begin, **reading)


def kernels(data: list[Path], timed_by: KernelOptions = PACKAGED, target: Output = STDOUT) -> None:
    from perfmodel.validate.evaluate.tables import evaluate_kernels

    with working("evaluating"):
        evaluation = evaluate_kernels(data)
    _write(target, evaluation, "Predicted against measured, errors in percent", _KERNELS)


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

    runner = _published("collectives")
    with working("evaluating"):
        learned = load(model) if model is not None else None
        evaluation = runner.evaluate_collectives(str(curves), str(data), sizes, learned)
    title = "Median over curves of the median error, 64 kB and more"
    _write(target, evaluation, title, _COLLECTIVES, rows="summary")


def modules(
    table: Path,
    programs: Path,
    hardware: str | None = None,
    settings: list[str] | None = None,
    overheads: str | None = None,
    target: Output = STDOUT,
) -> None:
    from perfmodel.validate.evaluate.tables import evaluate_modules, read_calls

    calls = read_calls(table)
    asked: dict[str, Any] = {"hardware": hardware, "overheads": overheads}
    with working("predicting") as begin:
        evaluation = evaluate_modules(
            calls, programs, settings=settings or (), begin=begin, **asked
        )
    sums = ("summary", "host_bound", "host_speed_ratio", "measured_host_speed_ratio")
    _write(target, evaluation, "Calls of modules", _MODULES, sums=sums)


def steps(
    truth: list[Path],
    hardware: str,
    settings: list[str] | None = None,
    overheads: str | None = None,
    blind: bool = False,
    timed_by: KernelOptions = PACKAGED,
    target: Output = STDOUT,
) -> None:
    from perfmodel.hardware import node, with_settings
    from perfmodel.validate.calibrate.steps import read_steps
    from perfmodel.validate.evaluate.tables import evaluate_steps

    machine = with_settings(node(hardware), settings or ())
    on = machine.device if machine.device.target == "cpu" else None
    if on is not None and overheads is not None:
        raise UsageError(f"--overheads: is of a GPU's host; {hardware} is a CPU")
    listed = [step for path in truth for step in read_steps(path)]
    with working("predicting") as begin:
        evaluation = evaluate_steps(
            listed, on or machine, overheads=overheads, blind=blind, begin=begin
        )
    _write(target, evaluation, "Steps", _STEPS, sums=("device", "summary"))


def designs(
    only: list[str] | None = None, folder: Path | None = None, target: Output = STDOUT
) -> None:
    runner = _published("designs")
    with working("predicting") as begin:
        evaluation = runner.evaluate_designs(only=only or (), folder=folder, begin=begin)

    def blocks(found: Any) -> Iterator[Block]:
        yield from _blocks(found, title="Published designs", heads=_DESIGNS)
        held = (f"{good} of {count} {kind}" for kind, (good, count) in found.holding().items())
        yield f"hold: {', '.join(held)}"

    target.write_result(evaluation, blocks)


def lin(table: Path, timed_by: KernelOptions = PACKAGED, target: Output = STDOUT) -> None:
    runner = _published("lin")
    with working("predicting") as begin:
        evaluation = runner.evaluate_lin(table, begin)
    _write(target, evaluation, "Steps of Lin et al. 2022", _LIN, sums=("summary",))


def _published(noun: str) -> Any:
    """What a checkout has beside the package: the runner of what others published or measured."""
    roots = (Path.cwd(), Path(__file__).resolve().parents[2])  # a checkout here, or the package's
    root = next((each for each in roots if (each / "benchmarks" / "published").is_dir()), None)
    if root is None:
        raise UsageError(f"evaluate {noun} needs a checkout: no folder benchmarks/published here")
    sys.path.append(str(root))
    return import_module(f"benchmarks.published.{noun}")


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
        raise UsageError("check against what? --baseline FILE; with --update it is written")
    from perfmodel.validate.evaluate import baseline as held_by

    if update:
        check_target(baseline)
        held_by.check_replaceable(baseline)
    check_target(markdown)
    held_by.check_tolerance(tolerance)
    rows = None if update else held_by.read_baseline(baseline)
    evaluation = _evaluated(folders, max_memory, strict=strict, steps_by=steps_by or "")
    if rows is None:
        rows = evaluation.rows
        held_by.write_baseline(baseline, rows)
        wrote(baseline, "the baseline; commit it")
    held = held_by.compare(rows, evaluation, tolerance_frac=tolerance)
    if markdown:
        wrote(markdown, "Markdown, for a comment on the pull request", held_by.markdown(held))
    blocks: list[Block] = [f"{baseline}: {f'written, {held.extent}' if update else held.verdict}"]
    if held.failing:
        blocks += [Table("Worse than the baseline", _CHANGES, held.failing, most=30)]
    target.write_result(held, lambda _: blocks, held.warnings)
    if not held.passed:
        raise typer.Exit(FAILED)


NOUNS = (collectives, traces, kernels, modules, steps, designs, lin)
