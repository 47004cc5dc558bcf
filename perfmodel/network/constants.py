"""The constants of the heuristic: base and hop latencies, and shares of rates that are reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import tomllib

from perfmodel.network.calls import Calls, Texts
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Constants:
    """`values`: `TABLE.NAME` to its value in the unit that the name ends in."""

    values: Mapping[str, float]
    source: str

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def by(self, kinds: Texts, name: str, default: str = "infiniband") -> Floats:
        """`KIND.name` per row; rows of an unknown kind have that of `default`."""
        found = np.full(len(kinds), self.values[f"{default}.{name}"])
        for kind in np.unique(kinds):
            value = self.values.get(f"{kind}.{name}")
            if value is not None:
                found[kinds == kind] = value
        return found

    def base_us(self, calls: Calls) -> Floats:
        """What a call takes that moves nothing, by the devices' generation."""
        found = np.full(len(calls), self["base.launch_us"])
        for word in ("ampere", "blackwell", "cdna"):
            found[np.char.startswith(calls.architecture, word)] = self[f"base.{word}_us"]
        return found

    def link_frac(self, calls: Calls) -> Floats:
        """Share of the links' rate that plain transfers reach."""
        names = np.char.add("link.", np.char.add(calls.link, "_frac"))
        return np.array([self.values[str(name)] for name in names])


@cache
def shipped() -> Constants:
    """The constants that the package carries."""
    text = files("perfmodel.network").joinpath("constants.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)
    values = {
        f"{table}.{name}": float(value)
        for table, entries in found.items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    }
    return Constants(values, str(found["source"]))
