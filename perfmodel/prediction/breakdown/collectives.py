"""The collectives of a rank's steps by name and process group, and the bandwidth they reached.

Sizes and bandwidths are those of nccl-tests. A kernel waits for the other ranks too, so that its
bandwidth is what was reached, not what the wires allow.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.base.units import BYTES_PER_GB, US_PER_S
from perfmodel.lowering.rules.copies import ONE_BYTE, TABLE, collective
from perfmodel.ops.graph import Op
from perfmodel.ops.read.attributes import collective_of, of_event
from perfmodel.ops.spec import OPS
from perfmodel.plot.names import short_name
from perfmodel.prediction.breakdown.hotspots import Hotspots, Nesting
from perfmodel.prediction.breakdown.tables import NamedSums, Records, summed
from perfmodel.trace.categories import HOST_COLLECTIVE_NAME, Category, is_communication
from perfmodel.trace.columns import NONE, RankTrace

_LIBRARY = re.compile(r"[nrhux]ccl|gloo:", re.I)
"""Kernels and annotations that are named after the collective they are."""
_SAID = (
    *("collective", "process_group", "group_size", "in_elements", "out_elements"),
    *("collective_dtype", "in_split", "out_split"),
)
"""Columns in which equal collectives are equal."""


class _Kind(NamedTuple):
    """What collectives of one kind have in common; sizes are 0 where they are not recorded."""

    key: str
    size_bytes: float = 0.0
    bus_bytes: float = 0.0


def collective_sums(hot: Hotspots) -> NamedSums:
    """By collective, process group and its size: times within the steps, and of those whose sizes
    are recorded bytes, bytes over the bus, and how long each ran in all."""
    rank, rows = hot.rank, hot.links.device_rows
    if len(rows):
        at = np.flatnonzero(rank.named(rows, is_communication) & (hot.device_us > 0))
        rows, us, said = rows[at], hot.device_us[at], _records(hot, at)
    else:
        notes = rank.of(Category.ANNOTATION)
        rows = notes[rank.name_matches(HOST_COLLECTIVE_NAME)[notes]]
        us = hot.clock.within_us(rank.start_us[rows], rank.end_us[rows])
        rows, us = rows[us > 0], us[us > 0]
        said = np.where(rank.collective[rows] >= 0, rows, NONE)
    records = (np.append(getattr(rank, column).astype(np.int64), NONE)[said] for column in _SAID)
    alike = np.stack([rank.name[rows], *records])
    _, first, kind = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    kinds = [_kind(rank, int(rows[x]), int(said[x])) for x in first.tolist()]
    keys = {each.key: at for at, each in enumerate({each.key: each for each in kinds}.values())}
    key = np.array([keys[each.key] for each in kinds], np.int64)[kind.reshape(-1)]
    kernels = np.bincount(said[said >= 0], minlength=len(rank))  # of one call share its bytes
    share = np.where(said >= 0, 1.0 / np.maximum(kernels[said], 1), 1.0)
    size, bus = (
        np.array([getattr(each, x) for each in kinds], np.float64)[kind.reshape(-1)] * share
        for x in ("size_bytes", "bus_bytes")
    )
    ran_us = rank.duration_us[rows]
    columns = {
        "count": None,
        "device_us": us,
        "size_bytes": size,
        "sized_us": np.where(size > 0, ran_us, 0.0),
        "bus_bytes": bus,
        "bus_us": np.where(bus > 0, ran_us, 0.0),
    }
    sums = {name: summed(key, column, len(keys)) for name, column in columns.items()}
    total_us = float(hot.device_us.sum())
    return NamedSums(tuple(keys), sums, hot.clock.count, hot.clock.total_us, total_us)


def collective_rows(sums: NamedSums, most: int | None = None) -> Records:
    """Collectives per step, most time first; None where the trace does not say."""
    result = []
    for row in sums.rows(("device_us",), most):
        head, _, ranks = row["name"].rpartition("\t")
        name, _, group = head.partition("\t")
        sized = {
            key: row[bytes_] / BYTES_PER_GB / row[us] * US_PER_S if row[us] else None
            for key, bytes_, us in (
                ("algbw_gb_per_s", "size_bytes", "sized_us"),
                ("busbw_gb_per_s", "bus_bytes", "bus_us"),
            )
        }
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
                **sized,
            }
        )
    return result


def _records(hot: Hotspots, at: Ints) -> Ints:
    """Per device row (a position in the links): the event that says what is sent, or -1: the
    kernel itself, else the innermost such operator around its launch call."""
    rank, rows, launch = hot.rank, hot.links.device_rows[at], hot.links.device_launch[at]
    result = np.where(rank.collective[rows] >= 0, rows, NONE)
    ops = rank.of(Category.CPU_OP)
    saying = Nesting(rank, ops[rank.collective[ops] >= 0])
    asked = np.flatnonzero((result < 0) & (launch >= 0))
    result[asked] = saying.innermost(launch[asked])
    return result


def _kind(rank: RankTrace, row: int, record: int) -> _Kind:
    """What the collective in `row` is, by what `record` (-1: nothing) says of it."""
    if record == NONE:
        name = short_name(rank.text(row)).removeprefix("gloo:")
        word = collective_of(name) if _LIBRARY.search(rank.text(row)) else name
        return _Kind(f"{TABLE.get(word, word)}\t\t")
    known = of_event(rank, record)
    ranks = known.get("group_size", "") if rank.group_size[record] > 0 else ""
    key = "\t".join((known.get("collective", ""), known.get("process_group", ""), ranks))
    piece = next(iter(collective(Op("record_param_comms", attributes=known))), None)
    size_bytes = 0.0 if piece is None or piece.guessed else piece.dims["size_bytes"]
    if piece is None or size_bytes <= ONE_BYTE:
        return _Kind(key)
    dims = {name: np.array(value) for name, value in piece.dims.items()}
    bus_bytes = float(OPS[piece.op].read_bytes(dims, np.array(1.0))) if ranks else 0.0
    return _Kind(key, size_bytes, bus_bytes)
