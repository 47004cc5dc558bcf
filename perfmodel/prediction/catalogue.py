"""Predictions on all machines of the catalogue, what costs least per sample first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.hardware import cluster, find
from perfmodel.prediction.running_cost import billed
from perfmodel.prediction.types import Prediction

CATALOGUE = {"gpus": ("device",), "nodes": ("node",), "all": ("device", "node")}
"""What `hardware` may say instead of a name: kinds of the catalogue's machines with GPUs."""


def machines(hardware: Sequence[Any]) -> list[str]:
    """Where `hardware` has a word of `CATALOGUE`, those machines and the others that it names; none
    without such a word. Raises `PerfmodelError` for a name that is none."""
    words = [each for each in hardware if isinstance(each, str) and each in CATALOGUE]
    if not words:
        return []
    kinds = dict.fromkeys(kind for word in words for kind in CATALOGUE[word])
    found: list[Any] = [part for kind in kinds for part in find("", kind)]
    with_gpus = [each.name for each in found if getattr(each, "device", each).target != "cpu"]
    others = [each for each in hardware if each not in words]
    for each in others:
        cluster(each)
    return list(dict.fromkeys([*with_gpus, *others]))


def cheapest_first(machines: Sequence[Any], on: Callable[[Any], Prediction]) -> Prediction:
    """The predictions `on` each of `machines` in one, what costs least per sample first, those
    without a price by their step; what cannot be predicted is a warning. Raises the error of the
    last where none can."""
    found, lines = list[Prediction](), list[str]()
    refused: PerfmodelError | None = None
    for name in machines:
        try:
            found.append(on(name))
        except PerfmodelError as error:
            lines.append(f"left out {name}: {error}")
            refused = error
    if refused and not found:
        raise refused
    results, source = [result for each in found for result in each.results], found[0].source
    if "serving" in source:
        source = source | {"serving": [row for each in found for row in each.source["serving"]]}
    results = billed(source, results)
    results.sort(key=lambda each: ((each.cost or {}).get("usd_per_million") or inf, each.step_us))
    lines += [line for each in found for line in each.warnings]
    return replace(found[0], source=source, results=results, warnings=list(dict.fromkeys(lines)))
