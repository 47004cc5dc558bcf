"""Fitted and assumed figures of physics, as data: value, unit, meaning and source of each.

A file per package below `cost`, a table `[MODULE.NAME]` per coefficient. `docs/coefficients.md`
lists all; tests refuse one without unit or source, and one that no module reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.schema import read_toml
from perfmodel.errors import ModelError

ASSUMED = "assumed"
_FOLDER, _MAX_BYTES = Path(__file__).parent, 1_000_000


class Group(dict[str, Any]):
    """The coefficients of one module by name: tables by op, direction, generation or target,
    several figures that the unit names in order. A single figure is an attribute, too."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__({k: _converted(it["value"]) for k, it in tables.items() if "value" in it})
        self.entries = tables
        vars(self).update(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...


@cache
def coefficients(name: str) -> Group:
    """Those of a module, by `PACKAGE.MODULE`: `gpu.streaming`. Raises `ModelError` where the file
    or its table is missing or damaged."""
    package, _, module = name.partition(".")
    tables = document(package)
    if module not in tables:
        raise ModelError(f"{_FOLDER / package}.toml: no coefficients [{module}.NAME] in it")
    return Group(tables[module])


@dataclass(frozen=True)
class Coefficient:
    """A coefficient of a cost model."""

    name: str
    """`gpu.matmul.split_us`."""
    value: Any
    """A number, a table or a list of such."""
    unit: str
    meaning: str
    grounds: str
    """`assumed`, else `sourced`."""
    source: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def listed(package: str, modules: Iterable[str]) -> tuple[Coefficient, ...]:
    """The coefficients of these modules of a package, in order of their names."""
    return tuple(
        Coefficient(
            f"{package}.{module}.{key}",
            entry["value"],
            entry["unit"],
            entry.get("meaning", ""),
            ASSUMED if entry["source"].startswith(ASSUMED) else "sourced",
            entry["source"],
        )
        for module in sorted(set(modules) & document(package).keys())
        for key, entry in sorted(document(package)[module].items())
        if "value" in entry  # else a parameter that fits choose
    )


def _converted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _converted(each) for key, each in value.items()}
    return tuple(map(_converted, value)) if isinstance(value, list) else float(value)


@cache
def document(package: str) -> dict[str, dict[str, dict[str, Any]]]:
    """All coefficients of a package, by module and name."""
    return read_toml(_FOLDER / f"{package}.toml", _MAX_BYTES, ModelError)
