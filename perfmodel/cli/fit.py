"""`perfmodel fit`: devices, kernels, collectives and overheads to measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from perfmodel.cli.console import Console, page_width
from perfmodel.cli.error_tables import show_device_fit, show_kernel_comparison
from perfmodel.cli.options import DEFAULT_MAX_GB, Format, max_bytes
from perfmodel.cli.output import Output, check_target, working, wrote
from perfmodel.errors import PerfmodelError
from perfmodel.plot.names import named
from perfmodel.reporting.tables import one_line

SCHEMA = "perfmodel.fit.device/1"


def device(
    data: list[Path],
    output: Path,
    hardware: str | None = None,
    seed: int = 0,
    format: Format | None = None,
) -> None:
    target = Output(format)
    check_target(output)

    from perfmodel.validate.calibrate.device import fit_any_device

    with working("fitting") as begin:
        fit, text = fit_any_device(data, hardware, stem=output.stem, seed=seed, begin=begin)
    wrote(output, "the device; use it with --hardware", text)
    rows = [asdict(each) for each in (*fit.errors, *([fit.steps] if fit.steps else []))]
    answer = {
        "schema": SCHEMA,
        "device": fit.device.name,
        "file": str(output),
        "seed": fit.seed,
        "held_out": rows,
        "warnings": list(fit.notes),
    }
    target.write(
        lambda: answer,
        lambda: rows,
        lambda console: show_device_fit(console, fit, output),
        list(fit.notes),
    )


def kernels(
    data: list[Path],
    output: Path,
    estimator: str | None = None,
    seed: int = 0,
    rows: int = 6_000,
) -> None:
    if output.exists():
        raise PerfmodelError(f"{output}: exists already; name a new directory")
    if not output.parent.is_dir():
        raise PerfmodelError(f"{output}: cannot be written: there is no folder {output.parent}")

    from perfmodel.cost.learned.store import save
    from perfmodel.validate.calibrate.kernels import fit_kernels, left_out_errors

    with working("fitting") as begin:
        fitted = fit_kernels(data, seed=seed, rows_per_group=rows, estimator=estimator, begin=begin)
        errors = left_out_errors(fitted, begin)
    save(output, fitted.models, fitted.about)
    wrote(output, "kernel models; use them with --models")
    console = Console(page_width())
    if errors:
        show_kernel_comparison(console, errors, "Each device left out in turn, errors in percent")
    if console.text:
        typer.echo(console.text.rstrip())
    sizes = ", ".join(f"{name} {part['rows']:,}" for name, part in fitted.about["parts"].items())
    typer.echo(one_line(f"{output}: fitted on rows: {sizes}"))


def collectives(
    log: list[Path],
    hardware: str,
    output: Path,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> None:
    from perfmodel.validate.calibrate.fit import fit

    stated = {"hardware": hardware, "collective": collective, "ranks": ranks, "nodes": nodes}
    with working("fitting") as begin:
        fitted = fit("collectives", log, output, begin=begin, **stated)
    calls = fitted.points
    kinds = {f"{op} among {n:g}" for op, n in zip(calls.op, calls.ranks, strict=True)}
    said = f"{len(calls)} points ({', '.join(sorted(kinds))}); answers are {fitted.level}"
    typer.echo(one_line(f"{output}: {said}"))


def overheads(
    traces: list[str],
    output: Path,
    profiler_overhead: float = 0.0,
    host: list[str] | None = None,
    torch: list[str] | None = None,
    ops: Path | None = None,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    limit = max_bytes(max_memory)
    check_target(output)

    from perfmodel.validate.calibrate.overheads import fit_overheads, unprofiled

    with working("reading the traces") as begin:
        profile = fit_overheads(
            traces,
            profiler_us_per_event=profiler_overhead,
            hosts=host or (),
            torch_versions=torch or (),
            max_bytes=limit,
            begin=begin,
        )
        if ops is not None:
            profile = unprofiled(profile, ops)
    profile.save(output)
    wrote(output, "a profile; use it with --overheads")
    means = ", ".join(
        f"{named(kind).replace('_', ' ')} {statistic.mean_us:.1f} us (n {statistic.count:,})"
        for (kind, op, thread), statistic in profile.rows.items()
        if op is None and thread is None
    )
    typer.echo(one_line(f"{output}: means {means}"))


NOUNS = (collectives, device, kernels, overheads)
