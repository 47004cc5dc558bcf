"""Times of reading and writing rows outside the device: host memory, drives, adapters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import TIERS, CostModel, Estimate, Explanation
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows

__all__ = ["TIERS", "CostModel", "SideBySide", "Work"]


@dataclass(frozen=True)
class Work:
    """Per row of a frame, microseconds by resource (`terms`), before them once (`start_us`, called
    `start`), and what is moved; `at_peak_us`: what that takes at the peak of what bounds it, the
    longest of the terms unless given. `interval`: factors to the ends of the 90 % interval, or one
    for both sides."""

    terms: dict[str, Floats]
    start_us: Floats
    interval: float | tuple[float, float]
    read_bytes: Floats
    written_bytes: Floats
    flop: Floats
    start: str = "start_us"
    at_peak_us: Floats | None = None

    @property
    def duration_us(self) -> Floats:
        return np.asarray(self.start_us + np.maximum.reduce(list(self.terms.values())))


class SideBySide(ABC):
    """A cost model of resources that work on rows side by side: the slowest decides."""

    name: str
    formula: str

    @abstractmethod
    def work(self, rows: Rows, machine: Cluster) -> Work:
        """What `rows` ask of each resource of `machine`."""

    @abstractmethod
    def source(self, rows: Rows, machine: Cluster) -> str:
        """What the durations rest on."""

    def bound_by(self, work: Work, at: int, slowest: str) -> str:
        """What bounds the row `at`, of which the term `slowest` is the longest."""
        return slowest

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        work = self.work(rows, machine)
        taken, interval = work.duration_us, work.interval
        low, high = interval if isinstance(interval, tuple) else (1.0 / interval, interval)
        return Estimate(taken, taken * low, taken * high, self.name, self.source(rows, machine))

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        work = self.work(rows, machine)
        names, longest_us = list(work.terms), np.array(list(work.terms.values()))
        at_peak_us = longest_us.max(axis=0) if work.at_peak_us is None else work.at_peak_us
        return [
            Explanation(
                duration_us=us,
                bound_by=self.bound_by(work, at, names[longest_us[:, at].argmax()]),
                flop=float(work.flop[at]),
                read_bytes=float(work.read_bytes[at]),
                written_bytes=float(work.written_bytes[at]),
                utilisation_frac=float(at_peak_us[at] / us),
                terms={f"{name}_us": float(each[at]) for name, each in work.terms.items()}
                | {work.start: float(work.start_us[at])},
                formula=self.formula,
            )
            for at, us in enumerate(work.duration_us.tolist())
        ]
