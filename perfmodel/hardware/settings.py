"""Changes of single figures: `--set device.hbm_gb_per_s=3000 --set node.gpus=4`; of a GPU's clock,
which others follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from perfmodel.base.schema import Table, parse_value
from perfmodel.errors import HardwareError
from perfmodel.hardware.catalogue import lookup_from
from perfmodel.hardware.parts import KINDS, Device, Part, kind_of
from perfmodel.hardware.schema import P, build_part, fields_of, merge

OPTION = "--set"
GIVEN = f"given in {OPTION}"
"""How the source of a figure that was set begins."""


def with_settings(part: P, settings: Sequence[str]) -> P:
    """`part` with single keys of it, or of the parts in it, set: `KIND.KEY=VALUE`.

    KIND is one of `KINDS` (`device`, `nic`, `accelerator`, `node`, …); KEY and VALUE are as in a
    TOML file, where a name needs no quotes. A device's `link_gb_per_s` is its node's link as
    well, unless `link.gb_per_s` is set; a GPU's peaks follow its `boost_mhz`, unless they are. The
    name of what is returned tells the settings.
    Raises `HardwareError`, as for a file.
    """
    if not settings:
        return part
    changes = _changes(part, settings)
    changes["name"] = f"{part.name} ({', '.join(settings)})"
    try:
        table = merge(type(part), _table(part), changes, OPTION, lookup_from(Path()))
        return build_part(type(part), table, OPTION)
    except HardwareError:
        node = getattr(part, "node", part)
        keys = [(kind, key) for kind, key, _ in map(_parsed, settings)]
        named = {key for kind, key in keys if kind == kind_of(node)}
        lacking = [kind for kind, _ in keys if getattr(node, kind, part) is None]
        lacking = [kind for kind in lacking if kind not in named]
        if not lacking:
            raise
        raise HardwareError(
            f"{OPTION} {lacking[0]}: {part.name} has none: name one too, as in "
            f"{OPTION} {kind_of(node)}.{lacking[0]}=NAME"
        ) from None


def _changes(part: Part, settings: Sequence[str]) -> Table:
    changes: Table = {}
    for setting in settings:
        kind, key, value = _parsed(setting)
        inner = changes
        for step in _path_to(kind, part, setting):
            inner = _changes_within(inner, step)
        held = inner.get(key)
        inner[key] = _based_on(value) | held if isinstance(held, dict) else value
    node = changes.get("node", {}) if kind_of(part) == "cluster" else changes
    device = node.get("device") if isinstance(node, dict) else None
    has_link = getattr(getattr(part, "node", part), "link", None) is not None
    if isinstance(device, dict) and "link_gb_per_s" in device and has_link:
        _changes_within(node, "link").setdefault("gb_per_s", device["link_gb_per_s"])
    changed: Any = changes if isinstance(part, Device) else device
    clock_mhz = changed.get("boost_mhz") if isinstance(changed, dict) else None
    if isinstance(clock_mhz, (int, float)) and "extends" not in changed:
        holder = getattr(part, "node", part)
        was: Any = getattr(holder, "device", holder)
        rates = following(was, clock_mhz / was.boost_mhz) if was.target != "cpu" else {}
        for name, value in rates.items():  # which follow a GPU's clock unless they are set
            changed.setdefault(name, value)
    return changes


def _changes_within(changes: Table, key: str) -> Table:
    """The changes of the part at `key`, which may have been named as another part."""
    inner = changes.get(key, {})
    changes[key] = inner if isinstance(inner, dict) else _based_on(inner)
    return changes[key]  # type: ignore[no-any-return]


def _based_on(name: str) -> Table:
    """Changes that begin with another part in the place of the present one."""
    return {"extends": name, "name": f"{name} (changed)"}


def _parsed(setting: str) -> tuple[str, str, Any]:
    name, equals, text = setting.partition("=")
    kind, dot, key = (word.strip() for word in name.partition("."))
    if not equals or not dot or not key or kind not in KINDS:
        raise HardwareError(
            f"{OPTION} {setting!r:.80}: expected KIND.KEY=VALUE, as in device.hbm_gb_per_s=3000; "
            f"KIND is one of {', '.join(KINDS)}"
        )
    return kind, key, parse_value(text)


def _path_to(kind: str, part: Part, setting: str) -> list[str]:
    """The keys that lead from `part` to its part of `kind`."""
    its = kind_of(part)
    if kind == its:
        return []
    if kind in fields_of(its):
        return [kind]
    if its == "cluster" and kind in fields_of("node"):
        return ["node", kind]
    raise HardwareError(f"{OPTION} {setting!r:.80}: {part.name} is a {its} and has no {kind}")


def _table(part: Part) -> Table:
    table: Table = {"source": dict(part.sources)}
    for entry in fields(part):
        value = getattr(part, entry.name)
        if entry.name != "sources" and value is not None:
            plain = list(value) if isinstance(value, tuple) else value
            table[entry.name] = _table(value) if isinstance(value, Part) else plain
    return table


FOLLOWING = (
    *("fp32_tflop_per_s", "fp32_matrix_tflop_per_s", "tf32_tflop_per_s", "fp16_tflop_per_s"),
    *("bf16_tflop_per_s", "fp8_tflop_per_s", "fp4_tflop_per_s", "int8_tflop_per_s"),
    *("l2_gb_per_s", "base_mhz", "max_sustained_mhz"),
)
"""Figures of a GPU that go with `boost_mhz`, at which its peaks are stated; those of memory and
links have clocks of their own."""


def following(device: Device, ratio: float) -> dict[str, float]:
    """What becomes of them where the clock is `ratio` times what it was."""
    held = {name: getattr(device, name) for name in FOLLOWING}
    return {name: ratio * value for name, value in held.items() if value is not None}


def at_clock(device: Device, ratio: float) -> Device:
    """`device` with `ratio` times its clock and all that follows it."""
    return replace(device, boost_mhz=ratio * device.boost_mhz, **following(device, ratio))  # type: ignore[arg-type]
