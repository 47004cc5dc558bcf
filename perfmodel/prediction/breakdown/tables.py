"""Sums by name over steps and ranks, rates of operators, and the rows that people see of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.ops.families import family_of_kernel

MODULE_NAME = re.compile(r"nn\.Module: ")
_WRAPPER = re.compile(r"autograd::engine::evaluate_function: ")
_NS_DIGITS = 3
"""Totals that are the same nanoseconds tie, in whatever order they were added up."""
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class NamedSums:
    """Per name, columns that add up over steps and ranks, and what they are shares of."""

    names: tuple[str, ...]
    columns: dict[str, Floats]
    """`count`, and times that end in `_us`."""
    step_count: int
    """Steps of all ranks behind it; the rows that people see are per one of them."""
    step_us: float
    device_us: float

    def rows(self, by: Sequence[str], most: int | None = None) -> Records:
        """A mapping per name: figures per step and shares, the largest of the columns `by` first.

        `step_frac` is the share of the step, of host time where there is any; `device_frac` the
        share of the summed time of all device operations. Names in order where figures tie.
        """
        key = [self.columns[name] for name in reversed(by)]
        place = np.argsort(np.argsort(np.array(self.names, dtype=object), kind="stable"))
        order = np.lexsort([place, *(-np.round(column, _NS_DIGITS) for column in key)])
        order = order[np.any([column[order] > 0 for column in key], axis=0)][:most]
        steps = max(self.step_count, 1)
        result = []
        for at in order.tolist():
            figures = {name: float(column[at]) / steps for name, column in self.columns.items()}
            result.append({"name": self.names[at], **figures, **self._shares(at)})
        return result

    def _shares(self, at: int) -> dict[str, float]:
        own_us = self.columns.get("host_us", self.columns["device_us"])[at]
        device_us = self.columns["device_us"][at]
        return {
            "step_frac": float(own_us / self.step_us) if self.step_us else 0.0,
            "device_frac": float(device_us / self.device_us) if self.device_us else 0.0,
        }

    @classmethod
    def over(cls, parts: Sequence[NamedSums]) -> NamedSums:
        """The sums of several ranks as one."""
        index: dict[str, int] = {}
        places = [[index.setdefault(name, len(index)) for name in part.names] for part in parts]
        columns = {name: np.zeros(len(index)) for part in parts for name in part.columns}
        for part, at in zip(parts, places, strict=True):
            for name, column in part.columns.items():
                columns[name][at] += column
        return cls(
            tuple(index),
            columns,
            sum(part.step_count for part in parts),
            sum(part.step_us for part in parts),
            sum(part.device_us for part in parts),
        )


def summed(key: Ints, values: Floats | None, count: int) -> Floats:
    """Per key the sum of its values; how many there are without values."""
    return np.bincount(key, values, minlength=count).astype(np.float64)


def once(levels: Sequence[Ints], before: Sequence[Ints], us: Floats, count: int) -> Floats:
    """Per key the sum of `us` over the rows that have it on a level, each once; not those that
    have it in `before`. -1 is no key."""
    result = np.zeros(count)
    for depth, level in enumerate(levels):
        is_new = level >= 0
        for above in (*levels[:depth], *before):
            is_new &= above != level
        result += summed(level[is_new], us[is_new], count)
    return result


def kernel_rows(sums: NamedSums, most: int | None = None) -> Records:
    """The kernels, copies and memsets, most time first, with the family of each."""
    from perfmodel.plot.names import readable_names

    readable = dict(zip(sums.names, readable_names(sums.names), strict=True))
    return [
        {
            "name": row["name"],
            "short_name": readable[row["name"]],
            "family": family_of_kernel(row["name"]),
            **{key: value for key, value in row.items() if key != "name"},
            "mean_us": row["device_us"] / row["count"],
        }
        for row in sums.rows(("device_us",), most)
    ]


def operator_rows(sums: NamedSums, most: int | None = None) -> Records:
    """The operators by the device time that they launched themselves, then by host time."""
    rows = sums.rows(("device_us", "host_us"), most)
    return [
        {"name": row["name"], "short_name": _WRAPPER.sub("", row["name"]), **row} for row in rows
    ]


def range_rows(sums: NamedSums, most: int | None = None) -> Records:
    """The ranges, longest on the host first."""
    return [
        {**row, "kind": "module" if MODULE_NAME.match(row["name"]) else "annotation"}
        for row in sums.rows(("host_us", "device_us"), most)
    ]


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
