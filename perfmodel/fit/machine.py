"""The device before any fit: as the collector described the machine, or from the catalogue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfmodel.errors import HardwareError, PerfmodelError, UsageError
from perfmodel.files import read_bytes
from perfmodel.hardware import Device, device

MAX_RECORD_BYTES = 10_000_000
_FLOP_PER_CLOCK = {"avx512f": 64.0, "avx2": 32.0, "neon": 16.0}
"""Two multiply-adds per clock of the vector width (makers' optimisation manuals, recalled)."""
_USUAL_FLOP_PER_CLOCK = 16.0
_ASSUMED_GB_PER_S_PER_CORE = 12.0
_ASSUMED_W_PER_CORE = 5.0
_ASSUMED_MHZ = 2500.0


def base_device(name: str, tables: Sequence[Path], given: str | None, stem: str) -> Device:
    """The device to fit: `given` by name or file, else as the records beside `tables` describe it.

    A GPU is looked up in the catalogue by its driver's `name`. Raises `UsageError`.
    """
    if given:
        return device(given)
    record = _record(tables)
    if record is not None and record.get("gpu") is None and isinstance(record.get("cpu"), dict):
        return _cpu(name, record, stem)
    try:
        return device(name)
    except HardwareError as error:
        raise UsageError(
            f"{tables[0]}: nothing beside it describes the machine ({error}): name a similar "
            "device with --hardware"
        ) from None


def _record(tables: Sequence[Path]) -> dict[str, Any] | None:
    """What the collector wrote of the machine beside the first table that has such a file."""
    for table in tables:
        stem = table.name.split(".")[0].removesuffix("_steps")
        beside = table.with_name(f"{stem}_meta.json")
        if beside.is_file():
            try:
                machine = json.loads(read_bytes(beside, max_bytes=MAX_RECORD_BYTES))["machine"]
            except (ValueError, KeyError, TypeError, PerfmodelError):
                raise UsageError(f"{beside}: is no record of the collector") from None
            return dict(machine)
    return None


def _cpu(name: str, record: dict[str, Any], stem: str) -> Device:
    cpu, measured = record["cpu"], f"the collector's record, {record.get('date', 'undated')}"
    cores = int(record.get("intra_op_threads") or cpu["usable_cpus"])
    caches = cpu.get("cache_bytes", {})
    mhz = float(cpu.get("clock_mhz") or _ASSUMED_MHZ)
    vectors = [rate for flag, rate in _FLOP_PER_CLOCK.items() if flag in cpu.get("vector", ())]
    per_clock = max(vectors, default=_USUAL_FLOP_PER_CLOCK)
    figures: dict[str, tuple[float, str]] = {
        "sm_count": (cores, f"{measured}: intra-op threads"),
        "boost_mhz": (mhz, measured),
        "tdp_w": (_ASSUMED_W_PER_CORE * cores, "assumed: 5 W a core"),
        "hbm_bytes": (int(cpu.get("memory_bytes", 8 * 2**30)), measured),
        "hbm_gb_per_s": (_ASSUMED_GB_PER_S_PER_CORE * cores, "assumed: 12 GB/s a core"),
        "l2_bytes": (int(caches.get("L2", 2**20)) * cores, f"{measured}: of each core"),
        "llc_bytes": (int(caches.get("L3", 8 * 2**20)), measured),
        "fp32_tflop_per_s": (
            cores * mhz * per_clock / 1e6,
            f"{cores} threads x {mhz:.0f} MHz x {per_clock:.0f} per clock",
        ),
        "kernel_floor_us": (1.0, "assumed: an operator that does next to nothing"),
    }
    return Device(
        name=stem,
        target="cpu",
        aliases=(name,),
        sources=MappingProxyType({key: text for key, (_, text) in figures.items()}),
        **{key: value for key, (value, _) in figures.items()},  # type: ignore[arg-type]
    )
