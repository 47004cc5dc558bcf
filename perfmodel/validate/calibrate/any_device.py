"""From tables to the file of a calibrated CPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from perfmodel.base.files import read_bytes
from perfmodel.base.progress import Begin, silent
from perfmodel.errors import HardwareError, UsageError
from perfmodel.hardware import Device, device
from perfmodel.validate.calibrate.device import DeviceFit, fit_device
from perfmodel.validate.calibrate.device_data import Source, read_tables


def fit_any_device(
    paths: Sequence[Path],
    hardware: str | None = None,
    *,
    stem: str,
    seed: int = 0,
    begin: Begin = silent,
) -> tuple[DeviceFit, str]:
    """The fit of the device that the tables at `paths` are of, and the text of its file.

    `hardware` names what to start from; `stem` is the device's new name. Raises `UsageError`.
    """
    data = read_tables(paths)
    base = base_device(data.device, paths, hardware, stem)
    if base.target != "cpu":
        raise UsageError(
            f"{paths[0]}: measured on {base.name}, a GPU: `perfmodel fit kernels` fits its kernels"
        )
    fit = fit_device(data, base, seed=seed, begin=begin)
    made = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "perfmodel": version("perfmodel"),
        "python": sys.version.split()[0],
        "scipy": version("scipy"),
    }
    return fit, device_toml(fit, data.sources, made)


MAX_RECORD_BYTES = 10_000_000
_FLOP_PER_CLOCK = {"avx512f": 64.0, "avx2": 32.0, "neon": 16.0}
"""Two multiply-adds per clock of the vector width (makers' optimisation manuals, recalled)."""
_USUAL_FLOP_PER_CLOCK = 16.0
_ASSUMED_GB_PER_S_PER_CORE = 12.0
_ASSUMED_W_PER_CORE = 5.0
_ASSUMED_MHZ = 2500.0


_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class _Cpu(msgspec.Struct):
    usable_cpus: _Count | None = None
    cache_bytes: dict[str, _Bytes] = {}
    clock_mhz: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory_bytes: _Bytes | None = None
    vector: list[str] = []


class _Machine(msgspec.Struct):
    """What of a record says what a CPU is."""

    cpu: _Cpu | None = None
    gpu: Any = None
    intra_op_threads: _Count | None = None
    date: str = "undated"

    @property
    def cores(self) -> int:
        """The threads that were measured, or those that there are; 0: not said."""
        return self.intra_op_threads or (self.cpu and self.cpu.usable_cpus) or 0

    def __post_init__(self) -> None:
        if self.cpu and not self.cores:
            raise ValueError("neither intra_op_threads nor usable_cpus")


class _Record(msgspec.Struct):
    machine: _Machine


def base_device(name: str, tables: Sequence[Path], given: str | None, stem: str) -> Device:
    """The device to fit: `given` by name or file, else as the collector's record beside the first
    of `tables` that has one describes it.

    A GPU is looked up in the catalogue by its driver's `name`. Raises `UsageError`.
    """
    if given:
        return device(given)
    stems = (table.name.split(".")[0].removesuffix("_steps") for table in tables)
    paths = (at.with_name(f"{each}_meta.json") for at, each in zip(tables, stems, strict=True))
    record = next((path for path in paths if path.is_file()), None)
    if record is not None:
        content = read_bytes(record, max_bytes=MAX_RECORD_BYTES)
        try:
            machine = msgspec.json.decode(content, type=_Record, strict=False).machine
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{record}: not a record of the collector: {error}") from None
        if machine.gpu is None and machine.cpu is not None:
            return _cpu(name, machine, machine.cpu, stem)
    try:
        return device(name)
    except HardwareError as error:
        raise UsageError(
            f"{tables[0]}: no record of the machine in its folder ({error}): name a similar "
            "device with --hardware"
        ) from None


def _cpu(name: str, record: _Machine, cpu: _Cpu, stem: str) -> Device:
    measured = f"the collector's record, {record.date}"
    cores, mhz = record.cores, cpu.clock_mhz or _ASSUMED_MHZ
    vectors = [rate for flag, rate in _FLOP_PER_CLOCK.items() if flag in cpu.vector]
    per_clock = max(vectors, default=_USUAL_FLOP_PER_CLOCK)
    figures: dict[str, tuple[Any, str]] = {
        "sm_count": (cores, f"{measured}: intra-op threads"),
        "boost_mhz": (mhz, measured),
        "tdp_w": (_ASSUMED_W_PER_CORE * cores, "assumed: 5 W a core"),
        "hbm_bytes": (cpu.memory_bytes or 8 * 2**30, measured),
        "hbm_gb_per_s": (_ASSUMED_GB_PER_S_PER_CORE * cores, "assumed: 12 GB/s a core"),
        "l2_bytes": (cpu.cache_bytes.get("L2", 2**20) * cores, f"{measured}: of each core"),
        "llc_bytes": (cpu.cache_bytes.get("L3", 8 * 2**20), measured),
        "fp32_tflop_per_s": (
            cores * mhz * per_clock / 1e6,
            f"{cores} threads x {mhz:.0f} MHz x {per_clock:.0f} per clock",
        ),
        "kernel_floor_us": (1.0, "assumed: an operator that does next to nothing"),
    }
    sources = MappingProxyType({key: text for key, (_, text) in figures.items()})
    values = {key: value for key, (value, _) in figures.items()}
    return Device(name=stem, target="cpu", aliases=(name,), sources=sources, **values)


PLACES = 5
"""Significant digits of a fitted number."""


def device_toml(fit: DeviceFit, sources: Sequence[Source], made: Mapping[str, str]) -> str:
    """The file: what it was fitted on as comments, then the device with its calibration."""
    versions = ", ".join(f"{name} {value}" for name, value in made.items())
    lines = [f"# Fitted with `perfmodel fit device`: {versions}."]
    for it in sources:
        lines.append(f"# {it.name}: sha256 {it.sha256}, {it.rows} rows, {it.left_out} left out")
    if fit.errors:
        lines += [
            f"# A random half held out (seed {fit.seed}) for the errors, then fitted to all.",
            "# Held-out errors: family, how measured, n, median %, 90th percentile %, bias %, and",
            "# by how many % the measurement's medians lie above its robust times:",
        ]
        for row in (*fit.errors, *([fit.steps] if fit.steps else [])):
            lines.append(
                f"#   {row.family}, {row.kind}: {row.n}, {row.median_pct:.1f}, {row.p90_pct:.1f}, "
                f"{row.bias_pct:+.1f}, {row.spread_pct:.1f}"
            )
    lines += [f"# {note}" for note in fit.notes]
    lines.append('kind = "device"')
    for entry in fields(fit.device):
        value = getattr(fit.device, entry.name)
        if entry.name not in ("sources", "calibration") and value is not None and value != ():
            lines.append(f"{entry.name} = {_value(value)}")
    sections: dict[str, Mapping[str, Any]] = {"source": fit.device.sources}
    for name, values in sorted(fit.device.calibration.items()):
        bare = name.replace("_", "").isalnum()
        sections[f"calibration.{name if bare else json.dumps(name)}"] = values
    for section, values in sections.items():
        lines.append(f"\n[{section}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
    return "\n".join([*lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.{PLACES}g}" if abs(value) < 1e15 else str(value)
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
