"""The tables of what takes the time: the rows that people see of sums by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.graph import AUTOGRAD_NODE
from perfmodel.plot.names import readable_names
from perfmodel.prediction.breakdown.hotspots import MODULE_NAME, Hotspots, NamedSums, Records
from perfmodel.prediction.breakdown.rates import collective_sums, rate_sums

MAX_ROWS = 100
"""Of each table of what takes the time, in JSON."""


def kernel_rows(sums: NamedSums, most: int | None = None) -> Records:
    """The kernels, copies and memsets, most time first, with the family of each."""
    readable = dict(zip(sums.names, readable_names(sums.names), strict=True))
    return [
        {
            "name": row["name"],
            "short_name": readable[row["name"]],
            "family": family_of_kernel(row["name"]),
            **row,
            "mean_us": row["device_us"] / row["count"],
        }
        for row in sums.rows(("device_us",), most)
    ]


def operator_rows(sums: NamedSums, most: int | None = None) -> Records:
    """The operators by the device time that they launched themselves, then by host time."""
    rows = sums.rows(("device_us", "host_us"), most)
    return [
        {"name": row["name"], "short_name": row["name"].removeprefix(AUTOGRAD_NODE), **row}
        for row in rows
    ]


def range_rows(sums: NamedSums, most: int | None = None, *, kind: str = "") -> Records:
    """The ranges, longest on the host first: all of one kind, or as their names say."""
    return [
        {**row, "kind": kind or ("module" if MODULE_NAME.match(row["name"]) else "annotation")}
        for row in sums.rows(("host_us", "device_us"), most)
    ]


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


class HotTable(NamedTuple):
    """A table of what takes the time: its sums by name of a rank, and the rows of sums."""

    sums: Callable[[Hotspots], NamedSums]
    rows: Callable[[NamedSums, int | None], Records]


TABLES = {
    "top_kernels": HotTable(attrgetter("kernels"), kernel_rows),
    "top_operators": HotTable(attrgetter("operators"), operator_rows),
    "annotations": HotTable(attrgetter("ranges"), range_rows),
    "modules": HotTable(attrgetter("modules"), partial(range_rows, kind="module")),
    "collectives": HotTable(collective_sums, collective_rows),
    "rates": HotTable(rate_sums, rate_rows),
}


class HotTables(ABC):
    """Tables of what takes the time of a step: of a rank, or in the mean over ranks."""

    @abstractmethod
    def sums(self, table: str) -> NamedSums:
        """What the rows of one of the tables `TABLES` are made of."""

    def rows(self, table: str, most: int | None = None) -> Records:
        """Of one of the tables `TABLES`, per step, the largest first."""
        return TABLES[table].rows(self.sums(table), most)

    def hot_tables(self, most: int | None) -> dict[str, Any]:
        """The tables, at most so many rows of each, as JSON."""
        found = {name: rounded_records(self.rows(name, most)) for name in TABLES}
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
