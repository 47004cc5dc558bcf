"""`fit`: measurements to kernel models, collectives, a device or an overhead profile, as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES, check_writable, read_bytes
from perfmodel.progress import Begin, silent

if TYPE_CHECKING:
    from perfmodel.calibrate.device import DeviceFit
    from perfmodel.calibrate.kernels import Fitted
    from perfmodel.cost.collectives.calibrated import Calibrated
    from perfmodel.cost.collectives.learned import Learned
    from perfmodel.cost.host.profile import Profile


def fit(
    what: str, data: str | Path | Sequence[str | Path], path: str | Path, **options: Any
) -> Any:
    """Fit to the measurements in the file or files `data`, write `path`, and return what was
    fitted.

    `what` is `kernels` (tables of measured kernels to a new directory of models; options `seed`,
    `rows_per_group`, `estimator`), `device` (tables of the collector to a device's TOML file;
    `hardware`, `only`, `seed`), `overheads` (traces to a profile of host costs;
    `profiler_us_per_event`, `hosts`, `torch_versions`, `max_bytes`) or `collectives` (logs of
    nccl-tests, rccl-tests or PARAM to a correction for the node `hardware`; `collective`, `ranks`
    and `nodes` where the logs do not say; or, with `curves`, a table for each of `data`'s points,
    to a new model). Each takes `begin`, which gets what it does next (`perfmodel.progress`).
    """
    if what not in _FITS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(_FITS)}")
    files = _listed(data)
    for each in (*files, *_listed(options.get("curves", ()))):
        check_writable(Path(path), each)
    known = signature(_FITS[what]).parameters
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"fit {what}: no option {unknown[0]}; it has {', '.join(list(known)[2:])}")
    return _FITS[what](files, Path(path), **options)


def _listed(paths: str | Path | Sequence[str | Path]) -> list[str | Path]:
    return [paths] if isinstance(paths, (str, Path)) else list(paths)


def _fit_kernels(
    data: list[str | Path],
    path: Path,
    seed: int = 0,
    rows_per_group: int = 6_000,
    estimator: str | None = None,
    begin: Begin = silent,
) -> Fitted:
    from perfmodel.calibrate.kernels import fit_kernels
    from perfmodel.cost.learned.store import save

    if path.exists():
        raise UsageError(f"{path}: exists already; name a new directory")
    tables = [Path(each) for each in data]
    fitted = fit_kernels(
        tables, seed=seed, rows_per_group=rows_per_group, estimator=estimator, begin=begin
    )
    save(path, fitted.models, fitted.about)
    return fitted


def _fit_device(
    data: list[str | Path],
    path: Path,
    hardware: str | None = None,
    only: str | None = None,
    seed: int = 0,
    begin: Begin = silent,
) -> DeviceFit:
    from perfmodel.calibrate.any_device import fit_any_device
    from perfmodel.files import write_text

    tables = [Path(each) for each in data]
    fitted, text = fit_any_device(
        tables, hardware, stem=path.stem, only=only, seed=seed, begin=begin
    )
    write_text(path, text)
    return fitted


def _fit_overheads(
    data: list[str | Path],
    path: Path,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Profile:
    from perfmodel.calibrate.overheads import fit_overheads

    profile = fit_overheads(
        [str(each) for each in data],
        profiler_us_per_event=profiler_us_per_event,
        hosts=hosts,
        torch_versions=torch_versions,
        max_bytes=max_bytes,
        begin=begin,
    )
    profile.save(path)
    return profile


_MAX_LOG_BYTES = 100_000_000


def _fit_collectives(
    data: list[str | Path],
    path: Path,
    hardware: str | None = None,
    curves: str | Path | Sequence[str | Path] = (),
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    begin: Begin = silent,
) -> Calibrated | Learned:
    tables = _listed(curves)
    if not data or (tables and len(tables) != len(data)):
        raise UsageError("fit collectives: give logs, or as many tables of points as of --curves")
    if tables:
        return _fit_curves(list(zip(map(str, tables), map(str, data), strict=True)), path, begin)
    if hardware is None:
        raise UsageError("fit collectives: name the machine of the logs with --hardware")

    from perfmodel.cost.collectives.calibrated import load_machine, parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.hardware import node

    machine, points = node(hardware), []
    for log in map(Path, data):
        text = read_bytes(log, max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace")
        points += parse(text, str(log), op=collective, ranks=ranks, nodes=nodes)
    logs = [Path(log).name for log in data]
    save_machine(path, points, fabric_of(machine), {"machine": machine.name, "logs": logs})
    return load_machine(path)


def _fit_curves(pairs: list[tuple[str, str]], path: Path, begin: Begin) -> Learned:
    from perfmodel.calibrate.collectives import fit_collectives
    from perfmodel.cost.collectives.learned import save

    model = fit_collectives(pairs, begin)
    save(path, model)
    return model


_FITS: Mapping[str, Callable[..., Any]] = {
    "kernels": _fit_kernels,
    "collectives": _fit_collectives,
    "device": _fit_device,
    "overheads": _fit_overheads,
}
