"""`fit`: measurements to kernel models, a device or an overhead profile, as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import DEFAULT_MAX_BYTES, check_writable

if TYPE_CHECKING:
    from perfmodel.calibrate.device import DeviceFit
    from perfmodel.calibrate.kernels import Fitted
    from perfmodel.cost.host.profile import Profile


def fit(
    what: str, data: str | Path | Sequence[str | Path], path: str | Path, **options: Any
) -> Any:
    """Fit to the measurements in the file or files `data`, write `path`, and return what was
    fitted.

    `what` is `kernels` (tables of measured kernels to a new directory of models; options `seed`,
    `rows_per_group`, `estimator`), `device` (tables of the collector to a device's TOML file;
    `hardware`, `only`, `seed`) or `overheads` (traces to a profile of host costs;
    `profiler_us_per_event`, `hosts`, `torch_versions`, `max_bytes`).
    """
    if what not in _FITS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(_FITS)}")
    files = [data] if isinstance(data, (str, Path)) else list(data)
    for each in files:
        check_writable(Path(path), each)
    known = signature(_FITS[what]).parameters
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"fit {what}: no option {unknown[0]}; it has {', '.join(list(known)[2:])}")
    return _FITS[what](files, Path(path), **options)


def _fit_kernels(
    data: list[str | Path],
    path: Path,
    seed: int = 0,
    rows_per_group: int = 18_000,
    estimator: str | None = None,
) -> Fitted:
    from perfmodel.calibrate.kernels import fit_kernels
    from perfmodel.cost.learned.store import save

    if path.exists():
        raise UsageError(f"{path}: exists already; name a new directory")
    tables = [Path(each) for each in data]
    fitted = fit_kernels(tables, seed=seed, rows_per_group=rows_per_group, estimator=estimator)
    save(path, fitted.models, fitted.about)
    return fitted


def _fit_device(
    data: list[str | Path],
    path: Path,
    hardware: str | None = None,
    only: str | None = None,
    seed: int = 0,
) -> DeviceFit:
    from perfmodel.calibrate.any_device import fit_any_device
    from perfmodel.files import write_text

    tables = [Path(each) for each in data]
    fitted, text = fit_any_device(tables, hardware, stem=path.stem, only=only, seed=seed)
    write_text(path, text)
    return fitted


def _fit_overheads(
    data: list[str | Path],
    path: Path,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Profile:
    from perfmodel.calibrate.cpu_step import fit_overheads

    profile = fit_overheads(
        [str(each) for each in data],
        profiler_us_per_event=profiler_us_per_event,
        hosts=hosts,
        torch_versions=torch_versions,
        max_bytes=max_bytes,
    )
    profile.save(path)
    return profile


_FITS: Mapping[str, Callable[..., Any]] = {
    "kernels": _fit_kernels,
    "device": _fit_device,
    "overheads": _fit_overheads,
}
