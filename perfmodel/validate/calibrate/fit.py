"""`perfmodel.fit`: models, devices, overheads and collectives from measurements, as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.files import check_writable, read_bytes, write_text
from perfmodel.base.progress import silent
from perfmodel.errors import UsageError

OPTIONS = {
    "kernels": ("seed", "rows_per_group", "estimator", "begin"),
    "collectives": ("curves", "hardware", "collective", "ranks", "nodes", "begin"),
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
    `nodes` where the logs do not say; or, with `curves`, a table for each of `data`'s points, to a
    new model). Each takes `begin`, which gets what it does next (`perfmodel.base.progress`).
    """
    if what not in OPTIONS:
        raise UsageError(f"fit: unknown {what!r}; one of {', '.join(OPTIONS)}")
    if unknown := [name for name in options if name not in OPTIONS[what]]:
        known = ", ".join(OPTIONS[what])
        raise UsageError(f"fit {what}: no option {unknown[0]}; it has {known}")
    files, path, curves = _listed(data), Path(path), _listed(options.pop("curves", ()))
    for each in (*files, *curves):
        check_writable(path, each)
    if what == "collectives":
        return _fit_collectives(files, path, curves, **options)
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


def _listed(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    return list(map(Path, [paths] if isinstance(paths, (str, Path)) else paths))


def _fit_collectives(data: list[Path], path: Path, curves: list[Path], **options: Any) -> Any:
    """A correction for the node `hardware` from logs, or a model from tables."""
    from perfmodel.cost.collectives.calibrated import load_machine, parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.cost.collectives.learned import save
    from perfmodel.hardware import node

    if not data or (curves and len(curves) != len(data)):
        raise UsageError("fit collectives: give logs, or as many tables of points as of --curves")
    if curves:
        from perfmodel.validate.calibrate.collectives import fit_collectives

        pairs = list(zip(map(str, curves), map(str, data), strict=True))
        model = fit_collectives(pairs, options.get("begin", silent))
        save(path, model)
        return model
    if options.get("hardware") is None:
        raise UsageError("fit collectives: name the machine of the logs with --hardware")
    machine, points = node(options["hardware"]), []
    stated = {name: options.get(name) for name in ("ranks", "nodes")}
    for log in data:
        text = read_bytes(log, max_bytes=_MAX_LOG_BYTES).decode("utf-8", "replace")
        points += parse(text, str(log), op=options.get("collective"), **stated)
    about = {"machine": machine.name, "logs": [log.name for log in data]}
    save_machine(path, points, fabric_of(machine), about)
    return load_machine(path)
