"""A prediction as tables for people, and why one of its nodes takes what it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import BYTES_PER_GB, US_PER_S, human_us
from perfmodel.cli.console import Console
from perfmodel.cli.output import Output
from perfmodel.cli.prediction_options import Demo
from perfmodel.reporting.tables import (
    DEVICE,
    GAIN,
    NULLS,
    STEADY,
    Record,
    Table,
    counted,
    error_pct,
    excluded_steps,
    measured_step_us,
    parts_table,
    percent,
    ranks_table,
    source_text,
    steps_table,
    straggler_text,
    summed,
)

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result


SCHEMA = "perfmodel.explanation/1"
_MAX_COLUMNS = 4


def show_prediction(console: Console, prediction: Prediction, demo: Demo | None = None) -> None:
    """The results and what was measured, then steps, ranks, kernels and the critical path."""
    source, results = prediction.source, prediction.results
    answers = [result.to_dict() for result in results]
    named = list(zip(map(_name, results), answers, strict=True))
    console.say(_title(source))
    if demo:
        console.say(f"{demo['model']}; captured on {demo['machine']}")
    has_device = source["device"] != "cpu" or any(each["kernel_sum_us"] for each in answers)
    device = DEVICE if has_device else ""
    console.show(_summary(results, answers, device))
    for result, (name, answer) in zip(results, named, strict=True):
        for line in _lines_of(source, result, answer):
            console.say(f"{name}: {line}")
        console.say_assumed(name, answer["assumed"])
    first = answers[0]
    if len(results) == 1 and len({step["step_us"] for step in first["steps"]}) > 1:
        rank = f", rank {results[0].rank.rank}" if len(first["per_rank"]) > 1 else ""
        left_out_us = demo["left_out_us"] if demo and first["mode"] == "replay" else ()
        console.show(steps_table(first, rank, left_out_us))
        _say_steps(console, first["steps"])
    if demo:
        console.print()
        keys = ("unprofiled_us", "unprofiled_p10_us", "unprofiled_p90_us")
        median, p10, p90 = (human_us(demo[key]) for key in keys)
        console.say(
            f"Without the profiler a step takes {median} (median; 10 to 90 %: {p10} to {p90})."
        )
    for result, (name, answer) in zip(results, named, strict=True):
        if len(answer["per_rank"]) > 1:
            console.show(ranks_table(answer, f"Ranks, {name}", result.rank.rank, device))
            console.say(straggler_text(answer["straggler"]))
    kinds = "Time by family" if first["mode"] == "model" else "GPU time by kernel family"
    for at in range(0, len(named), _MAX_COLUMNS):
        some = named[at : at + _MAX_COLUMNS]
        for title, key, by, us in (
            ("Critical path of the median step", "critical_path", "kind", "duration_us"),
            (kinds, "families", "family", "time_us"),
        ):
            parts = [(name, summed(answer[key], by, us)) for name, answer in some]
            if key == "critical_path" or any(time_us for _, time_us in parts):
                console.show(parts_table(title, parts))


def _title(source: Record) -> str:
    """What was predicted, in a line."""
    if "workload" in source:
        what = "training" if source["training"] else "inference"
        software = source["implementation"]
        return f"{source['workload']} ({software}), {what}, batch {source['batch']:,}"
    if not source["ranks"]:
        ranks = counted(len(source["execution_traces"]), "rank")
        return f"{source_text(source['trace'])}: execution trace of {ranks}"
    if "operators" in source:
        return f"{source['trace']}: {counted(source['operators'], 'operator')}"
    counts = f"{counted(len(source['ranks']), 'rank')}, {counted(source['events'], 'event')}"
    return f"{source_text(source['trace'])}: {source['device']}, {counts}"


def _lines_of(source: Record, result: Result, answer: Record) -> Iterator[str]:
    """Memory, rate and latency of a result, where they are known."""
    memory = answer["memory"]
    if memory:
        gb = {key: value / BYTES_PER_GB for key, value in memory.items() if "bytes" in key}
        rank = memory.get("rank")
        where = "per rank" if rank is None else f"on rank {rank}, the fullest"
        yield (
            f"{gb['total_bytes']:,.1f} GB {where} (tables {gb['tables_bytes']:,.1f}, "
            f"other resident {gb['resident_bytes']:,.1f}, activations "
            f"{gb['temporary_bytes']:,.1f}){'' if memory['fits'] else '; does not fit'}"
        )
    if "workload" in source:
        yield f"{source['batch'] / result.step_us * US_PER_S:,.0f} samples per second"
    if answer["bound_by"] and answer["latency_us"] is not None:
        total = sum(answer["bound_by"].values())
        shares = ", ".join(
            f"{name} {percent(us, total)}"
            for name, us in answer["bound_by"].items()
            if us >= 0.01 * total
        )
        latency = human_us(answer["latency_us"])
        yield f"critical path: {shares}; latency of one step {latency}"
    for row in source.get("serving", ()):
        if row["hardware"] != answer["hardware"]:
            continue
        if "rate_per_s" in row:
            found = row["note"] or (
                f"{row['load_frac']:.0%} of its time, half within {human_us(row['p50_us'])}, 99 % "
                f"within {human_us(row['p99_us'])}"
            )
            yield f"at {row['rate_per_s']:,.0f} samples/s: {found}"
        if "most_per_s" in row:
            limit = human_us(row["p99_limit_us"])
            yield f"99 % within {limit} up to {row['most_per_s']:,.0f} samples/s"


def _summary(results: Sequence[Result], answers: Sequence[Record], device: str) -> Table:
    """One row for what was measured, one per result, of a what-if with the one without it above."""
    truth_us = measured_step_us(results[0])
    is_replay = all(each["mode"] == "replay" for each in answers)
    records: list[Record] = []
    if truth_us is not None:
        measured = answers[0]["measured"] or {}
        records.append(measured | {"name": "measured", "step_us": truth_us})
    for result, answer in zip(results, answers, strict=True):
        before = answer["baseline"]
        rows = [(_name(result.baseline or result), before or {**answer, "gain_us": None})]
        rows += [("what-if", answer)] if before else []
        for name, row in rows:
            error = None if is_replay else error_pct(row["step_us"], truth_us)
            records.append({**row, "name": name, "against_pct": error})
    bounds = "low_us=low:us;high_us=high:us;against_pct=vs measured %:+.2f"
    return Table("Per batch", f"name=;step_us=step:us;{bounds};{GAIN};{device}".strip(";"), records)


def _name(result: Result) -> str:
    """What a column is headed; of a file without its folders."""
    if result.mode == "replay":
        return "replayed" if result.baseline is None else "what-if"
    return PurePath(result.hardware).name


def _say_steps(console: Console, steps: Sequence[Record]) -> None:
    """What the median of the steps leaves out; of steps left out, the errors and the nulls'."""
    rows = [(s["name"], s["role"], s["measured_us"] or s["step_us"]) for s in steps]
    console.say(excluded_steps(rows))
    left_out = [
        (step["measured_us"], step["left_out"] | {"step_us": step["step_us"]})
        for step in steps
        if step["left_out"] and step["measured_us"] and step["role"] == STEADY
    ]
    if not left_out:
        return
    errors = []
    for key, name in ({"step_us": "replay"} | NULLS).items():
        sizes = [abs(each[key] / us - 1) for us, each in left_out if each[key] is not None]
        errors += [f"{name} {percent(sum(sizes), len(sizes))}"] if sizes else []
    console.say(f"Mean absolute error of steps left out: {', '.join(errors)}.")
    inside = sum(each["low_us"] <= us <= each["high_us"] for us, each in left_out)
    console.say(f"In their 90 % intervals: {inside} of {counted(len(left_out), 'step')}.")


def write_explanation(prediction: Prediction, node: str, target: Output) -> None:
    """Write why `node` takes what it takes, on each hardware.

    Raises `UsageError` where there is no such node.
    """
    answers = [result.explain(node).to_dict() for result in prediction.results]
    reasons = [list(_reasons(answer["reason"])) for answer in answers]

    def rows() -> list[dict[str, Any]]:
        """One row per term of each reason, parts named `REASON / PART`."""
        return [
            {
                "hardware": answer["hardware"],
                "node": answer["node"]["number"],
                "part": part,
                "term": term,
                "value": value,
            }
            for answer, listed in zip(answers, reasons, strict=True)
            for part, reason in listed
            for term, value in (
                ("duration_us", reason["duration_us"]),
                ("formula", reason["formula"]),
                *reason["terms"].items(),
            )
        ]

    def table(console: Console) -> None:
        for answer, listed in zip(answers, reasons, strict=True):
            _show_explained(console, answer, listed)

    document = {"schema": SCHEMA, "results": answers, "warnings": prediction.warnings}
    target.write(lambda: document, rows, table, prediction.warnings)


def _reasons(reason: Record, before: str = "") -> Iterator[tuple[str, Record]]:
    """(name, reason) of a reason and of its parts, outermost first."""
    name = f"{before}{reason['what']}"
    yield name, reason
    for part in reason["parts"]:
        yield from _reasons(part, f"{name} / ")


def _show_explained(
    console: Console, answer: Record, reasons: Sequence[tuple[str, Record]]
) -> None:
    """Where the node stands, its reasons from the outside in, and the values that they read."""
    node, waits = answer["node"], answer["waits_for"]
    if answer["matches"] > 1:
        console.say(f"{counted(answer['matches'], 'node')} match {answer['asked']}; the longest:")
    op = f" of {node['op']}" if node["op"] else ""
    console.say(f"node {node['number']}: {node['label']}{op}; {node['kind']}, {node['cause']}")
    step = f"step {node['step']}" if node["step"] else "outside of the steps"
    where = f"{answer['hardware']}, {answer['mode']}: rank {node['rank']}, {node['resource']}"
    console.say(f"{where}, {step.replace('step step', 'step')}")
    importance = "no step waits for it"
    if node["on_critical_path"]:
        importance = "on the critical path of its step"
    elif node["slack_us"] is not None:
        importance = f"not on the critical path: {human_us(node['slack_us'])} of slack"
    start = human_us(node["start_us"])
    console.say(f"{human_us(node['duration_us'])}, from {start} on; {importance}")
    if waits:
        console.say(
            f"starts after node {waits['number']} ({waits['label']}) by its {waits['edge']} edge, "
            f"lag {human_us(waits['lag_us'])}: {waits['lag_source']}"
        )
    figures: dict[tuple[Any, ...], Record] = {}
    coefficients: dict[str, Record] = {}
    for name, reason in reasons:
        console.print()
        console.say(f"{name}: {human_us(reason['duration_us'])}")
        console.say(f"formula: {reason['formula']}")
        terms = [
            {"term": key, "value": value if isinstance(value, str) else f"{value:,.10g}"}
            for key, value in reason["terms"].items()
            if value is not None
        ]
        if terms:
            console.show(Table("", "term;value", terms, full_names=True))
        figures |= {tuple(each.values()): each for each in reason["figures"]}
        coefficients |= {each["name"]: each for each in reason["coefficients"]}
    console.show_read("Figures read", list(figures.values()))
    console.show_read("Coefficients read", [coefficients[name] for name in sorted(coefficients)])
