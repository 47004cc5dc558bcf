"""`perfmodel fit`: devices, kernels, collectives and overheads to measurements."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli import options as opts
from perfmodel.cli.options import argument, option
from perfmodel.cli.output import Output, check_target, rows_csv, working, wrote
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import write_text
from perfmodel.reporting.tables import named, one_line

if TYPE_CHECKING:
    from perfmodel.cost.collectives.calibrated import Calibrated
    from perfmodel.cost.collectives.learned import Learned

MAX_SEED = 2**32 - 1
SCHEMA = "perfmodel.fit.device/1"
DRIFT_SCHEMA = "perfmodel.fit.drift/1"
COLUMNS = ("family", "kind", "n", "median_pct", "p90_pct", "bias_pct", "spread_pct")


def device(
    data: Annotated[
        list[Path],
        option(
            "Tables of `collect kernels` and `collect ops`: CSV or Parquet. Repeatable.", "FILE"
        ),
    ],
    output: Annotated[Path, option("The device's file (TOML).", "FILE", "-o", "--output")],
    hardware: Annotated[
        str | None,
        option("Start from this device. [default: by the records in the folders]", "NAME|FILE"),
    ] = None,
    only: Annotated[
        str | None, option("Of tables of several, the one to fit.", "NAME", "--device")
    ] = None,
    seed: Annotated[int, option("Which half is held out for the errors.", min=0, max=MAX_SEED)] = 0,
    format: opts.FormatOption = None,
) -> None:
    """Calibrate a device on its measurements, and say how far it is off on what it has not seen.

    \b
    Examples:
      perfmodel fit device --data kernels.csv -o my-machine.toml
      perfmodel fit device --data kernels.csv --data ops.csv.gz --data ops_steps.csv -o mine.toml
    """
    target = Output(format or opts.Format.TABLE, None)
    check_target(output)

    from perfmodel.calibrate.any_device import fit_any_device
    from perfmodel.cli.error_tables import show_device_fit

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
    reference: Annotated[
        Path, option("Record of `collect reference`, or another of the collector, now.", "FILE")
    ],
    hardware: Annotated[str, option("The machine, as `fit device` calibrated it.", "FILE")],
    output: Annotated[
        Path | None, option("The machine as it is now (TOML).", "FILE", "-o", "--output")
    ] = None,
    format: opts.FormatOption = None,
) -> None:
    """Whether a calibration still holds: how far the machine has moved since.

    \b
    Examples:
      python -m perfmodel.collect reference -o measured
      perfmodel fit drift --reference measured/reference.json --hardware mine.toml -o now.toml
    """
    target = Output(format or opts.Format.TABLE, None)
    if output is not None:
        check_target(output)

    from perfmodel.calibrate.any_device import drifted_toml
    from perfmodel.calibrate.cpu_step import drift_of_record
    from perfmodel.hardware import device as load_device

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
    data: opts.MeasuredKernelsOption,
    output: Annotated[Path, option("The new directory of models.", "DIR", "-o", "--output")],
    test: Annotated[
        list[Path] | None,
        option("Measured kernels to test on, not to fit; several times, too.", "FILE"),
    ] = None,
    estimator: Annotated[
        str | None,
        option(
            "A scikit-learn regressor in place of boosted trees; loading it runs its code "
            "(--trust-models).",
            "MODULE:CLASS",
        ),
    ] = None,
    seed: Annotated[int, option("The same seed gives the same models.", min=0, max=MAX_SEED)] = 0,
    rows: Annotated[int, option("The most rows used per device, op and dtype.", min=200)] = 6_000,
) -> None:
    """Fit every kernel family that the tables hold; print the errors on each device left out.

    Beside them stand those of the roofline and of plain trees, fitted to the same rows.

    \b
    Examples:
      perfmodel fit kernels --data train.parquet --data mine.csv -o my-models
      perfmodel fit kernels --data train.parquet --test other.parquet -o my-models
      perfmodel fit kernels --data train.parquet --estimator my_models:MyRegressor -o my-models
      perfmodel evaluate kernels --data test.parquet --models my-models
    """
    if output.exists():
        raise PerfmodelError(f"{output}: exists already; name a new directory")
    if not output.parent.is_dir():
        raise PerfmodelError(f"{output}: cannot be written: there is no folder {output.parent}")

    from perfmodel.calibrate.kernels import fit_kernels, holdout_errors, left_out_errors
    from perfmodel.cli.console import Console, page_width
    from perfmodel.cli.error_tables import show_kernel_comparison
    from perfmodel.cost.learned.store import save

    with working("fitting") as begin:
        fitted = fit_kernels(data, seed=seed, rows_per_group=rows, estimator=estimator, begin=begin)
        errors = left_out_errors(fitted, seed=seed, begin=begin)
        tested = holdout_errors(fitted, test, seed=seed, begin=begin) if test else []
    save(output, fitted.models, fitted.about)
    wrote(output, "kernel models; use them with --models")
    console = Console(page_width())
    if errors:
        show_kernel_comparison(console, errors, "Each device left out in turn, errors in percent")
    if tested:
        show_kernel_comparison(console, tested, "On the tables to test on, errors in percent")
    if console.text:
        typer.echo(console.text.rstrip())
    sizes = ", ".join(f"{name} {part['rows']:,}" for name, part in fitted.about["parts"].items())
    typer.echo(one_line(f"{output}: fitted on rows: {sizes}"))


def collectives(
    output: Annotated[Path, option("Where the result goes (JSON).", "FILE", "-o", "--output")],
    log: Annotated[
        list[Path] | None, option("Output of nccl-tests, rccl-tests or PARAM.", "FILE")
    ] = None,
    hardware: Annotated[
        str | None, option("The node that the log was measured on.", "NODE|FILE")
    ] = None,
    collective: Annotated[
        str | None, option("The collective, where the log does not name it.", "OP")
    ] = None,
    ranks: Annotated[
        int | None, option("The ranks, where the log does not list them.", "N")
    ] = None,
    nodes: opts.NodesOption = None,
    curves: Annotated[
        list[Path] | None, option("Refit the model to tables of curves …", "CURVES.csv")
    ] = None,
    data: Annotated[
        list[Path] | None, option("… and their points, in the same order.", "POINTS.csv[.gz]")
    ] = None,
) -> None:
    """Correct collectives by what a machine measured, or fit the collective model to curves.

    \b
    Examples:
      perfmodel fit collectives --log all_reduce.log --hardware dgx-h100 -o mine.json
      perfmodel fit collectives --curves curves.csv --data points.csv.gz -o model.json
    """
    inputs = [*(log or []), *(curves or []), *(data or [])]
    if not inputs or bool(log) == bool(curves) or len(curves or []) != len(data or []):
        raise UsageError("fit collectives: give --log and --hardware, or --curves and --data each")
    from perfmodel.calibrate.fit import fit

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
    traces: Annotated[
        list[str],
        argument(
            "Kineto traces, archives or folders of ranks.",
            "TRACE...",
            callback=opts.no_configuration,
        ),
    ],
    output: Annotated[Path, option("Where the profile goes (JSON).", "FILE", "-o", "--output")],
    profiler_overhead: opts.ProfilerOverheadOption = 0.0,
    host: Annotated[
        list[str] | None, option("The CPU that the traces ran on (`perfmodel hardware list`).")
    ] = None,
    torch: Annotated[
        list[str] | None, option("The PyTorch version that the traces ran.", "VERSION")
    ] = None,
    ops: Annotated[
        Path | None,
        option("Table of `collect ops` there: what operators take without a profiler.", "FILE"),
    ] = None,
    max_memory: opts.MaxMemoryOption = opts.DEFAULT_MAX_GB,
) -> None:
    """Take the host overheads T1 to T5 of traces, for predictions of what has no trace.

    \b
    Examples:
      perfmodel fit overheads trace.json.gz -o mine.json
      perfmodel fit overheads a.json.gz b.json.gz --profiler-overhead 2 -o mine.json
      perfmodel fit overheads trace.json.gz --ops ops.csv.gz -o mine.json
    """
    limit = opts.max_bytes(max_memory)
    check_target(output)

    from perfmodel.calibrate.overheads import fit_overheads, unprofiled

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


HELP = """Fit kernels, collectives, devices or overheads to measurements.

\b
Examples:
  perfmodel fit collectives --log all_reduce.log --hardware dgx-h100 -o mine.json
  perfmodel fit device --data kernels.csv -o my-machine.toml
  perfmodel fit drift --reference reference.json --hardware my-machine.toml
  perfmodel fit kernels --data kernels.parquet -o my-models
  perfmodel fit overheads trace.json.gz -o mine.json
  perfmodel fit NOUN --help                   more, with examples
"""
fit = opts.verb_of(HELP, collectives, device, drift, kernels, overheads)
