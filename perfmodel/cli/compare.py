"""`perfmodel compare`: designs against each other on one workload and one machine."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from pathlib import Path
from typing import Any

import typer

from perfmodel.api import ALL
from perfmodel.cli.output import STDOUT, Output, check_figure, save_drawn, working
from perfmodel.errors import UsageError
from perfmodel.units import US_PER_MS

NONE_POSSIBLE = 2
"""The exit status where no design can be; the answer says why of each."""
LIST = "list"
DESIGN_LIST = "perfmodel.designs/1"


def compare(
    workload: str | None = None,
    hardware: str | None = None,
    designs: str | None = None,
    batch: int | None = None,
    nodes: int | None = None,
    inference: bool = False,
    rate: float | None = None,
    p99_ms: float | None = None,
    usd_per_kwh: float | None = None,
    usd_per_hour: float | None = None,
    over: str | None = None,
    settings: list[str] | None = None,
    overheads: str | None = None,
    plan: Path | None = None,
    figure: Path | None = None,
    latency: Path | None = None,
    target: Output = STDOUT,
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
    check_figure(figure)
    check_figure(latency)
    if designs == LIST or (designs is None and workload is None and hardware is None):
        _list(target)
        return
    if workload is None:
        raise UsageError("name the workload to compare designs of: --workload criteo-terabyte")
    if hardware is None:
        raise UsageError("name the machine to compare designs on: --hardware dgx-a100-80gb")
    from perfmodel import api
    from perfmodel.cli.comparison_tables import show_comparison

    with working("comparing"):
        comparison = api.compare(
            workload,
            hardware,
            ALL if designs is None else designs,
            settings=settings or [],
            batch=batch,
            nodes=nodes,
            train=not inference,
            rate_per_s=rate,
            p99_us=None if p99_ms is None else p99_ms * US_PER_MS,
            usd_per_kwh=usd_per_kwh,
            usd_per_hour=usd_per_hour,
            over=over or (),
            overheads=overheads,
            plan=plan,
        )
    # Both are drawn before one is written: where one cannot be, there is none.
    drawings = ((comparison.plot, figure), (comparison.latency_figure, latency))
    for drawn, path in [(draw(), path) for draw, path in drawings if path]:
        save_drawn(path, drawn)
    target.write_result(comparison, show_comparison, comparison.warnings)
    if comparison.reference is None:
        raise typer.Exit(NONE_POSSIBLE)


_UNDESIGNED = {
    "default": "The workload as it is deployed: no design. All others are against it.",
    "own": "The workload in its own software, where designs edit another (its row says which).",
}


def _list(target: Output) -> None:
    """Every design: its name, what it is, its settings and their defaults."""
    from perfmodel.designs import DESIGNS

    rows = [(name, what, "") for name, what in _UNDESIGNED.items()]
    for name in DESIGNS:
        own: Any = fields(DESIGNS[name])  # type: ignore[arg-type]
        what = (DESIGNS[name].__doc__ or "").strip().splitlines()[0]
        rows.append((name, what, ", ".join(f"{each.name}={each.default}" for each in own)))
    names = ("design", "what", "settings")
    listed = [dict(zip(names, row, strict=True)) for row in rows]
    target.write_list("Designs", DESIGN_LIST, listed)
