"""`perfmodel plan`: a sharding plan for a workload on a cluster, and why; `perfmodel sweep`:
thousands of settings of hardware and workload, and what they show."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import BYTES_PER_GB, counted, human_us
from perfmodel.cli.console import LINE, alike, assumed
from perfmodel.cli.options import PACKAGED, Format, KernelOptions
from perfmodel.cli.output import (
    STDOUT,
    Output,
    check_figure,
    check_target,
    save_figure,
    working,
    wrote,
)
from perfmodel.reporting import tables
from perfmodel.reporting.tables import NAME, SIZE, TIME, Block, Column, Table, Verdict, columns

if TYPE_CHECKING:
    from perfmodel.explore import Sweep
    from perfmodel.explore.planner import Plan


SHOWN, SHOWN_LAYOUTS = 40, 5
_TRIED = "mix=tables by sharding;step_us=step:us;surrogate_us=quick estimate,|without the host:us"
_TABLES = (
    "table:name;size=rows x dim|x pooling:name;sharding:name;where=ranks:name;tier=in:name;gb=GB:s"
)


def plan(
    workload: str,
    hardware: str,
    nodes: int | None = None,
    batch: int | None = None,
    inference: bool = False,
    settings: list[str] | None = None,
    timed_by: KernelOptions = PACKAGED,
    torchrec: Path | None = None,
    target: Output = STDOUT,
) -> None:
    check_target(torchrec)

    from perfmodel import api

    with working("planning") as begin:
        found = api.plan(
            workload,
            hardware,
            settings=settings or [],
            nodes=nodes,
            batch=batch,
            train=not inference,
            begin=begin,
        )
    if torchrec is not None:
        from perfmodel.explore.torchrec import torchrec_document

        it = found.deployment
        document = torchrec_document(it.placement, it.workload, it.machine)
        wrote(torchrec, "TorchRec's sharding plan", json.dumps(document, indent=1))
    if target.path and target.form is not Format.TABLE:  # the plan goes to a file: show it too
        STDOUT.write_result(found, _blocks, found.deployment.notes)
    hint = "the plan; use it with --plan of predict and compare"
    target.write_result(found, _blocks, found.deployment.notes, hint=hint)


def _blocks(planned: Plan) -> Iterator[Block]:
    result = planned.result
    bounds = tables.interval(result.low_us, result.high_us)
    yield Verdict(
        f"{result.hardware}: {human_us(result.step_us)} a step ({bounds}), "
        f"the busiest rank looks up {planned.imbalance:.2f} times the mean; "
        f"at most {tables.percent(planned.gap_frac, 1)} above the optimum "
        "(quick estimate, without the host)"
    )
    yield f"{result.hardware}: {_software(planned)}"
    fullest, mean, left = (size / BYTES_PER_GB for size in planned.memory.values())
    yield (
        f"{result.hardware}: {fullest:.1f} GB on the fullest rank, {mean:.1f} GB in the mean, "
        f"{left:.1f} GB left"
    )
    yield assumed(result.hardware, [each.to_dict() for each in result.assumed])
    fastest = sorted(planned.tried, key=lambda each: float(each["step_us"]))[:SHOWN_LAYOUTS]
    tried = [
        dict(each) | {"mix": ", ".join(f"{n} {name}" for name, n in each["sharding"].items())}
        for each in fastest
    ]
    title = f"Fastest of {counted(len(planned.tried), 'layout')} scheduled in full"
    yield Table(title, _TRIED, tried)
    ordered = sorted(planned.tables, key=lambda row: -row["work_us"])
    records = [
        row | {"where": _ranks(sorted({rank for each in rows for rank in each["ranks"]}))}
        for row, rows in alike(ordered, _row)
    ]
    title = "Tables, those with most work first"
    heads = f"{_TABLES};why" if LINE.get().notes else _TABLES
    yield Table(title, heads, records, full_names=True, most=SHOWN)
    yield "" if LINE.get().notes else "Why no other sharding: -v"


def _row(table: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a table, but for its name and ranks."""
    gb = "<0.001" if table["hbm_gb"] < 0.001 else f"{table['hbm_gb']:,.3f}"
    size = f"{table['rows']:,} x {table['dim']} x {table['pooling']:.3g}"
    return {"size": size, "gb": gb} | {key: table.get(key) for key in ("sharding", "tier", "why")}


def _software(planned: Plan) -> str:
    """The software that is simulated, and steps of the initial layout and of the own software."""
    from perfmodel.prediction.step import in_designs_software

    about, before, own = planned.deployment, planned.before, planned.own
    software = about.workload.implementation
    was = software.sharding if about.own_layout is None else "by a search"
    takes = f"takes {human_us(before.step_us)}" if before else "does not fit"
    initial = f"the initial layout ({was}) {takes}"
    if in_designs_software(about.workload):
        return f"simulated with {software.name}, the workload's own software; {initial}"
    takes = f"takes {human_us(own.step_us)}" if own else "does not fit"
    initial = f"simulated with TorchRec; {initial}"
    return f"{initial}; {software.name}, the workload's own software, {takes}"


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


MAX_ROWS = 20
"""Points of a sweep that are shown; up to so many, all."""
J_PER_KWH = 3.6e6
_ELASTICITIES = "axis:name;objective;base:,.6g;at_base=at base:size;elasticity:+.3f"
_UNITS = {
    "step_us": ("step", TIME, 1.0),
    "samples_per_s": ("samples/s", SIZE, 1.0),
    "cost_usd_per_million": ("USD per\n{}", SIZE, 1.0),
    "energy_j_per_sample": ("kWh per\n{}", SIZE, 1e6 / J_PER_KWH),
    "power_w": ("power (W)", SIZE, 1.0),
}
"""Heads and forms of objectives, in the units of `compare`, and their factors to a million."""


def _units(objective: str, best: float) -> tuple[str, str, float]:
    """Head, form and factor of an objective of which the `best` is shown."""
    head, form, factor = _UNITS[objective]
    more, many = tables.per_samples([best * factor]) if "{}" in head else (1.0, "")
    return head.format(many), form, factor * more


def sweep(
    spec: Path,
    objective: str | None = None,
    workers: int = 0,
    sensitivity: bool = False,
    figure: Path | None = None,
    target: Output = STDOUT,
) -> None:
    check_figure(figure)
    from perfmodel import explore

    wanted = explore.load_spec(spec, objective)
    with working("sweeping") as begin:
        swept = explore.sweep(wanted, workers=workers, begin=begin)
    answer = swept.to_dict() | {"sensitivity": None}
    if sensitivity:
        moved = explore.sensitivity(wanted).astype(object)
        answer["sensitivity"] = moved.where(moved.notna(), None).to_dict("records")
    save_figure(figure, swept.plot)

    def blocks() -> Iterator[Block]:
        yield f"{answer['source']['input']}: {counted(answer['points'], 'point')}"
        for name, row in answer["best"].items():
            at = ", ".join(f"{axis} {tables.number_text(row[axis])}" for axis in swept.axes)
            head, form, factor = _units(name, row[name])
            text = human_us(row[name]) if form == TIME else tables.three_digits(row[name] * factor)
            yield Verdict(f"best {' '.join(head.split())} {text}: {at}")
        yield assumed("its best point", answer["assumed"])
        if answer["pareto"]:
            title, records, heads = _points(swept, [row["point"] for row in answer["pareto"]])
            yield Table(title, heads, records, most=MAX_ROWS)
        if answer["sensitivity"]:
            yield Table("Elasticities", _ELASTICITIES, answer["sensitivity"])

    target.write(lambda: answer, swept.to_frame, blocks, swept.warnings, hint="every point")


def _points(found: Sweep, front: Sequence[int]) -> tuple[str, list[dict[str, Any]], list[Column]]:
    """Every point where they are few, the best ones marked; of many the best ones alone."""
    several = len(found.objectives) > 1
    rows = [found.row(at) for at in range(len(found.frame))]
    title, is_marked = f"Points; * {'Pareto front' if several else 'best'}", len(rows) > 1
    if len(rows) > MAX_ROWS:
        rows = [row for number in front for row in rows if row["point"] == number]
        title, is_marked = "Pareto front" if several else "Best point", False
    forms = {name: NAME if isinstance(rows[0][name], str) else ",.6g" for name in found.axes}
    ordered = sorted(found.axes, key=lambda name: forms[name] != NAME)  # texts first
    heads = [Column(name, name.replace(".", ".\n"), forms[name], keep=True) for name in ordered]
    heads += columns("mark=:s") if is_marked else []
    records = [{**row, "mark": "*" if row["point"] in front else ""} for row in rows]
    for name, at in found.best().items():
        head, form, factor = _units(name, found.row(at)[name])
        for record in records:
            record[name] = record[name] and record[name] * factor
        heads.append(Column(name, head, form))
    return title, records, heads
