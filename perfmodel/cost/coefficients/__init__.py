"""Fitted and assumed figures of physics, as data: value, unit, meaning and source of each.

A file per room below `cost`, a table `[MODULE.NAME]` per coefficient. `docs/coefficients.md` lists
all; tests refuse one without unit or source, and one that no module reads.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Group:
    """The coefficients of one module."""

    tables: Mapping[str, Mapping[str, Any]]

    def number(self, name: str) -> float:
        """One figure."""
        return float(self.tables[name]["value"])

    def numbers(self, name: str) -> dict[str, float]:
        """A figure by op, direction, generation or target."""
        return {key: float(value) for key, value in self.tables[name]["value"].items()}

    def tuples(self, name: str) -> dict[str, tuple[float, ...]]:
        """Several figures by the same; the unit names them in order."""
        found = self.tables[name]["value"].items()
        return {key: tuple(map(float, values)) for key, values in found}

    def rows(self, name: str) -> list[list[Any]]:
        """A list of figures that belong together, as written."""
        return [list(row) for row in self.tables[name]["value"]]


@cache
def document(room: str) -> dict[str, dict[str, dict[str, Any]]]:
    """All coefficients of a room, by module and name."""
    text = files(__name__).joinpath(f"{room}.toml").read_text("utf-8")
    return tomllib.loads(text)


def coefficients(name: str) -> Group:
    """Those of a module, by `ROOM.MODULE`: `gpu.streaming`."""
    room, _, module = name.partition(".")
    return Group(document(room)[module])
