"""Workloads with settings changed by their key, as in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, get_type_hints

from perfmodel.errors import WorkloadError
from perfmodel.workload.checks import check
from perfmodel.workload.model import Workload
from perfmodel.workload.schema import SECTIONS, value_of
from perfmodel.workload.tables import Table

_KINDS: dict[str, type] = {**SECTIONS, "table": Table}


def changed(workload: Workload, changes: Mapping[str, Any]) -> Workload:
    """`workload` with `changes` by key: `batch`, `implementation.precision`, `table.pooling`, …

    `table.…` applies to every table. Raises `WorkloadError` that names the key.
    """
    edited = workload
    for key, value in changes.items():
        edited = _one(edited, key, value)
    check(edited, workload.name)
    return edited


def parsed(texts: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as changes; values are written as in TOML, words without quotes too."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise WorkloadError(f"expected KEY=VALUE, got {text!r}")
        found[key.strip()] = _value(value.strip())
    return found


def keys() -> list[str]:
    """Every key that `changed` knows."""
    return [
        "batch",
        *(f"{section}.{key}" for section, kind in _KINDS.items() for key in get_type_hints(kind)),
    ]


def _one(workload: Workload, key: str, value: Any) -> Workload:
    where = f"{workload.name}: {key}"
    if key == "batch":
        return replace(workload, batch=value_of("batch", int, value, where))
    section, _, field = key.partition(".")
    if section not in _KINDS or field not in get_type_hints(_KINDS[section]):
        near = get_close_matches(key, keys(), n=3, cutoff=0.5) or keys()
        raise WorkloadError(f"{workload.name}: unknown key {key}; expected: {', '.join(near)}")
    checked = value_of(field, get_type_hints(_KINDS[section])[field], value, where)
    if section == "table":
        tables = tuple(replace(table, **{field: checked}) for table in workload.tables)
        return replace(workload, tables=tables)
    part = replace(getattr(workload, section), **{field: checked})
    return replace(workload, **{section: part})


def _value(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
