"""Achieved rates of operators: what their shapes say they must do, over the time that it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.prediction.breakdown.hotspots import Hotspots
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE


@dataclass(frozen=True)
class Rate:
    """One operator at one set of shapes: figures of a step, and the rates it reached."""

    operator: str
    shapes: str
    dtype: str
    count: float
    device_us: float
    flop: float
    moved_bytes: float
    roofline_us: float | None
    """The least time that the device's peak rates allow; None where they are not known."""
    bound_by: str | None
    """`compute` or `memory`: what that least time is due to."""

    @property
    def tflop_per_s(self) -> float:
        return self.flop / self.device_us / 1e6

    @property
    def gb_per_s(self) -> float:
        return self.moved_bytes / self.device_us / 1e3

    @property
    def roofline_frac(self) -> float | None:
        """Share of the roofline; above 1 where operands came from a cache, or an algorithm needs
        fewer FLOP than the plain one (Winograd)."""
        return None if self.roofline_us is None else self.roofline_us / self.device_us

    def to_dict(self) -> dict[str, Any]:
        share = self.roofline_frac
        return {
            "operator": self.operator,
            "shapes": self.shapes,
            "dtype": self.dtype,
            "count": round(self.count, 3),
            "device_us": round(self.device_us, 3),
            "flop": round(self.flop),
            "moved_bytes": round(self.moved_bytes),
            "tflop_per_s": round(self.tflop_per_s, 6),
            "gb_per_s": round(self.gb_per_s, 3),
            "roofline_frac": None if share is None else round(share, 6),
            "bound_by": self.bound_by,
        }


@dataclass(frozen=True)
class Rates:
    """The rates of one rank, most time first, and how much of its device time they are of."""

    rows: tuple[Rate, ...]
    device: str
    """The catalogue's name; '' where the trace's device is not in it."""
    rated_frac: float
    """Share of the device time, communication left out, that the rows are of."""
    note: str
    """Why there are none, or no shares of the roofline; '' where nothing is missing."""

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Figures of a step, and the first `most` rows."""
        return {
            "device": self.device,
            "rated_frac": round(self.rated_frac, 6),
            "note": self.note,
            "rows": [row.to_dict() for row in self.rows[:most]],
        }

    def mean_with(self, others: Sequence[Rates]) -> Rates:
        """The mean over this rank and others; a rank without a row counts as 0 of it."""
        every = [self, *others]
        same: dict[tuple[str, str, str], list[Rate]] = defaultdict(list)
        for row in (row for each in every for row in each.rows):
            same[row.operator, row.shapes, row.dtype].append(row)
        means = []
        for rows in same.values():
            columns = ["count", "device_us", "flop", "moved_bytes"]
            if all(row.roofline_us is not None for row in rows):
                columns.append("roofline_us")
            totals = {name: sum(getattr(row, name) for row in rows) for name in columns}
            mean = {name: total / len(every) for name, total in totals.items()}
            means.append(replace(rows[0], **{"roofline_us": None, **mean}))
        rated_frac = float(np.mean([each.rated_frac for each in every]))
        notes = dict.fromkeys(each.note for each in every if each.note)
        return Rates(tuple(by_time(means)), self.device, rated_frac, "; ".join(notes))


def by_time(rows: Sequence[Rate]) -> list[Rate]:
    """Most time first, then by name and shapes."""
    return sorted(rows, key=lambda row: (-row.device_us, row.operator, row.shapes, row.dtype))


def why_unrated(hot: Hotspots) -> str:
    """Why no operator of a rank has a rate, without lowering any; '' where some may."""
    rank = hot.rank
    if not len(hot.links.device_rows):
        return "no device operations"
    ops = rank.of(Category.CPU_OP)
    if not len(ops) or (rank.input_shapes[ops] == NONE).all():
        return "no shapes recorded: profile with record_shapes=True"
    return ""
