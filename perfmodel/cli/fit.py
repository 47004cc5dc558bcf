"""`perfmodel fit`: devices, kernels, collectives and overheads to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.cli.options import DEFAULT_MAX_GB, max_bytes
from perfmodel.cli.output import check_target, tell, working, wrote
from perfmodel.plot.names import named
from perfmodel.reporting.tables import Table

_DEVICE = (
    "n=steps:,d;median_pct=median %:.1f;p90_pct=p90 %:.1f;bias_pct=bias %:+.1f;"
    "spread_pct=spread %:.1f"
)


def device(data: list[Path], output: Path, hardware: str | None = None, seed: int = 0) -> None:
    check_target(output)
    fit = _fitted("device", data, output, hardware=hardware, seed=seed)
    wrote(output, "the device; use it with --hardware")
    errors = Table("Errors on a half held out", _DEVICE, fit.errors)
    tell(f"{output}: {fit.device.name}, fitted to all rows", errors)


def kernels(
    data: list[Path], output: Path, estimator: str | None = None, seed: int = 0, rows: int = 6_000
) -> None:
    asked = {"seed": seed, "rows_per_group": rows, "estimator": estimator}
    fitted = _fitted("kernels", data, output, **asked)
    wrote(output, "kernel models; use them with --models")
    sizes = ", ".join(f"{name} {part['rows']:,}" for name, part in fitted.about["parts"].items())
    tell(f"{output}: fitted on rows: {sizes}")


def collectives(
    log: list[Path],
    hardware: str,
    output: Path,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> None:
    stated = {"hardware": hardware, "collective": collective, "ranks": ranks, "nodes": nodes}
    fitted = _fitted("collectives", log, output, **stated)
    calls = fitted.points
    kinds = {f"{op} among {n:g}" for op, n in zip(calls.op, calls.ranks, strict=True)}
    said = f"{len(calls)} points ({', '.join(sorted(kinds))}); answers are {fitted.level}"
    tell(f"{output}: {said}")


def overheads(
    traces: list[str],
    output: Path,
    profiler_overhead: float = 0.0,
    host: list[str] | None = None,
    torch: list[str] | None = None,
    max_memory: float = DEFAULT_MAX_GB,
) -> None:
    check_target(output)
    stated: dict[str, Any] = {"hosts": host or (), "torch_versions": torch or ()}
    stated |= {"profiler_us_per_event": profiler_overhead, "max_bytes": max_bytes(max_memory)}
    profile = _fitted("overheads", traces, output, **stated)
    wrote(output, "a profile; use it with --overheads")
    means = ", ".join(
        f"{named(kind)} {statistic.mean_us:.1f} us (n {statistic.count:,})"
        for (kind, op, thread), statistic in profile.rows.items()
        if op is None and thread is None
    )
    tell(f"{output}: means {means}")


def _fitted(what: str, data: Any, output: Path, **options: Any) -> Any:
    from perfmodel.validate.calibrate.fit import fit

    with working("fitting") as begin:
        return fit(what, data, output, begin=begin, **options)


NOUNS = (collectives, device, kernels, overheads)
