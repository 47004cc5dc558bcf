"""Sums by name over steps and ranks, and the rows that people see of them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.errors import PerfmodelError
from perfmodel.ops.families import family_of_kernel

MODULE_NAME = re.compile(r"nn\.Module: ")
_WRAPPER = re.compile(r"autograd::engine::evaluate_function: ")
_NS_DIGITS = 3
"""Totals that are the same nanoseconds tie, in whatever order they were added up."""
Records = list[dict[str, Any]]
UNFIT = (PerfmodelError, ArithmeticError, LookupError, TypeError, ValueError)
"""What lowering raises of arguments that no rule expects: what rests on them is left out."""
MAX_ROWS = 100
"""Of each table of what takes the time, in JSON."""


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
    device: str = ""
    """Of rates: the catalogue's name; '' where the trace's device is not in it."""
    note: str = ""
    """Of rates: why there are none, or no shares of the roofline; '' where nothing is missing."""

    def rows(self, by: Sequence[str], most: int | None = None) -> Records:
        """A mapping per name: figures per step and shares, the largest of the columns `by` first.

        `step_frac` is the share of the step, of host time where there is any; `device_frac` the
        share of the summed time of all device operations. Names in order where figures tie.
        """
        if not self.names:
            return []
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

    @property
    def named_frac(self) -> float:
        """Share of the time of all device operations that has a name."""
        named_us = float(self.columns.get("device_us", np.zeros(1)).sum())
        return named_us / self.device_us if named_us else 0.0

    @staticmethod
    def none(note: str = "") -> NamedSums:
        return NamedSums((), {}, 0, 0.0, 0.0, note=note)

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
            parts[0].device,
            "; ".join(dict.fromkeys(part.note for part in parts if part.note)),
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


def module_rows(sums: NamedSums, most: int | None = None) -> Records:
    """Modules by their place in the tree, longest on the host first."""
    return [{**row, "kind": "module"} for row in sums.rows(("host_us", "device_us"), most)]


def collective_rows(sums: NamedSums, most: int | None = None) -> Records:
    """Collectives (`name`, process group and its size apart by tabs), most time first; None where
    the trace does not say. Bandwidths are those of nccl-tests."""
    result = []
    for row in sums.rows(("device_us",), most):
        name, _, rest = row["name"].partition("\t")
        group, _, ranks = rest.rpartition("\t")
        algbw, busbw = (
            row[moved] / BYTES_PER_GB / row[us] * US_PER_S if row[us] else None
            for moved, us in (("size_bytes", "sized_us"), ("bus_bytes", "bus_us"))
        )
        result.append(
            {
                "collective": name,
                "process_group": group or None,
                "group_size": int(ranks) if ranks else None,
                "count": row["count"],
                "size_bytes": row["size_bytes"] or None,
                "time_us": row["device_us"],
                "mean_us": row["device_us"] / row["count"],
                "step_frac": row["step_frac"],
                "algbw_gb_per_s": algbw,
                "busbw_gb_per_s": busbw,
            }
        )
    return result


def rate_rows(sums: NamedSums, most: int | None = None) -> Records:
    """Operators at one set of shapes (name, shapes and dtype apart by tabs), most time first, with
    the rates that they reached.

    `roofline_frac` is above 1 where operands came from a cache, or an algorithm needs fewer FLOP
    than the plain one (Winograd); it and `bound_by` are None where peak rates are not known.
    """
    result = []
    for row in sums.rows(("device_us",), most):
        operator, shapes, dtype = row["name"].rsplit("\t", 2)
        us, least_us = row["device_us"], row["compute_us"] + row["memory_us"]
        bound_by = "compute" if row["compute_us"] >= row["memory_us"] else "memory"
        result.append(
            {
                "operator": operator,
                "shapes": shapes,
                "dtype": dtype,
                "count": row["count"],
                "device_us": us,
                "flop": round(row["flop"]),
                "moved_bytes": round(row["moved_bytes"]),
                "tflop_per_s": row["flop"] / us / 1e6,
                "gb_per_s": row["moved_bytes"] / us / 1e3,
                "roofline_frac": least_us / us if least_us else None,
                "bound_by": bound_by if least_us else None,
            }
        )
    return result


ROWS = {
    "top_kernels": kernel_rows,
    "top_operators": operator_rows,
    "annotations": range_rows,
    "modules": module_rows,
    "collectives": collective_rows,
    "rates": rate_rows,
}
"""The tables of what takes the time: their rows from sums by name."""


class HotTables(ABC):
    """Tables of what takes the time of a step: of a rank, or in the mean over ranks."""

    @abstractmethod
    def sums(self, table: str) -> NamedSums:
        """What the rows of one of the tables `ROWS` are made of."""

    def rows(self, table: str, most: int | None = None) -> Records:
        """Of one of the tables `ROWS`, per step, the largest first."""
        return ROWS[table](self.sums(table), most)

    def hot_tables(self, most: int | None) -> dict[str, Any]:
        """The tables, at most so many rows of each, as JSON."""
        found = {name: rounded_records(self.rows(name, most)) for name in ROWS}
        rates = self.sums("rates")
        about = {"device": rates.device, "rated_frac": round(rates.named_frac, 6)}
        return found | {"rates": {**about, "note": rates.note, "rows": found["rates"]}}


def rounded_records(records: Records) -> Records:
    """Floats as they are written: times to the nanosecond."""
    return [
        {
            key: round(value, 6 if key.endswith(("_frac", "tflop_per_s")) else 3)
            if isinstance(value, float)
            else value
            for key, value in record.items()
        }
        for record in records
    ]
