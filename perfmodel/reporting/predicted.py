"""A prediction as lines and tables, from its answer in JSON: terminal and page show the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil
from pathlib import PurePath
from statistics import median
from typing import TYPE_CHECKING

from perfmodel.base.units import BYTES_PER_GB, counted, error_pct, human_us
from perfmodel.reporting import tables
from perfmodel.reporting.tables import Record, Table, Verdict

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction, Result


_DEVICE = (
    "gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;comm_us=comm:us;exposed_comm_us=exposed:us"
)
_GAIN = "gain_us=gain:us;gain_frac=of step:share"
_MAX_COLUMNS, MAX_DETAILED = 4, 8
"""Machines beside each other in a table of parts; beyond so many machines, there are none."""


def prediction_blocks(prediction: Prediction, *, in_full: bool = False) -> Iterator[str | Table]:
    """What it is of, the verdict, the results and what was measured, then steps, ranks, the
    critical path and kernels; assumed hardware values `in_full`."""
    source, results = prediction.source, prediction.results
    full, settings = [each.hardware for each in results], ""
    if several := len(results) > 1:  # of which all may have the same, said once
        _, begins, rest = full[0].rpartition(" (")
        settings = begins + rest if begins else ""
        settings = settings if all(each.endswith(settings) for each in full) else ""
        results = [replace(r, hardware=r.hardware.removesuffix(settings)) for r in results]
    answers = [result.to_dict() for result in results]
    named = list(zip(map(_name, results), answers, strict=True))
    yield _title(source)
    target = results[0].device.target if results[0].device else source["device"]
    has_device = target != "cpu" or any(each["kernel_sum_us"] for each in answers)
    device = _DEVICE if has_device else ""
    yield Verdict(_verdict(results, answers, has_device))
    yield _summary(results, answers, device)
    for hardware, (name, answer) in zip(full, named, strict=True):
        lines = () if several else _lines_of(source, answer)
        yield from (f"{name}: {line}" for line in (*lines, *_serving_lines(source, hardware)))
        if not several or in_full:
            yield assumed_text(name, answer["assumed"], in_full=in_full)
    if several:
        yield from _of_costs(answers)
        yield f"All with {settings[2:-1]}" if settings else ""
        if device and "node.host=" not in settings:
            yield "Each on the host that it is sold with; on one: --set node.host=generic-server"
        assumed = [each for answer in answers for each in answer["assumed"]]
        yield "" if in_full else assumed_text("all machines", assumed, in_full=False)
    if len(named) > MAX_DETAILED:
        yield "Where the time of one goes: --hardware NAME"
        return
    first = answers[0]
    if len(results) == 1 and len({step["step_us"] for step in first["steps"]}) > 1:
        rank = f", rank {results[0].rank.rank}" if len(first["per_rank"]) > 1 else ""
        yield _steps_table(first, rank)
        yield from _lines_of_steps(first)
    for result, (name, answer) in zip(results, named, strict=True):
        if len(answer["per_rank"]) > 1:
            yield _ranks_table(answer, f"Ranks, {name}", result.rank.rank, device)
            yield tables.straggler_text(answer["straggler"])
    kinds = "Time by family" if first["mode"] == "model" else "GPU time by kernel family"
    beside = ceil(len(named) / ceil(len(named) / _MAX_COLUMNS))
    for at in range(0, len(named), beside):
        some = named[at : at + beside]
        for title, key, by, us in (
            ("Critical path of the median step", "critical_path", "kind", "duration_us"),
            (kinds, "families", "family", "time_us"),
        ):
            parts = [(name, _summed(answer[key], by, us)) for name, answer in some]
            if key == "critical_path" or any(time_us for _, time_us in parts):
                yield tables.parts_table(title, parts)


def _title(source: Record) -> str:
    if "workload" in source:
        what = "training" if source["training"] else "inference"
        name, software = source["workload"], source["implementation"]
        return f"{name} ({software}), {what}, batch {source['batch']:,}"
    if not source["ranks"]:
        ranks = counted(len(source["execution_traces"]), "rank")
        return f"{tables.source_text(source['trace'])}: execution trace of {ranks}"
    if "operators" in source:
        return f"{source['trace']}: {counted(source['operators'], 'operator')}"
    ranks = counted(len(source["ranks"]), "rank")
    events = counted(source["events"], "event")
    return f"{tables.source_text(source['trace'])}: {source['device']}, {ranks}, {events}"


def _verdict(results: Sequence[Result], answers: Sequence[Record], has_device: bool) -> str:
    """The step of the fastest machine, where its time goes, and what would gain most; of several
    machines first which costs least."""
    from perfmodel.prediction.comparison import bottleneck_of

    at = min(range(len(results)), key=lambda place: results[place].step_us)
    result, answer = results[at], answers[at]
    bounds, found = tables.interval(result.low_us, result.high_us), bottleneck_of(result)
    text = f"{human_us(result.step_us)} a batch" + (f" ({bounds})" if bounds else "")
    if result.mode != "replay":
        fastest = f", the fastest of {len(results)}" if results[1:] else ""
        text += f" on {_name(result)}{fastest}"
    if answer["baseline"]:
        text += f" under the what-if, without it {human_us(answer['baseline']['step_us'])}"
    priced = [each for each in answers if each["cost"] and each["cost"]["usd_per_million"]]
    if found is None:
        path_us = _summed(answer["critical_path"], "kind", "duration_us")
        text += tables.path_text(path_us, has_device=has_device)
    else:
        text += found.sentence(with_gain=not priced[1:])
    if priced[1:]:
        least = min(priced, key=lambda each: each["cost"]["usd_per_million"])["hardware"]
        text += f"; the cheapest of the {len(priced)} with a known cost: {least}"
    return f"{text}."


def _lines_of(source: Record, answer: Record) -> Iterator[str]:
    """Memory, rate, cost and critical path of a result, where they are known."""
    memory = answer["memory"]
    if memory:
        parts = {"tables": "tables", "resident": "other resident", "temporary": "activations"}
        parts |= {"driver": "driver"} if memory["driver_bytes"] else {}
        gb = {name: memory[f"{key}_bytes"] / BYTES_PER_GB for key, name in parts.items()}
        rank = memory.get("rank")
        where = "per rank" if rank is None else f"on rank {rank}, the fullest"
        shown = ", ".join(f"{name} {size:,.1f}" for name, size in gb.items())
        fits = "" if memory["fits"] else "; does not fit"
        yield f"{memory['total_bytes'] / BYTES_PER_GB:,.1f} GB {where} ({shown}){fits}"
    if most := source.get("largest_batch"):
        filled = tables.percent(most["filled_frac"], 1)
        yield f"a batch of {most['batch']:,} fills {filled} of memory"
    if cost := answer["cost"]:
        kwh, usd = cost["kwh_per_million"], cost["usd_per_million"]
        factor, many = tables.per_samples([usd or kwh])
        missing = f"no price of {' and '.join(cost['unpriced'])}, "
        money = missing if usd is None else f"USD {tables.three_digits(usd * factor)}, "
        copies = "" if cost["copies"] == 1 else f"{cost['copies']:g} copies: "
        rate = f"{copies}{cost['rate_per_s']:,.0f} {cost['per']} per second"
        yield f"{rate}; {money}{tables.three_digits(kwh * factor)} kWh per {many}"
    if answer["bound_by"] and answer["latency_us"] is not None:
        total = sum(answer["bound_by"].values())
        shares = ", ".join(
            f"{name} {tables.percent(us, total)}"
            for name, us in answer["bound_by"].items()
            if us >= 0.01 * total
        )
        latency = human_us(answer["latency_us"])
        yield f"critical path: {shares}; latency of one step {latency}"


def _serving_lines(source: Record, hardware: str) -> Iterator[str]:
    """Latency at a rate, or the rate within a latency."""
    for row in source.get("serving", ()):
        if row["hardware"] != hardware:
            continue
        if "rate_per_s" in row:
            found = row["note"] or (
                f"{tables.percent(row['load_frac'], 1)} of its time, half within "
                f"{human_us(row['p50_us'])}, 99 % within {human_us(row['p99_us'])}"
            )
            batch = f" in batches of up to {row['batch']:,}" if row["batch"] else ""
            yield f"at {row['rate_per_s']:,.0f} samples/s{batch}: {found}"
        if "most_per_s" in row:
            limit = human_us(row["p99_limit_us"])
            yield f"99 % within {limit} up to {row['most_per_s']:,.0f} samples/s"


def _of_costs(answers: Sequence[Record]) -> Iterator[str]:
    """Which machines may as well be the best, and for want of which prices some have no cost."""
    costs = {each["hardware"]: each["cost"] for each in answers if each["cost"]}
    over = {name: cost["over_best"] for name, cost in costs.items() if cost["over_best"]}
    known = sorted(over, key=over.__getitem__)
    near = [name for name in known[1:] if (costs[name]["over_best_interval"] or (2,))[0] <= 1]
    if near:
        yield f"Within the 90 % interval of the best, {known[0]}: {', '.join(near)}"
    if lacking := [cost["unpriced"] for cost in costs.values() if cost["unpriced"]]:
        every = chain.from_iterable(lacking)
        parts = Counter("device" if part.startswith("device ") else part for part in every)
        of = ", ".join(f"{part} ({count})" for part, count in parts.most_common())
        hint = f"--set {of.split(' ')[0]}.price_usd=USD"
        yield f"No cost of {len(lacking)}, for want of prices: {of}; {hint}"


def _summary(results: Sequence[Result], answers: Sequence[Record], device: str) -> Table:
    """One row for what was measured, one per result, of a what-if with the one without it above; of
    several machines what they cost."""
    truth_us = _measured_step_us(results[0])
    is_replay = all(each["mode"] == "replay" for each in answers)
    records = list[Record]()
    costs = [each["cost"] for each in answers if each["cost"]] if results[1:] else []
    factor, many = tables.per_samples(each["usd_per_million"] for each in costs)
    if truth_us is not None:
        measured = answers[0]["measured"] or {}
        records.append(measured | {"name": "measured", "step_us": truth_us})
    for result, answer in zip(results, answers, strict=True):
        before, memory = answer["baseline"], result.memory
        keys = ("usd_per_million", "over_best", "over_best_interval")
        usd, over, ends = ((result.cost or {}).get(key) for key in keys)
        own = {
            "gb": memory and memory["total_bytes"] / BYTES_PER_GB,
            "usd": usd and usd * factor,
            "over": over and f"{tables.three_digits(over)}x",
            "ends": ends and " to ".join(map(tables.three_digits, ends)),
        }
        rows = [(_name(result.baseline or result), before or {**answer, "gain_us": None})]
        rows += [("what-if", answer)] if before else []
        for name, row in rows:
            error = None if is_replay else error_pct(row["step_us"], truth_us)
            records.append({**row, **own, "name": name, "against_pct": error})
    title = f"Cost per {many} {costs[0]['per']}, and time per batch" if costs else "Per batch"
    machines = "gb=GB:,.1f;usd=USD:size;over=over best:s;ends=90 %:s;" if costs else ""
    bounds = "low_us=low:us;high_us=high:us;against_pct=vs measured %:+.2f"
    device = device if len(results) <= MAX_DETAILED else ""
    heads = f"name=:name;step_us=step:us;{bounds};{_GAIN};{machines}{device}"
    return Table(title, heads.strip(";"), records)


def _name(result: Result) -> str:
    """What a column is headed; of a file without its folders."""
    if result.mode == "replay":
        return "replayed" if result.baseline is None else "what-if"
    return PurePath(result.hardware).name


def _lines_of_steps(answer: Record) -> Iterator[str]:
    """What the median of the steps leaves out; of steps left out, the errors and the nulls'."""
    steps = answer["steps"]
    rows = [(s["name"], s["role"], s["measured_us"] or s["step_us"]) for s in steps]
    yield tables.excluded_steps(rows)
    left_out = [
        (step["measured_us"], step["left_out"] | {"step_us": step["step_us"]})
        for step in steps
        if step["left_out"] and step["measured_us"] and step["role"] == tables.STEADY
    ]
    if not left_out:
        if answer["mode"] == "replay" and answer["gain_us"] is None:
            yield "Scheduled with each step's own times; with those of others: --leave-one-step-out"
        return
    errors = []
    for key, name in (("step_us", "replay"), ("null_mean_us", "others' mean")):
        sizes = [abs(each[key] / us - 1) for us, each in left_out if each[key] is not None]
        errors += [f"{name} {tables.percent(sum(sizes), len(sizes))}"] if sizes else []
    yield f"Mean absolute error of steps left out: {', '.join(errors)}."
    inside = sum(each["low_us"] <= us <= each["high_us"] for us, each in left_out)
    yield f"In their 90 % intervals: {inside} of {counted(len(left_out), 'step')}."


def _steps_table(answer: Record, rank: str) -> Table:
    """The slowest rank's steps and what was measured or is without the what-if."""
    steps, step_us = answer["steps"], "predicted" if answer["gain_us"] is None else "what-if"
    records: list[Record] = []
    for step in steps:
        name = tables.step_name(step["name"], step["role"])
        record = {**step, **(step["left_out"] or {}), "step": name}
        if answer["mode"] == "model":  # of shapes: no step is one of the trace's
            record |= dict.fromkeys(("measured_host_frac", "baseline_us", "gain_us", "gain_frac"))
        elif any(each["left_out"] for each in steps):
            record["measured_host_frac"] = None
        records.append(record)
    heads = (
        f"step=;step_us={step_us}:us;baseline_us=without:us;{_GAIN};measured_us=measured:us;"
        "error_pct=error %:+.2f;null_mean_us=others' mean:us;measured_host_frac=measured host:share"
    )
    return Table(f"Steps{rank}", heads, records)


def _ranks_table(answer: Record, title: str, slowest: int, device: str) -> Table:
    """What each rank takes, and what was measured or it takes without the what-if."""
    is_what_if = answer["gain_us"] is not None
    records = [
        row
        | {
            "rank": f"{row['rank']}{' (slowest)' if row['rank'] == slowest else ''}",
            "measured_us": None if is_what_if else row["measured_us"],
            "error_pct": None if is_what_if else error_pct(row["step_us"], row["measured_us"]),
        }
        for row in answer["per_rank"]
    ]
    heads = (
        "rank;baseline_us=without:us;measured_us=measured:us;step_us=step:us;"
        f"{_GAIN};error_pct=error %:+.2f;{device};transfer_us=transfer:us;waiting_us=waiting:us!"
    )
    return Table(title, heads.replace(";;", ";"), records)


def _summed(rows: Sequence[Record], by: str, time_us: str) -> dict[str, float]:
    """Microseconds of rows of an answer, by one of their texts."""
    total: dict[str, float] = {}
    for row in rows:
        total[row[by]] = total.get(row[by], 0.0) + row[time_us]
    return total


def _measured_step_us(result: Result) -> float | None:
    """The measured median step of the rank that stands for the job, whatever was predicted; None
    where nothing was measured."""
    from perfmodel.timeline.schedule import by_rank_and_step, measured, ranks_of, steady_steps

    if result.mode == "model":
        return result.rank.measured["step_us"] if result.rank.measured else None
    base = result.baseline or result
    truth = measured(base.timeline.graph)
    own = ranks_of(truth.graph).index(base.rank.rank)
    steps_us = by_rank_and_step(truth.graph, truth.step_us)[own, steady_steps(truth)]
    return float(median(steps_us.tolist()))


def assumed_text(name: str, figures: Sequence[Record], *, in_full: bool) -> str:
    """How many of `figures` (`Read.to_dict`) are assumed or recalled; `in_full` which, with their
    values, and their parts where several have a figure of that name. Empty without any."""
    from perfmodel.hardware.schema import ASSUMED, RECALLED

    count = Counter(each["figure"] for each in figures)
    texts: dict[str, list[str]] = {ASSUMED: [], RECALLED: []}
    for each in figures:
        if each["grounds"] in texts:
            part = f"{each['part']} " if count[each["figure"]] > 1 else ""
            text = f"{part}{each['figure']} {tables.number_text(each['value'])}"
            texts[each["grounds"]].append(text)
    said = [f"{grounds}: {', '.join(each)}" for grounds, each in texts.items() if each]
    if not said or in_full:
        hint = "sources: perfmodel hardware NAME, or --format json"
        return f"{name}: hardware values {'; '.join(said)} ({hint})" if said else ""
    guesses, unchecked = len(texts[ASSUMED]), len(texts[RECALLED])
    is_one = unchecked == 1
    of = "" if guesses else " hardware value" if is_one else " hardware values"
    verb = "was not checked against its" if is_one else "were not checked against their"
    parts = [f"{unchecked}{of} {verb} source"] * bool(unchecked)
    if guesses:
        are = " is a guess" if guesses == 1 else "s are guesses"
        parts.insert(0, f"{guesses} hardware value{are}")
    return f"{name}: {', '.join(parts)} (--sources)"
