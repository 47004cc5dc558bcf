"""`perfmodel sweep`: thousands of settings of hardware and workload, and what they show."""

from __future__ import annotations

from pathlib import Path

from perfmodel.cli.options import Format
from perfmodel.cli.output import Output, check_figure, frame_csv, save_figure, working, wrote
from perfmodel.errors import UsageError

UNASKED_POINTS = 10_000_000
"""More take hours: they are swept with `--yes` alone."""


def sweep(
    spec: Path,
    output: Path | None = None,
    objective: str | None = None,
    workers: int = 0,
    scheduler: str | None = None,
    sensitivity: bool = False,
    reach: str | None = None,
    along: str | None = None,
    sobol: int | None = None,
    yes: bool = False,
    figure: Path | None = None,
    format: Format | None = None,
) -> None:
    """Predict many machines and designs: front, best, what moves it.

    \b
    Examples:
      perfmodel sweep gpus.toml -o results
      perfmodel sweep gpus.toml --objective step_us,cost_usd_per_million,energy --figure front.svg
      perfmodel sweep gpus.toml --sensitivity --reach step_us=8000 --along device.hbm_gb_per_s
      perfmodel sweep gpus.toml --workers 8
    """
    if workers and scheduler:
        raise UsageError("--workers starts its own cluster: give --workers or --scheduler")
    if reach and not along:
        raise UsageError("--reach needs the axis to vary: --along AXIS")
    if along and not (reach or figure):
        raise UsageError("--along AXIS is for --reach, or for --figure")
    check_figure(figure)
    target = Output(format)
    from perfmodel import explore
    from perfmodel.api import results_folder
    from perfmodel.cli.comparison_tables import show_sweep

    wanted = explore.load_spec(spec, objective)
    if (points := len(wanted.space)) > UNASKED_POINTS and not yes:
        raise UsageError(f"{spec}: {points:,} points; --yes sweeps them, fewer steps may do")
    folder = output or results_folder(spec)
    with working("sweeping") as begin:
        swept = explore.sweep(wanted, folder, workers=workers, scheduler=scheduler, begin=begin)
    if swept.failed == len(swept.frame):
        raise UsageError(f"{spec}: {swept.warnings[0]} ({folder} holds why of each)")
    elasticities = explore.sensitivity(wanted) if sensitivity else None
    reached = explore.reach(wanted, reach, along) if reach and along else None
    if elasticities:
        save_figure(figure, elasticities.plot)
    elif along and not reach:
        save_figure(figure, lambda: swept.scaling(along))
    else:
        save_figure(figure, swept.plot)
    answer = swept.to_dict() | {
        "sensitivity": elasticities.to_dict() if elasticities else None,
        "reach": reached.to_dict() if reached else None,
        "sobol": explore.sobol(wanted, sobol) if sobol is not None else None,
    }
    wrote(folder, "every point, in Parquet; read it with pandas.read_parquet")
    target.write(
        lambda: answer,
        lambda: frame_csv(swept.to_frame()),
        lambda console: show_sweep(console, swept, answer),
        swept.warnings,
    )
