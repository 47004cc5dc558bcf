"""The constants of the heuristic: base and hop latencies, and shares of rates that are reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from perfmodel.network.calls import Calls
from perfmodel.network.fabric import INFINIBAND
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Constants:
    """`values`: `TABLE.NAME` to its value in the unit that the name ends in."""

    values: Mapping[str, float]
    source: str

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def of_network(self, calls: Calls, name: str) -> Floats:
        """`NETWORK.name` per call; a network of unknown kind has that of InfiniBand."""
        kinds, kind = calls.networks
        usual = self.values[f"{INFINIBAND}.{name}"]
        return np.array([self.values.get(f"{each}.{name}", usual) for each in kinds])[kind]

    def of_generation(self, calls: Calls, name: str) -> Floats:
        """The factor `name` of the devices' generation, by the word that it begins with; or 1."""
        kinds, kind = calls.architectures
        factors = {
            word: value
            for word, _, ending in (key.partition(".") for key in self.values)
            if ending == name and (value := self.values[f"{word}.{name}"])
        }
        found = [
            next((value for word, value in factors.items() if each.startswith(word)), 1.0)
            for each in kinds.tolist()
        ]
        return np.array(found)[kind]

    def of_link(self, calls: Calls) -> Floats:
        """Share of the links' rate that plain transfers reach."""
        kinds, kind = calls.links
        return np.array([self.values[f"link.{each}_frac"] for each in kinds.tolist()])[kind]


@cache
def shipped() -> Constants:
    """The constants of the model that the package carries."""
    content = files("perfmodel.network").joinpath("fitted.json").read_bytes()
    values = json.loads(content)["constants"]
    return Constants({str(name): float(value) for name, value in values.items()}, "fitted.json")
