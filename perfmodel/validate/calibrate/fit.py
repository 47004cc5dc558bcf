"""`perfmodel.fit`: models, devices, overheads and collectives from measurements, as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import check_writable, read_bytes, write_text
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.cost.collectives.learned import Learned

OPTIONS = {
    "kernels": ("seed", "rows_per_group", "estimator", "begin"),
    "collectives": ("hardware", "collective", "ranks", "nodes", "begin"),
    "device": ("hardware", "seed", "begin"),
    "overheads": ("profiler_us_per_event", "hosts", "torch_versions", "max_bytes", "begin"),
}
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
    if what not in OPTIONS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(OPTIONS)}")
    if unknown := [name for name in options if name not in OPTIONS[what]]:
        known = ", ".join(OPTIONS[what])
        raise UsageError(f"fit {what}: no option {unknown[0]}; it has {known}")
    files = list(map(Path, [data] if isinstance(data, (str, Path)) else data))
    path = Path(path)
    for each in files:
        check_writable(path, each)
    if what == "collectives":
        return _fit_machine(files, path, **options)
    if what == "kernels":
        from perfmodel.cost.learned.store import save
        from perfmodel.validate.calibrate.kernels import fit_kernels

        if path.exists():
            raise UsageError(f"{path}: exists already; name a new directory")
        fitted = fit_kernels(files, **options)
        save(path, fitted.models, fitted.about)
        return fitted
    if what == "device":
        from perfmodel.validate.calibrate.device import fit_any_device

        device, text = fit_any_device(files, stem=path.stem, **options)
        write_text(path, text)
        return device
    from perfmodel.validate.calibrate.overheads import fit_overheads

    profile = fit_overheads([str(trace) for trace in files], **options)
    profile.save(path)
    return profile


def _fit_machine(logs: list[Path], path: Path, **options: Any) -> Learned:
    """The model of collectives, corrected for the node `hardware`."""
    from perfmodel.cost.collectives.calibrated import load_machine, parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.hardware import node

    if options.get("hardware") is None:
        raise UsageError("fit collectives: name the machine of the logs with --hardware")
    machine, points = node(options["hardware"]), []
    stated = {name: options.get(name) for name in ("ranks", "nodes")}
    for log in logs:
        text = read_bytes(log, max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace")
        points += parse(text, str(log), op=options.get("collective"), **stated)
    if not points:
        raise UsageError("fit collectives: give one or more logs")
    about = {"machine": machine.name, "logs": [log.name for log in logs]}
    save_machine(path, points, fabric_of(machine), about)
    return load_machine(path)
