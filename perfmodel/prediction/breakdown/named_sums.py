"""Sums by name over steps and ranks, and the rows of tables that people see of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.arrays import Floats, Ints
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
