"""From files to a device's file: a CPU with its calibration, a GPU with the figures it reached."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from perfmodel.fit.device import DeviceFit, fit_device
from perfmodel.fit.device_data import read_tables
from perfmodel.fit.device_file import device_toml
from perfmodel.fit.gpu_device import fit_gpu_device
from perfmodel.fit.machine import base_device


def fit_any_device(
    paths: Sequence[Path],
    hardware: str | None,
    *,
    stem: str,
    only: str | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[DeviceFit, str]:
    """The fit of the device that the tables at `paths` are of, and the text of its file.

    `hardware` names what to start from; `stem` is the device's new name; `only` its name in tables
    of several. Raises `UsageError`.
    """
    data = read_tables(paths, only)
    base = base_device(data.device, paths, hardware, stem)
    if base.target == "cpu":
        fit = fit_device(data, base, seed=seed, progress=progress)
    else:
        fit = fit_gpu_device(data, base, stem=stem)
    made = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "perfmodel": version("perfmodel"),
        "python": sys.version.split()[0],
        "scipy": version("scipy"),
    }
    return fit, device_toml(fit, data.sources, made)
