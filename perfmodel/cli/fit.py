"""`perfmodel fit`: devices, kernels, collectives and overheads to measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.base.files import write_text
from perfmodel.cli.console import Console, page_width
from perfmodel.cli.error_tables import show_device_fit, show_kernel_comparison
from perfmodel.cli.options import DEFAULT_MAX_GB, Format, max_bytes
from perfmodel.cli.output import Output, check_target, rows_csv, working, wrote
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.reporting.tables import named, one_line

if TYPE_CHECKING:
    from perfmodel.cost.collectives.calibrated import Calibrated
    from perfmodel.cost.collectives.learned import Learned

MAX_SEED = 2**32 - 1
SCHEMA = "perfmodel.fit.device/1"
DRIFT_SCHEMA = "perfmodel.fit.drift/1"
COLUMNS = ("family", "kind", "n", "median_pct", "p90_pct", "bias_pct", "spread_pct")


def device(
    data: list[Path],
    output: Path,
    hardware: str | None = None,
    only: str | None = None,
    seed: int = 0,
    format: Format | None = None,
) -> None:
    """Calibrate a device on its measurements, and say how far it is off on what it has not seen."""
    target = Output(format)
    check_target(output)

    from perfmodel.validate.calibrate.any_device import fit_any_device

    with working("fitting") as begin:
        fit, text = fit_any_device(
            data, hardware, stem=output.stem, only=only, seed=seed, begin=begin
        )
    write_text(output, text)
    wrote(output, "the device; use it with --hardware")

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
        lambda: rows_csv(rows, COLUMNS),
        lambda console: show_device_fit(console, fit, output),
        list(fit.notes),
    )


def drift(
    reference: Path,
    hardware: str,
    output: Path | None = None,
    format: Format | None = None,
) -> None:
    """Whether a calibration still holds: how far the machine has moved since."""
    target = Output(format)
    if output is not None:
        check_target(output)

    from perfmodel.hardware import device as load_device
    from perfmodel.validate.calibrate.any_device import drifted_toml
    from perfmodel.validate.calibrate.cpu_step import drift_of_record

    base = load_device(hardware)
    moved = drift_of_record(reference, base)
    if output is not None:
        write_text(output, drifted_toml(base, moved, reference))
        wrote(output, "the machine as it is now; use it with --hardware")

    line = f"{base.name} {moved} as when it was calibrated: {moved.verdict}"
    row = {"device": base.name, "ratio": moved.ratio, **moved.ratios}
    target.write(
        lambda: {"schema": DRIFT_SCHEMA, "device": base.name, **moved.to_dict()},
        lambda: rows_csv([row], tuple(row)),
        lambda console: console.say(line),
    )


def kernels(
    data: list[Path],
    output: Path,
    estimator: str | None = None,
    seed: int = 0,
    rows: int = 6_000,
) -> None:
    """Fit every kernel family that the tables hold; print the errors on each device left out."""
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
    output: Path,
    log: list[Path] | None = None,
    hardware: str | None = None,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    curves: list[Path] | None = None,
    data: list[Path] | None = None,
) -> None:
    """Correct collectives by what a machine measured, or fit the collective model to curves."""
    inputs = [*(log or []), *(curves or []), *(data or [])]
    if not inputs or bool(log) == bool(curves) or len(curves or []) != len(data or []):
        raise UsageError("fit collectives: give --log and --hardware, or --curves and --data each")
    from perfmodel.validate.calibrate.fit import fit

    asked = {"hardware": hardware, "collective": collective, "ranks": ranks, "nodes": nodes}
    with working("fitting") as begin:
        fitted = fit(
            "collectives", log or data or [], output, curves=curves or (), begin=begin, **asked
        )
    typer.echo(one_line(f"{output}: {_said_of_logs(fitted) if log else _said_of_curves(fitted)}"))


def _said_of_logs(fitted: Calibrated) -> str:
    calls = fitted.calls
    kinds = {f"{op} among {n:g}" for op, n in zip(calls.op, calls.ranks, strict=True)}
    return f"{len(calls)} points ({', '.join(sorted(kinds))}); answers are {fitted.level}"


def _said_of_curves(model: Learned) -> str:
    reach = ", ".join(
        f"{name} {min(sds):.2f} to {max(sds):.2f}" for name, sds in model.spreads.items()
    )
    rows = model.about["rows"]
    return f"{rows} points; spread of log time on repositories left out: {reach}"


def overheads(
    traces: list[str],
    output: Path,
    profiler_overhead: float = 0.0,
    host: list[str] | None = None,
    torch: list[str] | None = None,
    ops: Path | None = None,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    """Take the host overheads T1 to T5 of traces, for predictions of what has no trace."""
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


NOUNS = (collectives, device, drift, kernels, overheads)
