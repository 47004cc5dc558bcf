"""`perfmodel compare`: designs against each other on one workload and one machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import MOST_SAMPLES, FormatOption, NodesOption, OutputOption
from perfmodel.cli.output import Output, check_figure, save_drawn, working
from perfmodel.errors import UsageError
from perfmodel.units import US_PER_MS

if TYPE_CHECKING:
    from perfmodel.designs.composed import Settings
    from perfmodel.hardware import Cluster
    from perfmodel.prediction.comparison import Comparison
    from perfmodel.workload import Workload


LIST, ALL = "list", "all"
DESIGN_LIST = "perfmodel.designs/1"
OF_HARDWARE = ("device", "host", "link", "nic", "storage", "accelerator", "node", "cluster")
OF_WORKLOAD = "workload"


def compare(
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="A model configuration (see `perfmodel predict`)."),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A device, node or cluster.")
    ] = None,
    designs: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,A+B|all",
            help="Designs, combined with + (A+B), or all; `list` lists them.",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=MOST_SAMPLES, help="Global batch. [default: the workload's]"
        ),
    ] = None,
    nodes: NodesOption = None,
    inference: Annotated[bool, typer.Option("--inference", help="The forward pass alone.")] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="SAMPLES/S", help="Latency where samples arrive at this rate, batch by batch."
        ),
    ] = None,
    p99_ms: Annotated[
        float | None,
        typer.Option(
            "--p99-ms",
            metavar="MS",
            help="With --inference and --rate: batch and replicas of the machine that answer 99 % "
            "of the samples within this time at least cost; batches up to --batch are tried.",
        ),
    ] = None,
    usd_per_kwh: Annotated[
        float | None, typer.Option(metavar="USD", help="Price of energy.")
    ] = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(metavar="USD", help="Rent of a node. [default: as the catalogue has it]"),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Show speed-ups over these designs. [default: the fastest baseline there is]",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="WHAT.KEY=VALUE",
            help="Change a setting of a design (hotline.hot_mib=256), the workload "
            "(workload.training.loss=mse) or the hardware (node.gpus=4). May be repeated.",
        ),
    ] = None,
    overheads: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="Host overheads: a saved profile, or a shipped one."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="All designs start from this plan's layout (see `perfmodel plan`); `neo` keeps it "
            "with --set neo.sharding=as_deployed.",
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the comparison (.png, .svg, .pdf)."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The old name of --figure.")
    ] = None,
    latency: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw latency over the rate at which samples come."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Co-designs side by side: time, energy, cost, memory.

    Throughput, latency at a rate, what serves a latency, and which fit, too.

    \b
    Examples:
      perfmodel compare --designs list
      perfmodel compare --workload criteo-terabyte --hardware dgx-a100-80gb \\
        --designs cpu_only,software_cache --rate 1e6 --figure designs.svg
      perfmodel compare --workload criteo-terabyte --hardware dgx-a100-80gb \\
        --designs software_cache --set software_cache.cache_frac=0.05
      perfmodel compare --workload dlrm-dcnv2 --hardware dgx-h100 --designs default \\
        --inference --batch 65536 --rate 5e6 --p99-ms 10
    """
    if p99_ms is not None:
        if not inference or rate is None:
            raise UsageError("--p99-ms: it is of inference at a rate: add --inference and --rate")
        if not 0 < p99_ms < inf:
            raise UsageError(f"--p99-ms {p99_ms:g}: expected milliseconds above 0")
    if plot and figure:
        raise UsageError("--plot is the old name of --figure: give --figure alone")
    figure = figure or plot
    check_figure(figure, workload)
    check_figure(latency, workload)
    files = [path.resolve() for path in (figure, latency, output) if path]
    if len(set(files)) < len(files):
        raise UsageError("--figure, --latency, --output: two of them name the same file")
    target = Output(format, output, sources=[workload] if workload else [])
    if designs == LIST or (designs is None and workload is None):
        _list(target)
        return
    if designs is None:
        raise UsageError(f"--designs: name some, or {ALL}; `perfmodel compare` alone lists them")
    if workload is None:
        raise UsageError("--designs: name the workload: --workload criteo-terabyte")
    if hardware is None:
        raise UsageError("--designs: name the machine: --hardware dgx-a100-80gb")
    from perfmodel.cli.comparison_tables import show_comparison
    from perfmodel.designs.composed import UNDESIGNED, composed
    from perfmodel.prediction.compare import compare_designs, with_default
    from perfmodel.prediction.power_and_cost import Prices

    baselines = _names(over) if over else []
    names = _names(designs)
    names += [name for name in baselines if name not in (*names, *UNDESIGNED)]
    own = _of_designs(settings or [], names)
    asked = [composed(name, own) for name in names]
    model, machine = _workload(workload, settings or []), _machine(hardware, nodes, settings or [])
    prices = {} if usd_per_kwh is None else {"usd_per_kwh": usd_per_kwh}
    placement = None
    if plan is not None:
        from perfmodel.explore.planner.document import read_plan

        placement = read_plan(plan, model, machine)
    with working("comparing"):
        comparison = compare_designs(
            model,
            machine,
            with_default(asked, model),
            batch=batch,
            train=not inference,
            rate_per_s=rate,
            prices=Prices(**prices, usd_per_hour=usd_per_hour),
            overheads=overheads,
            placement=placement,
            over=baselines,
            p99_us=None if p99_ms is None else p99_ms * US_PER_MS,
        )
    missing = [name for name in baselines if name not in [row.design for row in comparison.rows]]
    if missing:
        raise UsageError(f"--over: {missing[0]} is not among the designs compared")
    if p99_ms is not None:
        _require_serving(comparison, p99_ms)
    # Both are drawn before one is written: where one cannot be, there is none.
    drawn = [
        (draw(), path)
        for draw, path in ((comparison.plot, figure), (comparison.latency_figure, latency))
        if path
    ]
    for drawing, path in drawn:
        save_drawn(path, drawing)
    if plot:
        print("perfmodel: --plot is now called --figure", file=sys.stderr)

    target.write_result(
        comparison, lambda console: show_comparison(console, comparison), comparison.warnings
    )


def _require_serving(found: Comparison, p99_ms: float) -> None:
    """Raise `UsageError` where designs can be and none of them is so fast at the rate."""
    slow = [row for row in found.rows if row.least_p99_us is not None]
    if not slow or any(row.serving for row in slow):
        return
    best = min(slow, key=lambda row: row.least_p99_us or 0.0)
    least_us = best.least_p99_us or 0.0
    if least_us > p99_ms * US_PER_MS:
        why = f"the fastest, {best.design}, takes at least {least_us / US_PER_MS:.3g} ms"
    else:
        why = "a lower rate fills batches too slowly: try another --batch"
    rate = found.source["rate_per_s"]
    raise UsageError(f"--p99-ms {p99_ms:g}: no design meets it at {rate:g} samples/s: {why}")


def _names(designs: str) -> list[str]:
    """What was asked for, one by one."""
    from perfmodel.designs import DESIGNS

    if designs == ALL:
        return list(DESIGNS)
    names = [name.strip() for name in designs.split(",") if name.strip()]
    if not names:
        raise UsageError("--designs: name one or more (`--designs list` lists them)")
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageError(f"--designs: {name} comes twice")
    return names


def _of_designs(settings: Sequence[str], names: Sequence[str]) -> Settings:
    """Settings of the designs that are compared."""
    from perfmodel.designs.composed import PLUS, settings_of

    others = (*OF_HARDWARE, OF_WORKLOAD)
    own = settings_of([text for text in settings if _first(text) not in others])
    compared = [name.strip() for text in names for name in text.split(PLUS)]
    for name in own:
        if name not in compared:
            raise UsageError(f"--set {name}.…: {name} is not among the designs compared")
    return own


def _workload(name: str, settings: Sequence[str]) -> Workload:
    from perfmodel.cli.predict import workload_change
    from perfmodel.workload import load_workload

    own = [text for text in settings if _first(text) == OF_WORKLOAD]
    workload = load_workload(name)
    return workload.with_(**dict(workload_change(text) for text in own)) if own else workload


def _machine(name: str, nodes: int | None, settings: Sequence[str]) -> Cluster:
    from dataclasses import replace

    from perfmodel.cli.predict import hardware_part
    from perfmodel.hardware import Device, cluster, node_of

    part = hardware_part(name, [text for text in settings if _first(text) in OF_HARDWARE])
    if isinstance(part, Device):
        part = replace(node_of(part), gpus=1)
    return cluster(part, nodes)


def _first(text: str) -> str:
    return text.split(".", 1)[0].strip()


_UNDESIGNED = {
    "default": "The workload as it is deployed: no design. All others are against it.",
    "own": "The workload in its own software, where designs edit another (its row says which).",
}


def _list(target: Output) -> None:
    """Every design: its name, what it is, its settings and their defaults."""
    from perfmodel.designs import DESIGNS

    rows = [
        {
            "design": name,
            "what": (DESIGNS[name].__doc__ or "").strip().splitlines()[0],
            "settings": ", ".join(
                f"{each.name}={each.default}"
                for each in fields(DESIGNS[name])  # type: ignore[arg-type]
            ),
        }
        for name in DESIGNS
    ]
    rows[:0] = [
        {"design": name, "what": what, "settings": ""} for name, what in _UNDESIGNED.items()
    ]
    target.write_list("Designs", DESIGN_LIST, rows)
