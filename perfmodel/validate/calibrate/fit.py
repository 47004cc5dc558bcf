"""`fit`: measurements to kernel models, collectives, a device or an overhead profile, as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import check_writable, read_bytes
from perfmodel.base.progress import Begin, silent
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.cost.collectives.calibrated import Calibrated
    from perfmodel.cost.collectives.learned import Learned
    from perfmodel.lowering.host.profile import Profile
    from perfmodel.validate.calibrate.device import DeviceFit
    from perfmodel.validate.calibrate.kernels import Fitted


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
    to a new model). Each takes `begin`, which gets what it does next (`perfmodel.base.progress`).
    """
    if what not in _FITS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(_FITS)}")
    files = _listed(data)
    for each in (*files, *_listed(options.get("curves", ()))):
        check_writable(Path(path), each)
    return _FITS[what](files, Path(path), **options)


def _listed(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    return list(map(Path, [paths] if isinstance(paths, (str, Path)) else paths))


def _check_options(
    what: str, fit: Callable[..., Any], options: Mapping[str, Any], *more: str
) -> None:
    """Raise `UsageError` for an option that `fit` lacks, and that is not one of `more`."""
    own = [name for name in list(signature(fit).parameters)[1:] if name not in ("path", "stem")]
    known = [*more, *own]
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"fit {what}: no option {unknown[0]}; it has {', '.join(known)}")


def _fit_kernels(tables: list[Path], path: Path, **options: Any) -> Fitted:
    from perfmodel.cost.learned.store import save
    from perfmodel.validate.calibrate.kernels import fit_kernels

    _check_options("kernels", fit_kernels, options)
    if path.exists():
        raise UsageError(f"{path}: exists already; name a new directory")
    fitted = fit_kernels(tables, **options)
    save(path, fitted.models, fitted.about)
    return fitted


def _fit_device(tables: list[Path], path: Path, **options: Any) -> DeviceFit:
    from perfmodel.base.files import write_text
    from perfmodel.validate.calibrate.any_device import fit_any_device

    _check_options("device", fit_any_device, options)
    fitted, text = fit_any_device(tables, stem=path.stem, **options)
    write_text(path, text)
    return fitted


def _fit_overheads(traces: list[Path], path: Path, **options: Any) -> Profile:
    from perfmodel.validate.calibrate.overheads import fit_overheads

    _check_options("overheads", fit_overheads, options)
    profile = fit_overheads([str(trace) for trace in traces], **options)
    profile.save(path)
    return profile


def _fit_collectives(points: list[Path], path: Path, **options: Any) -> Calibrated | Learned:
    _check_options("collectives", _fit_machine, options, "curves")
    tables = _listed(options.pop("curves", ()))
    if not points or (tables and len(tables) != len(points)):
        raise UsageError("fit collectives: give logs, or as many tables of points as of --curves")
    if not tables:
        return _fit_machine(points, path, **options)

    from perfmodel.cost.collectives.learned import save
    from perfmodel.validate.calibrate.collectives import fit_collectives

    pairs = list(zip(map(str, tables), map(str, points), strict=True))
    model = fit_collectives(pairs, options.get("begin", silent))
    save(path, model)
    return model


_MAX_LOG_BYTES = 100_000_000


def _fit_machine(
    logs: list[Path],
    path: Path,
    hardware: str | None = None,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    begin: Begin = silent,
) -> Calibrated:
    """A correction for the node `hardware` from logs; `UsageError` without a node."""
    if hardware is None:
        raise UsageError("fit collectives: name the machine of the logs with --hardware")

    from perfmodel.cost.collectives.calibrated import load_machine, parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.hardware import node

    machine, points = node(hardware), []
    for log in logs:
        text = read_bytes(log, max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace")
        points += parse(text, str(log), op=collective, ranks=ranks, nodes=nodes)
    about = {"machine": machine.name, "logs": [log.name for log in logs]}
    save_machine(path, points, fabric_of(machine), about)
    return load_machine(path)


_FITS: Mapping[str, Callable[..., Any]] = {
    "kernels": _fit_kernels,
    "collectives": _fit_collectives,
    "device": _fit_device,
    "overheads": _fit_overheads,
}
