"""Times of reading and writing rows outside the device: host memory, drives, adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import TIERS, Estimate, Explanation, explanations
from perfmodel.cost.gpu.analysis import Group, groups_of
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows

_INTERVAL = coefficients("tiers.interval")


@dataclass(frozen=True)
class Work:
    """Of rows of one op and direction, microseconds by resource (`terms`), before them once
    (`start_us`), and at the peak of what bounds them (`at_peak_us`): the longest unless given."""

    terms: Mapping[str, Floats | float]
    start_us: Floats | float = 0.0
    at_peak_us: Floats | float | None = None


WorkOf: TypeAlias = Callable[[Group, Cluster], Work]
"""What rows of one op and direction ask of each resource of a machine."""


@dataclass(frozen=True)
class Tier:
    """A cost model of resources that work on rows side by side: the slowest decides."""

    name: str
    formula: str
    work: WorkOf
    source: Callable[[Rows, Cluster], str]
    """What the durations rest on."""
    interval: tuple[float, float] = (1.0 / _INTERVAL.half_factor, _INTERVAL.half_factor)
    """Factors from the middle to the ends of the 90 % interval."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken_us = np.empty(len(rows))
        for group in groups_of(rows):
            work = self.work(group, machine)
            terms = np.broadcast_arrays(*work.terms.values())
            taken_us[group.index] = work.start_us + np.maximum.reduce(terms)
        low, high = self.interval
        source = self.source(rows, machine)
        return Estimate(taken_us, taken_us * low, taken_us * high, self.name, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        reasons: dict[int, Explanation] = {}
        for group in groups_of(rows):
            work, count = self.work(group, machine), len(group.index)
            names = list(work.terms)
            terms = np.stack([np.broadcast_to(each, count) for each in work.terms.values()])
            start_us, longest_us = np.broadcast_to(work.start_us, count), terms.max(axis=0)
            peak_us = longest_us if work.at_peak_us is None else work.at_peak_us + 0.0 * longest_us
            bound_by = [names[at] for at in terms.argmax(axis=0).tolist()]
            columns = {f"{name}_us": us for name, us in zip(names, terms, strict=True)}
            us, amounts = start_us + longest_us, (group.flop, group.read_bytes, group.written_bytes)
            columns["start_us"] = start_us
            told = explanations(us, bound_by, amounts, peak_us / us, columns, self.formula)
            reasons |= dict(zip(group.index.tolist(), told, strict=True))
        return [reasons[row] for row in range(len(rows))]


def tier(
    family: str, formula: str, source: Callable[[Rows, Cluster], str]
) -> Callable[[WorkOf], WorkOf]:
    """A decorator: the tier for the ops of a family, from the work that its function gives."""

    def add(work: WorkOf) -> WorkOf:
        TIERS.register(family)(Tier(f"{family}/heuristic", formula, work, source))
        return work

    return add
