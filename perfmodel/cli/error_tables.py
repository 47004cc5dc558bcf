"""Errors of evaluations, checks and fits as tables for people, from the answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import human_us
from perfmodel.cli.console import Console
from perfmodel.plot.names import named
from perfmodel.reporting.tables import Table, counted, interval, percent

if TYPE_CHECKING:
    from perfmodel.cli.output import Result
    from perfmodel.validate.calibrate.device import DeviceFit
    from perfmodel.validate.calibrate.kernels import Compared
    from perfmodel.validate.evaluate.baseline import Comparison


_KERNEL = "op;device;dtype;n:,d;mape_pct=MAPE:.1f;gmae_pct=GMAE:.1f;median_pct=median:.1f"
_COVERAGE = "coverage_frac=coverage:.2f"
_KERNELS = f"{_KERNEL};bias_pct=bias:.1f;{_COVERAGE};width_frac=width:.2f"
_COMPARED = f"{_KERNEL};{_COVERAGE};roofline_pct=roofline:.1f"
_DEVICE = (
    "family;kind=measured;n:,d;median_pct=median %:.1f;p90_pct=p90 %:.1f;bias_pct=bias %:+.1f;"
    "spread_pct=spread %:.1f"
)
_TRACE = (
    "of;prediction;n:d;mape_pct=mean:.2f;median_pct=median:.2f;worst_pct=worst:.2f;"
    "bias_pct=bias:+.2f"
)
_COLLECTIVES = "collective;where;curves:d;median_pct=median %:.1f;within_frac=coverage:share"
_OPS = (
    "source=of;device;name;n:,d;gmae_pct=GMAE:.1f;mape_pct=MAPE:.1f;median_pct=median:.1f;"
    "bias_pct=bias:+.1f;total_pct=total:+.1f"
)
_PREDICTED = "predicted_us=predicted:human;measured_us=measured:human"
_MODULES = (
    f"program=module;mode;{_PREDICTED};error_pct=error %:+.1f;host_error_pct=host %:+.1f;"
    "device_error_pct=device %:+.1f"
)
_STEPS = (
    f"name=configuration;ranks:d;{_PREDICTED};interval=90 % interval:s;error_pct=error %:+.1f;"
    "spread_pct=spread %:.1f"
)
_PAIRS = (
    f"name=of;{_PREDICTED};error_pct=error %:+.1f;same_error_pct=same %:+.1f;"
    "roofline_error_pct=roofline %:+.1f"
)
_CHANGES = "trace;kind;name;figure;baseline_text=baseline:s;present_text=now:s;by:s"
_DESIGNS = "id=figure:name;predicted:s;published:s;error=error %:s;holds;evidence"
_PREDICTIONS = {
    "step_replay": "replay (in-sample)",
    "step_left_out": "held out",
    "shapes": "from shapes alone",
    "model": "mode model",
    "kernels": "fitted on other rows",
    "null": "baseline: mean of the others",
    "null_gpu": "baseline: mean + GPU difference",
    "null_last": "baseline: the step before",
}
_OF = {"step": "step time", "gpu_active": "GPU active"}
_MAX_CHANGES = 30


def show_kernels(console: Console, evaluation: Result) -> None:
    """One line per op, device and dtype."""
    title = "Predicted against measured, errors in percent"
    console.show(Table(title, _KERNELS, evaluation.to_dict()["rows"]))


def show_kernel_comparison(console: Console, rows: Sequence[Compared], title: str) -> None:
    """One line per op and device, with what the roofline has."""
    console.show(Table(title, _COMPARED, [vars(row.errors) | vars(row) for row in rows]))


def show_device_fit(console: Console, fit: DeviceFit, output: Path) -> None:
    """Errors on the half that the fit had not seen, per family and kind of measurement."""
    rows = (*fit.errors, *([fit.steps] if fit.steps else []))
    console.say(f"{output}: {fit.device.name}{', fitted to all rows' if rows else ''}")
    if rows:
        console.show(Table("Errors on a half held out", _DEVICE, rows))


def show_traces(console: Console, evaluation: Result) -> None:
    """Per trace: what it is, and its errors; then those of tables of kernels."""
    answer = evaluation.to_dict()
    tables = dict.fromkeys(r["trace"] for r in answer["rows"] if r["kind"] == "kernels")
    for facts in answer["traces"]:
        steps = f"{counted(facts['steps'], 'step')} of {human_us(facts['step_us'])}"
        ranks = counted(facts["ranks"], "rank")
        console.say(f"{facts['trace']}: {facts['device']}, {ranks}, {steps}")
        shares = {
            "measured host time in the replay": facts["measured_host_frac"],
            "unexplained": facts["unexplained_frac"],
            "steps within the interval": facts["interval_coverage_frac"],
        }
        if facts["modelled_frac"] is not None:
            shares["device time from shapes"] = facts["modelled_frac"]
        texts = (f"{k}: {'-' if v is None else percent(v, 1)}" for k, v in shares.items())
        console.say("; ".join(texts))
        _show_errors(console, answer["rows"], facts["trace"], of_tables=False)
    for name in tables:
        console.say(f"{name}: measured kernels")
        _show_errors(console, answer["rows"], name, of_tables=True)


def _show_errors(
    console: Console, rows: Sequence[Mapping[str, Any]], trace: str, *, of_tables: bool
) -> None:
    records = [
        dict(row)
        | {
            "of": _OF.get(row["name"], f"{row['kind']} {named(row['name'])}"),
            "prediction": _PREDICTIONS.get(row["kind"], "held out"),
        }
        for row in rows
        if row["trace"] == trace and (row["kind"] == "kernels" or not of_tables)
    ]
    console.show(Table("Errors, in % of what was measured", _TRACE, records))
    console.print()


def show_collectives(console: Console, evaluation: Result) -> None:
    """One line per collective and reach."""
    title = "Median over curves of the median error, 64 kB and more"
    console.show(Table(title, _COLLECTIVES, evaluation.to_dict()["summary"]))


def show_ops(console: Console, evaluation: Result) -> None:
    """One line per source and name, and one of all."""
    answer = evaluation.to_dict()
    rows = [*answer["rows"], *([answer["all"]] if answer["all"] else [])]
    console.show(Table("Device time per op from shapes alone, errors in percent", _OPS, rows))


def show_modules(console: Console, evaluation: Result) -> None:
    """One line per call, then per mode, and what the host's speed seems to be."""

    def mode(row: Mapping[str, Any]) -> str:
        return f"{row['mode']}{', training' if row['is_training'] else ''}"

    answer = evaluation.to_dict()
    rows = [row | {"mode": mode(row)} for row in answer["rows"]]
    console.show(Table("Calls of modules", _MODULES, rows))
    for each in answer["summary"]:
        device = each["device_median_pct"]
        console.say(
            f"{mode(each)}: {_quality(each)}; host {each['host_median_pct']:.1f} % "
            f"(bias {each['host_bias_pct']:+.1f} %)"
            f"{'' if device is None else f', device {device:.1f} %'}"
        )
    speed = answer["measured_host_speed_ratio"]
    if speed is not None:
        console.say(
            f"the host, by {answer['host_bound']} calls that it bounds: "
            f"--set host.single_thread_ratio={speed:.2g} (used: {answer['host_speed_ratio']:.2g})"
        )


def _quality(figures: Mapping[str, Any]) -> str:
    """`n 12, median 3.1 %, ...`: those of the usual figures that are there."""
    names = {"median_pct": "median", "p90_pct": "90th percentile", "worst_pct": "worst"}
    parts = [f"{name} {figures[key]:.1f} %" for key, name in names.items() if key in figures]
    inside = f"coverage of 90 % intervals {figures['coverage_frac']:.0%}"
    return ", ".join([f"n {figures['n']}", *parts, f"bias {figures['bias_pct']:+.1f} %", inside])


def show_steps(console: Console, evaluation: Result) -> None:
    """One line per configuration."""
    answer = evaluation.to_dict()
    rows = [row | {"interval": interval(row["low_us"], row["high_us"])} for row in answer["rows"]]
    console.show(Table(f"Steps on {answer['device']}", _STEPS, rows))
    if answer["summary"]["n"]:
        console.say(_quality(answer["summary"]))


def show_pairs(console: Console, evaluation: Result) -> None:
    """One table per direction."""
    answer = evaluation.to_dict()
    for each in answer["directions"]:
        title = f"{Path(each['trace']).name}: {each['source']} to {each['target']}"
        console.show(Table(title, _PAIRS, [*each["times"], *each["families"]]))
        is_within = "within" if each["within"] else "outside"
        bounds = interval(each["low_us"], each["high_us"])
        console.say(f"the measured step is {is_within} its interval, {bounds}")
    summary = answer["summary"]
    console.say(
        f"n {summary['n']}; mean error of the step {summary['step_pct']:.1f} %, the same step as "
        f"the source {summary['step_same_pct']:.1f} %; GPU active "
        f"{summary['gpu_active_pct']:.1f} %, the same {summary['gpu_active_same_pct']:.1f} %; "
        f"coverage of 90 % intervals {summary['coverage_frac']:.0%}"
    )


def show_check(console: Console, held: Comparison, baseline: str, *, written: bool) -> None:
    """One sentence, and what got worse."""
    from perfmodel.validate.evaluate.baseline import extent, figure_text, verdict

    console.say(f"{baseline}: {f'written, {extent(held)}' if written else verdict(held)}")
    records = []
    for change in held.failing[:_MAX_CHANGES]:
        old, new = change.baseline, change.present
        texts = {
            "baseline_text": figure_text(change, old),
            "present_text": figure_text(change, new),
            "by": change.status.value,
        }
        if old is not None and new is not None:
            texts["by"] = f"{abs(new) - abs(old):+.2f}"
        records.append(change.to_dict() | texts)
    if records:
        console.show(Table("Worse than the baseline", _CHANGES, records))
    if len(held.failing) > _MAX_CHANGES:
        console.say(f"and {counted(len(held.failing) - _MAX_CHANGES, 'figure')} more")


def show_designs(console: Console, evaluation: Any) -> None:
    """One line per published figure, and how many hold of each kind of evidence."""

    def short(value: float) -> str:
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"

    records = []
    counts: dict[str, list[bool]] = {}
    for row in evaluation.to_dict()["rows"]:
        bounds = row["target"] if isinstance(row["target"], list) else [row["target"]]
        tolerance = f" (±{row['tolerance_pct']:g})" if row["tolerance_pct"] else ""
        texts = {
            "predicted": short(row["predicted"]),
            "published": f"{' to '.join(map(short, bounds))} {row['unit']}",
            "error": f"{row['error_pct']:+.1f}{tolerance}",
            "holds": "yes" if row["pass"] else "no",
        }
        records.append(row | texts)
        counts.setdefault(row["evidence"], []).append(row["pass"])
    console.show(Table("Published designs", _DESIGNS, records))
    kinds = (f"{sum(each)} of {len(each)} {kind}" for kind, each in counts.items())
    console.say(f"hold: {', '.join(kinds)}")
