"""Sums by name over steps and ranks, rates of operators, and the rows that people see of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
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
            device_us = float(self.columns["device_us"][at])
            own_us = float(self.columns.get("host_us", self.columns["device_us"])[at])
            shares = {
                "step_frac": own_us / self.step_us if self.step_us else 0.0,
                "device_frac": device_us / self.device_us if self.device_us else 0.0,
            }
            result.append({"name": self.names[at], **figures, **shares})
        return result

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


def rate_of(row: dict[str, Any]) -> dict[str, Any]:
    """`count device_us flop moved_bytes roofline_us` of an operator at one set of shapes, and the
    rates that it reached. Its share of the roofline is above 1 where operands came from a cache, or
    an algorithm needs fewer FLOP than the plain one (Winograd)."""
    us, least_us = row["device_us"], row["roofline_us"]
    return row | {
        "tflop_per_s": row["flop"] / us / 1e6,
        "gb_per_s": row["moved_bytes"] / us / 1e3,
        "roofline_frac": None if least_us is None else least_us / us,
    }


_RATE = {
    "operator": None,
    "shapes": None,
    "dtype": None,
    "count": 3,
    "device_us": 3,
    "flop": 0,
    "moved_bytes": 0,
    "tflop_per_s": 6,
    "gb_per_s": 3,
    "roofline_frac": 6,
    "bound_by": None,
}
"""What JSON has of a rate, and its decimals."""


@dataclass(frozen=True)
class Rates:
    """The rates of one rank (`rate_of`), most time first, and how much of its device time they are
    of. `roofline_us` is the least time that the device's peak rates allow, None where they are not
    known, `bound_by` what that is due to, `compute` or `memory`."""

    rows: Records
    device: str
    """The catalogue's name; '' where the trace's device is not in it."""
    rated_frac: float
    """Share of the device time, communication left out, that the rows are of."""
    note: str
    """Why there are none, or no shares of the roofline; '' where nothing is missing."""

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Figures of a step, and the first `most` rows."""
        rows = [
            {
                name: row[name]
                if row[name] is None or digits is None
                else round(row[name], digits or None)
                for name, digits in _RATE.items()
            }
            for row in self.rows[:most]
        ]
        about = {"device": self.device, "rated_frac": round(self.rated_frac, 6), "note": self.note}
        return about | {"rows": rows}

    def mean_with(self, others: Sequence[Rates]) -> Rates:
        """The mean over this rank and others; a rank without a row counts as 0 of it."""
        every = [self, *others]
        same: dict[tuple[str, str, str], Records] = defaultdict(list)
        for row in (row for each in every for row in each.rows):
            same[row["operator"], row["shapes"], row["dtype"]].append(row)
        means = []
        for rows in same.values():
            columns = ["count", "device_us", "flop", "moved_bytes"]
            if all(row["roofline_us"] is not None for row in rows):
                columns.append("roofline_us")
            mean = {name: sum(row[name] for row in rows) / len(every) for name in columns}
            means.append(rate_of(rows[0] | {"roofline_us": None} | mean))
        rated_frac = float(np.mean([each.rated_frac for each in every]))
        notes = dict.fromkeys(each.note for each in every if each.note)
        return Rates(by_time(means), self.device, rated_frac, "; ".join(notes))


def by_time(rows: Records) -> Records:
    """Most time first, then by name and shapes."""
    return sorted(rows, key=lambda row: (-row["device_us"], *map(row.get, list(_RATE)[:3])))
