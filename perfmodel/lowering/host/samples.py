"""Host-overhead samples of one rank by type and thread, and the statistics kept of many.

Source: Lin et al., "Building a Performance Model for Deep Learning Recommendation Model Training
on GPUs", 2022, section IV-C; operators that launch nothing are a class of their own here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

T1, T2, T3, T4, T5 = "T1", "T2", "T3", "T4", "T5"
OP_WITHOUT_LAUNCH = "op_without_launch"

TYPES = (T1, T2, T3, T4, T5, OP_WITHOUT_LAUNCH)
"""Overhead types, in the order of the codes in `Samples.type`."""

CODE = {name: code for code, name in enumerate(TYPES)}

DESCRIPTIONS = {
    T1: "gap before an operator: from the end of the one before it on its thread",
    T2: "start of an operator to its first launch call",
    T3: "end of an operator's last launch call to the operator's end",
    T4: "a launch call itself",
    T5: "gap between consecutive launch calls of one operator",
    OP_WITHOUT_LAUNCH: "an operator that launches nothing",
}


ENGINE = {AUTOGRAD_THREAD: "autograd::engine: begins", MAIN_THREAD: "autograd::engine: ends"}
"""The T1 of a backward pass, by the thread that goes on: its dependencies are counted and the
engine's thread wakes up; the thread that waited does."""

QUANTILES = {"p10_us": 0.10, "p25_us": 0.25, "median_us": 0.50, "p75_us": 0.75, "p90_us": 0.90}
TRIM_FRAC = 0.10
"""The trimmed mean leaves out this fraction of the samples at each end, rounded down; of three
samples or more at least one, so that a single stall among few does not stand for an operator."""


Us = Annotated[float, Meta(ge=0)]


class Statistic(Struct, frozen=True):
    """One group of samples in microseconds; `std_us` is the population's.

    `approximate`: the quantiles and the trimmed mean are averages, weighted by count, of several
    groups'. Count, mean and std are exact always.
    """

    count: Annotated[int, Meta(ge=1)]
    mean_us: Us
    std_us: Us
    p10_us: Us
    p25_us: Us
    median_us: Us
    p75_us: Us
    p90_us: Us
    trimmed_mean_us: Us
    approximate: bool = False


NUMBERS = tuple(name for name in Statistic.__struct_fields__ if name.endswith("_us"))


def of_sorted(value_us: Floats) -> Statistic:
    """The statistic of samples in ascending order, at least one."""
    cut = max(int(TRIM_FRAC * len(value_us)), len(value_us) >= 3)
    quantiles = np.quantile(value_us, list(QUANTILES.values()))
    return Statistic(
        count=len(value_us),
        mean_us=float(value_us.mean()),
        std_us=float(value_us.std()),
        trimmed_mean_us=float(value_us[cut : len(value_us) - cut].mean()),
        **dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
    )


def grouped(group: Ints, value_us: Floats) -> Iterator[tuple[int, Floats]]:
    """Each group's code and its samples."""
    order = np.argsort(group, kind="stable")
    value_us = value_us[order]
    codes, starts = np.unique(group[order], return_index=True)
    edges = [*starts.tolist(), len(order)]
    for at, code in enumerate(codes.tolist()):
        yield code, value_us[edges[at] : edges[at + 1]]


Cell = dict[str, float]
"""`count`, `mean_us`, `median_us`, `total_us` of one type."""
Table = dict[str, dict[str, dict[str, Cell]]]
"""Thread, then `raw` or `no_blocking`, then type."""

_COLUMNS = (
    *("type", "thread", "op", "call", "step", "start_us", "end_us", "value_us"),
    *("blocking", "handed_over"),
)


@dataclass(frozen=True)
class Samples:
    """One row per sample, type after type; times are microseconds after the rank's origin."""

    where: str
    rank: int
    devices: tuple[str, ...]
    """Names of the GPUs that the trace speaks of."""
    profiler_us_per_event: float
    """What was taken off per recorded event; 0 when the values are as measured."""
    names: tuple[str, ...]
    """Texts of the indices in `op` and `call`."""
    threads: tuple[str, ...]
    """Thread roles (`main`, `autograd`, `other:N`) of the indices in `thread`."""
    steps: tuple[str, ...]
    """Names of the indices in `step`."""
    type: NDArray[np.int8]
    """Index into `perfmodel.lowering.host.TYPES`."""
    thread: Ints
    op: Ints
    """Name of the operator that the sample belongs to; for T1 the one after the gap."""
    call: Ints
    """Name of the launch call of a T4 sample, else -1."""
    step: Ints
    start_us: Floats
    end_us: Floats
    """Not before `start_us`, except where neighbours overlap by rounding: `value_us` is 0 then."""
    value_us: Floats
    blocking: Mask
    """The sample waited: it overlaps a synchronising call or a copy call above 50 us on its
    thread, or is a gap of the main thread while the autograd thread worked."""
    handed_over: Mask
    """A gap of the main thread while another thread, whatever its role, ran the backward pass."""

    def __len__(self) -> int:
        return len(self.type)

    def __repr__(self) -> str:
        return f"Samples({self.where!r}, rank {self.rank}, {len(self)} in {len(self.steps)} steps)"

    def of_step(self, index: int) -> Samples:
        """The samples of one step, by its index in `steps`."""
        rows, steps = self._by_step
        low, high = np.searchsorted(steps, np.array([index, index + 1], steps.dtype))
        return self._where(rows[low:high])

    @cached_property
    def _by_step(self) -> tuple[Ints, Ints]:
        """Rows by step, in order within each, and their steps."""
        rows = np.argsort(self.step, kind="stable")
        return rows, self.step[rows]

    def without_step(self, index: int) -> Samples:
        """The samples of all steps but one, such as to predict the one that is left out."""
        return self._where(self.step != index)

    def without_waiting(self) -> Samples:
        """The samples that waited for nothing, neither the device nor another thread."""
        return self._where(~(self.blocking | self.handed_over))

    def table(self) -> Table:
        """Count, mean, median and sum per thread, `raw` and `no_blocking`, and type.

        Types without samples are left out, and so are threads without any.
        """
        cell = self.thread * len(TYPES) + self.type
        order = np.argsort(cell, kind="stable")
        present, starts = np.unique(cell[order], return_index=True)
        edges = [*starts.tolist(), len(order)]
        value, free = self.value_us[order], ~self.blocking[order]
        columns: Table = {}
        for at, code in enumerate(present.tolist()):
            rows = slice(edges[at], edges[at + 1])
            thread, kind = self.threads[code // len(TYPES)], TYPES[code % len(TYPES)]
            tables = columns.setdefault(thread, {"raw": {}, "no_blocking": {}})
            tables["raw"][kind] = _cell(value[rows])
            if free[rows].any():
                tables["no_blocking"][kind] = _cell(value[rows][free[rows]])
        return columns

    def _where(self, keep: Mask | Ints) -> Samples:
        return replace(self, **{name: getattr(self, name)[keep] for name in _COLUMNS})


def _cell(value_us: Floats) -> Cell:
    middle = len(value_us) // 2
    ordered = np.partition(value_us, [(len(value_us) - 1) // 2, middle])
    total = float(value_us.sum())
    return {
        "count": len(value_us),
        "mean_us": total / len(value_us),
        "median_us": float(ordered[(len(value_us) - 1) // 2] + ordered[middle]) / 2,
        "total_us": total,
    }
