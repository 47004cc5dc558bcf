"""A prediction as tables for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Console, Table
from perfmodel.cli.hardware_tables import say_assumed_figures
from perfmodel.cli.prediction_options import Demo
from perfmodel.cli.tables import (
    NOTHING,
    STEADY,
    Times,
    counted,
    filled,
    fitted,
    named,
    percent,
    say,
    say_excluded_steps,
    say_straggler,
    signed_pct,
    source_text,
    with_role,
)
from perfmodel.prediction.types import DEVICE_FIGURES, error_pct
from perfmodel.units import BYTES_PER_GB, US_PER_S, human_us

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result
    from perfmodel.prediction.types import Change, StepPrediction


_DEVICE_COLUMNS = dict(
    zip(("GPU active", "GPU idle", "comm", "exposed"), DEVICE_FIGURES, strict=True)
)
_NULLS = {
    "others' mean": "null_mean_us",
    "+ GPU active": "null_mean_gpu_us",
    "last step": "null_last_us",
}
_MAX_ROWS = 12
_MIN_US = 1e-3
"""Parts of a path below it are what is left of sums of floats."""
_MAX_COLUMNS = 4


def show_prediction(console: Console, prediction: Prediction, demo: Demo | None = None) -> None:
    """The results beside what was measured, then steps, ranks, kernels and the critical path."""
    source, results = prediction.source, prediction.results
    say(console, _title(source))
    if demo:
        say(console, f"{demo.model}; captured on {demo.machine}")
    has_device = any(result.rank.kernel_sum_us for result in results)
    columns = _DEVICE_COLUMNS if source["device"] != "cpu" or has_device else {}
    console.show(_summary(results, columns))
    for result in results:
        _say_memory(console, result)
        _say_rate(console, source, result)
        _say_serving(console, source, result)
        say_assumed_figures(console, _name(result), [each.to_dict() for each in result.assumed])
    if len(results) == 1 and len({step.step_us for step in results[0].rank.steps}) > 1:
        console.show(_steps(results[0], demo if results[0].mode == "replay" else None))
        _say_steps(console, results[0].rank.steps)
    if demo:
        console.print()
        say(
            console,
            f"Without the profiler a step takes {human_us(demo.unprofiled_us)} "
            f"(median; 10 to 90 %: {human_us(demo.unprofiled_p10_us)} to "
            f"{human_us(demo.unprofiled_p90_us)}).",
        )
    for result in results:
        if len(result.ranks) > 1:
            console.show(_ranks(result, columns))
            say_straggler(console, result.straggler)
    for at in range(0, len(results), _MAX_COLUMNS):
        _show_parts(console, results[at : at + _MAX_COLUMNS])


def _title(source: Mapping[str, Any]) -> str:
    """What was predicted, in a line."""
    if "workload" in source:
        what = "training" if source["training"] else "inference"
        return (
            f"{source['workload']} ({source['implementation']}), {what}, batch {source['batch']:,}"
        )
    if not source["ranks"]:
        ranks = counted(len(source["execution_traces"]), "rank")
        return f"{source_text(source['trace'])}: execution trace of {ranks}"
    if "operators" in source:
        return f"{source['trace']}: {counted(source['operators'], 'operator')}"
    counts = f"{counted(len(source['ranks']), 'rank')}, {counted(source['events'], 'event')}"
    return f"{source_text(source['trace'])}: {source['device']}, {counts}"


def _say_serving(console: Console, source: Mapping[str, Any], result: Result) -> None:
    """Latency at the rate that was asked for, and the largest rate within a latency."""
    for row in source.get("serving", ()):
        if row["hardware"] != result.hardware:
            continue
        if "rate_per_s" in row:
            found = row["note"] or (
                f"{row['load_frac']:.0%} of its time, half within {human_us(row['p50_us'])}, 99 % "
                f"within {human_us(row['p99_us'])}"
            )
            say(console, f"{_name(result)}: at {row['rate_per_s']:,.0f} samples/s: {found}")
        if "most_per_s" in row:
            limit = human_us(row["p99_limit_us"])
            most = row["most_per_s"]
            say(console, f"{_name(result)}: 99 % within {limit} up to {most:,.0f} samples/s")


def _say_memory(console: Console, result: Result) -> None:
    if result.memory is None:
        return
    gb = {key: value / BYTES_PER_GB for key, value in result.memory.items() if "bytes" in key}
    fits = "" if result.memory["fits"] else "; does not fit"
    rank = result.memory.get("rank")
    where = "per rank" if rank is None else f"on rank {rank}, the fullest"
    say(
        console,
        f"{_name(result)}: {gb['total_bytes']:,.1f} GB {where} (tables {gb['tables_bytes']:,.1f}, "
        f"other resident {gb['resident_bytes']:,.1f}, activations {gb['temporary_bytes']:,.1f})"
        f"{fits}",
    )


def _say_rate(console: Console, source: Mapping[str, Any], result: Result) -> None:
    if "workload" in source:
        rate = source["batch"] / result.step_us * US_PER_S
        say(console, f"{_name(result)}: {rate:,.0f} samples per second")
    if result.bound_by and result.latency_us is not None:
        say(
            console,
            f"{_name(result)}: bound by {_shares(result.bound_by)}; one step alone takes "
            f"{human_us(result.latency_us)}",
        )


def _shares(taken_us: Mapping[str, float]) -> str:
    """The largest first, those below a hundredth left out."""
    total = sum(taken_us.values())
    kept = [(name, us) for name, us in taken_us.items() if us >= 0.01 * total]
    return ", ".join(f"{name} {percent(us, total)}" for name, us in kept)


def _show_parts(console: Console, results: Sequence[Result]) -> None:
    """What the time of some results consists of."""
    paths = [(_name(result), _path(result)) for result in results]
    families = [
        (_name(result), {row["family"]: row["time_us"] for row in result.families})
        for result in results
    ]
    tables = [_comparison_table("Critical path of the median step", paths)]
    if any(time_us for _, time_us in families):
        modelled = results[0].mode == "model"
        title = "Time by family" if modelled else "GPU time by kernel family"
        tables.append(_comparison_table(title, families))
    if len(results) == 1:
        console.show(*tables)
    else:
        for table in tables:
            console.show(table)


def _summary(results: Sequence[Result], device: dict[str, str]) -> Table:
    """One row for what was measured, one per result, of a what-if with the one without it above;
    `device`: columns and their figures."""
    with_interval = any(result.low_us is not None for result in results)
    interval = ("low", "high") if with_interval else ()
    truth_us = _measured_step_us(results[0])
    times = Times([truth_us, *(result.step_us for result in results)])
    against = () if truth_us is None else ("vs measured",)
    gain = ("gain", "of step") if any(result.baseline for result in results) else ()
    columns = ("", "step", *interval, *against, *gain, *device)

    def row(name: str, result: Result, change: Change | None) -> list[str]:
        bounds = (result.low_us, result.high_us) if with_interval else ()
        return [
            name,
            *map(times, (result.step_us, *bounds)),
            *(signed_pct(error_pct(result.step_us, truth_us)) for _ in against),
            *(_gain(change, times) if gain else ()),
            *(times(getattr(result.rank, key)) for key in device.values()),
        ]

    rows: list[list[str]] = []
    if truth_us is not None:
        measured = results[0].rank.measured or {}
        cells = [times(measured.get(key)) for key in device.values()]
        none = (NOTHING for _ in (*interval, *against, *gain))
        rows.append(["measured", times(truth_us), *none, *cells])
    for result in results:
        alone = result.baseline or result
        rows.append(row(_name(alone), alone, None))
        if result.baseline is not None:
            rows.append(row("what-if", result, result.gain))
    return fitted(f"Per batch ({times.unit})", columns, rows)


def _gain(change: Change | None, times: Times) -> tuple[str, str]:
    """How much shorter something gets, and of how much."""
    if change is None:
        return NOTHING, NOTHING
    return times(change.gain_us), percent(change.gain_us, change.baseline_us)


def _name(result: Result) -> str:
    """What a column is headed; of a file without its folders."""
    if result.mode == "replay":
        return "replayed" if result.baseline is None else "what-if"
    return PurePath(result.hardware).name


def _measured_step_us(result: Result) -> float | None:
    """The measured median step of the rank that stands for the job, whatever was predicted.

    None where nothing was measured.
    """
    if result.mode == "model":
        return result.rank.measured["step_us"] if result.rank.measured else None
    from perfmodel.timeline.schedule import measured
    from perfmodel.timeline.steps import by_rank_and_step, ranks_of, steady_steps

    base = result.baseline or result
    truth = measured(base.timeline.graph)
    own = ranks_of(truth.graph).index(base.rank.rank)
    return float(median(by_rank_and_step(truth.graph, truth.step_us)[own, steady_steps(truth)]))


def _steps(result: Result, demo: Demo | None) -> Table:
    """The slowest rank's steps, beside what was measured; of the demo also with each left out."""
    steps = result.rank.steps
    times = Times(step.step_us for step in steps)
    columns = {
        "": [with_role(step.name, step.role) for step in steps],
        "what-if" if result.baseline else "predicted": [times(step.step_us) for step in steps],
    }
    if result.baseline is not None:
        before = [change for change in result.gains_of_steps() if change is not None]
        columns["without"] = [times(change.baseline_us) for change in before]
        gained = [_gain(change, times) for change in before]
        columns["gain"], columns["of step"] = map(list, zip(*gained, strict=True))
    if result.rank.measured:
        columns["measured"] = [times(step.measured_us) for step in steps]
        columns["error"] = [signed_pct(step.error_pct) for step in steps]
    if demo:
        pairs = list(zip(demo.left_out_us, steps, strict=True))
        columns["from other steps"] = [times(left_us) for left_us, _ in pairs]
        errors = [error_pct(left_us, step.measured_us) for left_us, step in pairs]
        columns["error of that"] = list(map(signed_pct, errors))
    beside = [step.left_out for step in steps if step.left_out]
    for title, key in _NULLS.items():
        nulls_us = [getattr(each, key) for each in beside]
        if any(us is not None for us in nulls_us):
            columns[title] = list(map(times, nulls_us))
    if result.mode != "model" and not beside:
        columns["measured host share"] = [percent(step.measured_host_frac, 1) for step in steps]
    rank = f", rank {result.rank.rank}" if len(result.ranks) > 1 else ""
    rows = list(zip(*columns.values(), strict=True))
    return fitted(f"Steps ({times.unit}){rank}", list(columns), rows)


def _say_steps(console: Console, steps: Sequence[StepPrediction]) -> None:
    """What the median of the steps leaves out; of steps left out, the errors beside the nulls'."""
    measured_us = [step.measured_us or step.step_us for step in steps]
    rows = [(s.name, s.role, us) for s, us in zip(steps, measured_us, strict=True)]
    say_excluded_steps(console, rows)
    left_out = [
        (step.step_us, step.measured_us, step.left_out)
        for step in steps
        if step.left_out and step.measured_us and step.role == STEADY
    ]
    if not left_out:
        return
    said = [_mean_error("replay", [(us, true_us) for us, true_us, _ in left_out])]
    for title, key in _NULLS.items():
        said.append(_mean_error(title, [(getattr(n, key), true_us) for _, true_us, n in left_out]))
    say(console, f"Mean absolute error of steps left out: {', '.join(filter(None, said))}.")
    inside = sum(beside.low_us <= true_us <= beside.high_us for _, true_us, beside in left_out)
    say(console, f"In their 90 % intervals: {inside} of {counted(len(left_out), 'step')}.")


def _mean_error(of: str, pairs: Sequence[tuple[float | None, float]]) -> str:
    """The mean size of the errors of predictions beside measurements; nothing without any."""
    sizes = [abs(us / measured_us - 1) for us, measured_us in pairs if us is not None]
    return f"{of} {percent(sum(sizes), len(sizes))}" if sizes else ""


def _ranks(result: Result, device: dict[str, str]) -> Table:
    times = Times(rank.step_us for rank in result.ranks)
    meets = ("transfer", "waiting") if result.straggler else ()
    what_if = ("without", "step", "gain", "of step")
    beside = ("measured", "step", "error") if result.baseline is None else what_if
    rows = []
    for rank, change in zip(result.ranks, result.gains_of_ranks(), strict=True):
        truth_us = rank.measured["step_us"] if rank.measured else None
        cells: tuple[str, ...] = (signed_pct(error_pct(rank.step_us, truth_us)),)
        if change is not None:
            truth_us, cells = change.baseline_us, _gain(change, times)
        name = f"{rank.rank}{' (slowest)' if rank is result.rank else ''}"
        keys = (*device.values(), *(f"{key}_us" for key in meets))
        figures = (times(getattr(rank, key)) for key in keys)
        rows.append((name, times(truth_us), times(rank.step_us), *cells, *figures))
    heads = ("rank", *beside, *device, *meets)
    return filled(f"Ranks, {_name(result)} ({times.unit})", heads, rows)


def _path(result: Result) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for piece in result.critical_path:
        total[piece.kind] += piece.duration_us
    return total


def _comparison_table(title: str, prediction: Sequence[tuple[str, dict[str, float]]]) -> Table:
    """Parts of each result's time, largest first; of one result with their shares."""
    largest: defaultdict[str, float] = defaultdict(float)
    for _, time_us in prediction:
        for part, value in time_us.items():
            largest[part] = max(largest[part], value)
    times = Times(largest.values())
    alone = len(prediction) == 1
    columns = ("time", "share") if alone else tuple(name for name, _ in prediction)
    names = sorted(
        (name for name, us in largest.items() if us >= _MIN_US), key=lambda name: -largest[name]
    )
    rows = [(name, [time_us.get(name) for _, time_us in prediction]) for name in names[:_MAX_ROWS]]
    if rest := names[_MAX_ROWS:]:
        rows.append(("others", [sum(us.get(name, 0.0) for name in rest) for _, us in prediction]))
    cells = []
    for name, values in rows:
        share = [percent(values[0] or 0.0, sum(prediction[0][1].values()))] if alone else []
        cells.append((named(name), *map(times, values), *share))
    return filled(f"{title} ({times.unit})", ("", *columns), cells)
