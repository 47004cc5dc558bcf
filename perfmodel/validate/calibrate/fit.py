"""`perfmodel.fit`: models, devices, overheads and collectives from measurements, as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import check_writable, read_bytes, write_text
from perfmodel.base.progress import Begin, silent
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.cost.collectives.learned import Learned
    from perfmodel.lowering.host import Profile
    from perfmodel.validate.calibrate.device import DeviceFit
    from perfmodel.validate.calibrate.kernels import Fitted

_MAX_LOG_BYTES = 100_000_000


def fit(
    what: str, data: str | Path | Sequence[str | Path], path: str | Path, **options: Any
) -> Any:
    """Fit to the measurements in the file or files `data`, write `path`, and return what was
    fitted.

    `what` is `kernels` (tables of measured kernels to a new directory of models; options `seed`,
    `rows_per_group`, `estimator`), `device` (tables of the collector to a CPU's TOML file;
    `hardware`, `seed`), `overheads` (traces to a profile of host costs;
    `profiler_us_per_event`, `hosts`, `torch_versions`, `max_bytes`) or `collectives` (logs of
    nccl-tests or rccl-tests to a correction for the node `hardware`; `collective`, `ranks` and
    `nodes` where the logs do not say). Each takes `begin`, which gets what it does next
    (`perfmodel.base.progress`).
    """
    if what not in _FITS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(_FITS)}")
    files = list(map(Path, [data] if isinstance(data, (str, Path)) else data))
    for each in files if what != "kernels" else ():  # a new directory is checked there
        check_writable(Path(path), each)
    return _FITS[what](files, Path(path), **options)


def _kernels(tables: list[Path], path: Path, **options: Any) -> Fitted:
    from perfmodel.cost.learned.store import save
    from perfmodel.validate.calibrate.kernels import fit_kernels

    if path.exists():
        raise UsageError(f"{path}: exists already; name a new directory")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: cannot be written: there is no folder {path.parent}")
    fitted = fit_kernels(tables, **options)
    save(path, fitted.models, fitted.about)
    return fitted


def _device(tables: list[Path], path: Path, **options: Any) -> DeviceFit:
    from perfmodel.validate.calibrate.device import fit_any_device

    fitted, text = fit_any_device(tables, stem=path.stem, **options)
    write_text(path, text)
    return fitted


def _overheads(traces: list[Path], path: Path, **options: Any) -> Profile:
    from perfmodel.validate.calibrate.overheads import fit_overheads

    profile = fit_overheads(traces, **options)
    profile.save(path)
    return profile


def _collectives(
    logs: list[Path],
    path: Path,
    hardware: str | None = None,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    begin: Begin = silent,
) -> Learned:
    """The model of collectives, corrected for the node `hardware`."""
    from perfmodel.cost.collectives.calibrated import load_machine, parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.hardware import node

    if hardware is None:
        raise UsageError("fit collectives: name the machine of the logs with --hardware")
    machine, points = node(hardware), []
    for log in logs:
        text = read_bytes(log, max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace")
        points += parse(text, str(log), op=collective, ranks=ranks, nodes=nodes)
    if not points:
        raise UsageError("fit collectives: give one or more logs")
    about = {"machine": machine.name, "logs": [log.name for log in logs]}
    save_machine(path, points, fabric_of(machine), about)
    return load_machine(path)


_FITS: dict[str, Callable[..., Any]] = {
    "kernels": _kernels,
    "collectives": _collectives,
    "device": _device,
    "overheads": _overheads,
}
