"""Times of reading and writing rows outside the device: host memory, drives, adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.contract import TIERS, CostModel, Estimate, Explanation
from perfmodel.cost.gpu.analysis import Group, groups_of
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows

__all__ = ["TIERS", "CostModel", "Tier", "Work"]


@dataclass(frozen=True)
class Work:
    """Of rows of one op and direction, microseconds by resource (`terms`), before them once
    (`start_us`), and at the peak of what bounds them (`at_peak_us`): the longest unless given."""

    terms: Mapping[str, Floats | float]
    start_us: Floats | float = 0.0
    at_peak_us: Floats | float | None = None


@dataclass(frozen=True)
class Tier:
    """A cost model of resources that work on rows side by side: the slowest decides."""

    name: str
    formula: str
    interval: tuple[float, float]
    """Factors from the middle to the ends of the 90 % interval."""
    work: Callable[[Group, Cluster], Work]
    """What rows of one op and direction ask of each resource of a machine."""
    source: Callable[[Rows, Cluster], str]
    """What the durations rest on."""
    bound_by: Callable[[str, float], str] = lambda slowest, at_peak_frac: slowest
    """What bounds a row whose longest term is so called; at its peak that takes so much of it."""
    start: str = "start_us"
    """What explanations call it."""

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
            longest_us, slowest = terms.max(axis=0), terms.argmax(axis=0)
            start_us = np.broadcast_to(work.start_us, count)
            at_peak_us = longest_us if work.at_peak_us is None else work.at_peak_us
            at_peak_us = np.broadcast_to(at_peak_us, count)
            for at, row in enumerate(group.index.tolist()):
                us = float(start_us[at] + longest_us[at])
                of_longest = float(at_peak_us[at] / longest_us[at]) if longest_us[at] else 0.0
                taken = zip(names, terms[:, at].tolist(), strict=True)
                own = {f"{name}_us": each for name, each in taken}
                own[self.start] = float(start_us[at])
                reasons[row] = Explanation(
                    duration_us=us,
                    bound_by=self.bound_by(names[slowest[at]], of_longest),
                    flop=float(group.flop[at]),
                    read_bytes=float(group.read_bytes[at]),
                    written_bytes=float(group.written_bytes[at]),
                    utilisation_frac=float(at_peak_us[at]) / us,
                    terms=own,
                    formula=self.formula,
                )
        return [reasons[row] for row in range(len(rows))]


def register(
    family: str,
    formula: str,
    half_factor: float,
    work: Callable[[Group, Cluster], Work],
    source: Callable[[Rows, Cluster], str],
    **more: Any,
) -> None:
    """A tier for the ops of a family; the 90 % interval reaches `half_factor` times up and down."""
    interval = 1.0 / half_factor, half_factor
    TIERS.register(family)(Tier(f"{family}/heuristic", formula, interval, work, source, **more))
