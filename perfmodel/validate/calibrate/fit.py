"""`perfmodel.fit`: models, devices, overheads and collectives from measurements, as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.files import DEFAULT_MAX_BYTES, check_writable, read_bytes, write_text
from perfmodel.base.registry import library
from perfmodel.errors import TraceError, UsageError

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
    `rows_per_group`, `estimator`), `device` (step times of the collector to a CPU's TOML file;
    `hardware`, `seed`), `overheads` (traces to a profile of host costs;
    `profiler_us_per_event`, `hosts`, `torch_versions`, `max_bytes`) or `collectives` (logs of
    nccl-tests or rccl-tests to a correction for the node `hardware`; `collective`, `ranks` and
    `nodes` where the logs do not say). `profiler_us_per_event` is taken off each sample of the host
    per event that was recorded in it; `hosts` and `torch_versions` are what traces do not say. Each
    takes `begin`, which gets what it does next (`perfmodel.base.answers`).
    """
    if what not in _FITS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(_FITS)}")
    files = list(map(Path, [data] if isinstance(data, (str, Path)) else data))
    for each in files if what != "kernels" else ():  # a new directory is checked there
        check_writable(Path(path), each)
    return _FITS[what](files, Path(path), **options)


def _kernels(tables: list[Path], path: Path, **options: Any) -> Fitted:
    for name in ("sklearn", "xgboost"):
        library(name)
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


def _overheads(
    traces: list[Path],
    path: Path,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Profile:
    """One profile of the host overheads of all `traces` (files, archives or folders of ranks)."""
    from perfmodel.hardware import load
    from perfmodel.lowering.host import Profile, Provenance
    from perfmodel.lowering.host.measure import measure
    from perfmodel.trace import read

    for host in hosts:
        load(host, "host")
    samples = []
    for place in begun(traces, begin):
        trace = read(place, max_bytes=max_bytes)
        if not trace.ranks:
            raise TraceError(f"{place}: has no times, so no overheads; give a Kineto trace")
        samples += [
            measure(rank, links, profiler_us_per_event=profiler_us_per_event)
            for rank, links in zip(trace.ranks, trace.links, strict=True)
        ]
    stated = Provenance(hosts=tuple(hosts), torch_versions=tuple(torch_versions))
    profile = Profile.from_samples(*samples, provenance=stated)
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
