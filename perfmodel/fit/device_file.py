"""A calibrated device as a TOML file, with where everything in it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from perfmodel.fit.device import DeviceFit
from perfmodel.fit.device_data import Source
from perfmodel.hardware import Device

PLACES = 5
"""Significant digits of a fitted number."""


def device_toml(fit: DeviceFit, sources: Sequence[Source], made: Mapping[str, str]) -> str:
    """The file: what it was fitted on as comments, then the device with its calibration."""
    return "\n".join([*_comments(fit, sources, made), *_device(fit.device), ""])


def _comments(fit: DeviceFit, sources: Sequence[Source], made: Mapping[str, str]) -> Iterable[str]:
    versions = ", ".join(f"{name} {value}" for name, value in made.items())
    yield f"# Fitted with `perfmodel fit device`: {versions}."
    for it in sources:
        yield f"# {it.name}: sha256 {it.sha256}, {it.rows} rows, {it.left_out} left out"
    if fit.errors:
        yield from _errors(fit)
    for note in fit.notes:
        yield f"# {note}"


def _errors(fit: DeviceFit) -> Iterable[str]:
    yield f"# A random half held out (seed {fit.seed}) for the errors, then fitted to all."
    yield "# Held-out errors: family, how measured, n, median %, 90th percentile %, bias %, and"
    yield "# by how many % the measurement's medians lie above its robust times:"
    for row in (*fit.errors, *([fit.steps] if fit.steps else [])):
        yield (
            f"#   {row.family}, {row.kind}: {row.n}, {row.median_pct:.1f}, {row.p90_pct:.1f}, "
            f"{row.bias_pct:+.1f}, {row.spread_pct:.1f}"
        )


def _device(device: Device) -> Iterable[str]:
    yield 'kind = "device"'
    for entry in fields(device):
        value = getattr(device, entry.name)
        if entry.name in ("sources", "calibration") or value is None or value == ():
            continue
        yield f"{entry.name} = {_value(value)}"
    yield ""
    yield "[source]"
    for key, text in device.sources.items():
        yield f"{key} = {_value(text)}"
    for section, values in sorted(device.calibration.items()):
        yield ""
        yield f"[calibration.{_key(section)}]"
        for name, value in values.items():
            yield f"{name} = {_value(value)}"


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.{PLACES}g}" if abs(value) < 1e15 else str(value)
    return str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
