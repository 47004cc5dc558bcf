"""Host-overhead samples of one rank as columns, and their table per thread and type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perfmodel.overheads.kinds import TYPES
from perfmodel.trace.columns import Floats, Ints, Mask

if TYPE_CHECKING:
    import pandas as pd

Cell = dict[str, float]
"""`count`, `mean_us`, `median_us`, `total_us` of one type."""
Table = dict[str, dict[str, dict[str, Cell]]]
"""Thread, then `raw` or `no_blocking`, then type."""

_COLUMNS = (
    "type",
    "thread",
    "op",
    "call",
    "step",
    "start_us",
    "end_us",
    "value_us",
    "blocking",
    "handed_over",
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
    """Index into `perfmodel.overheads.TYPES`."""
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
        found: Table = {}
        for at, code in enumerate(present.tolist()):
            rows = slice(edges[at], edges[at + 1])
            thread, kind = self.threads[code // len(TYPES)], TYPES[code % len(TYPES)]
            tables = found.setdefault(thread, {"raw": {}, "no_blocking": {}})
            tables["raw"][kind] = _cell(value[rows])
            if free[rows].any():
                tables["no_blocking"][kind] = _cell(value[rows][free[rows]])
        return found

    def frame(self) -> pd.DataFrame:
        """The samples as a pandas frame, one row each, with names in place of indices."""
        import pandas as pd

        names = np.array([*self.names, None], dtype=object)
        return pd.DataFrame(
            {
                "rank": self.rank,
                "type": np.array(TYPES, dtype=object)[self.type],
                "thread": np.array(self.threads, dtype=object)[self.thread],
                "op": names[self.op],
                "call": names[self.call],
                "step": np.array(self.steps, dtype=object)[self.step],
                "start_us": self.start_us,
                "value_us": self.value_us,
                "blocking": self.blocking,
                "handed_over": self.handed_over,
            }
        )

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
