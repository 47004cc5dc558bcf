"""Device time predicted from shapes alone, against what was measured: of the ops of a trace, and of
measurement tables, per op, device and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.contract import COLLECTIVE
from perfmodel.cost.durations import durations, durations_of
from perfmodel.cost.gpu.program import shortest_kernel_us
from perfmodel.errors import HardwareError, ModelError, TraceError, UsageError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering import lower
from perfmodel.lowering.observed import answered_by, with_placement
from perfmodel.ops.families import COMMUNICATION, families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.spec import OPS
from perfmodel.prediction import predict
from perfmodel.trace import Trace
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.validate.calibrate.kernel_data import LAUNCHED_US, devices_of, joined, read_table
from perfmodel.validate.evaluate.results import SCHEMA, Errors, Kind, Pair, error_rows

if TYPE_CHECKING:
    import pandas as pd

TOTAL = "all kernels"


def shape_times(trace: Trace) -> pd.DataFrame:
    """Device time of the ops of every rank with a GPU, a row per op that launched something and was
    lowered: `rank device op family predicted_us measured_us`.

    `family` is that of the measured kernel that took longest. Collectives are left out: what is
    measured of them contains waiting. Raises `TraceError` where shapes are not recorded,
    `HardwareError` for an unknown device.
    """
    import pandas as pd

    frames = [pd.DataFrame()]
    for at, (rank, links, graph) in enumerate(
        zip(trace.ranks, trace.links, op_graph(trace), strict=True)
    ):
        if rank.devices:
            described = rank.devices[0]
            device = from_driver_name(described.name, described.memory_bytes or None)
            frames.append(_rank_times(rank, links, graph, device).assign(rank=at))
    return pd.concat(frames, ignore_index=True)


def _rank_times(rank: RankTrace, links: Links, graph: OpGraph, device: Device) -> pd.DataFrame:
    import pandas as pd

    located = with_placement(graph, rank, links)
    lowered = lower(located, device.target, device=device)
    is_kernel = np.array([OPS[op].family != COLLECTIVE for op in lowered.rows.op], bool)
    pieces = np.flatnonzero(is_kernel)
    taken = durations_of(lowered.rows.take(pieces), device).duration_us
    predicted = np.bincount(lowered.owner[pieces], taken, minlength=len(graph))
    names = [rank.strings[name] for name in rank.name[links.device_rows].tolist()]
    kernels = pd.DataFrame(
        {
            "op": answered_by(lowered, rank, links),
            "family": families_of_kernels(names),
            "measured_us": rank.duration_us[links.device_rows].astype(np.float64),
        }
    )
    kernels = kernels[(kernels["family"] != COMMUNICATION) & (kernels["op"] != NO_OP)]
    kernels = kernels[predicted[kernels["op"]] > 0].sort_values("measured_us", kind="stable")
    by_op = kernels.groupby("op")
    times = by_op.agg(family=("family", "last"), measured_us=("measured_us", "sum"))
    times = times[times["measured_us"] > 0].reset_index()
    ops = times["op"].to_numpy()
    return times.assign(
        op=[graph.ops[op].name for op in ops.tolist()],
        predicted_us=predicted[ops].astype(np.float64),
        device=device.name,
    )


def shape_pairs(trace: Trace) -> list[Pair]:
    """Device time of every rank per family, and of all kernels together: nothing where the trace
    records no shapes, has no GPU, or has one that the catalogue lacks."""
    try:
        times = shape_times(trace)
    except (TraceError, HardwareError):
        return []
    if not len(times):
        return []
    columns = ["predicted_us", "measured_us"]
    sums = times.pivot_table(index="family", columns="rank", values=columns, aggfunc="sum")
    sums.loc[TOTAL] = sums.sum()
    sides = (sums[name].fillna(0.0).to_numpy(np.float64) for name in columns)
    return [(Kind.SHAPES, *each) for each in zip(sums.index.astype(str), *sides, strict=True)]


def model_pairs(trace: Trace) -> tuple[list[Pair], float | None]:
    """The ranks' steps and GPU-active times on the trace's own device in mode `model`, and the
    share of device time that follows from shapes.

    Nothing where it records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    if trace.device == "cpu":
        return [], None
    try:
        result = predict(trace, mode="model").results[0]
    except (TraceError, HardwareError, UsageError):
        return [], None
    ranks = [rank for rank in result.ranks if rank.measured]

    def times(key: str) -> tuple[Floats, Floats]:
        predicted = [getattr(rank, key) for rank in ranks]
        measured = [(rank.measured or {})[key] for rank in ranks]
        return np.array(predicted, np.float64), np.array(measured, np.float64)

    pairs = [(Kind.MODEL, what, *times(f"{what}_us")) for what in ("step", "gpu_active")]
    return pairs, result.coverage["modelled_frac"]


MAX_NAMED = 5
"""Unknown ops that an error names."""
_FIGURES = ("mape_pct", "gmae_pct", "median_pct", "bias_pct", "coverage_frac", "width_frac")


def evaluate_kernels(paths: Sequence[Path]) -> Errors:
    """Errors on every row of the tables at `paths`.

    Raises `ModelError`, naming the file, for a table or an op that cannot be used, `HardwareError`
    for an unknown device.
    """
    import pandas as pd

    tables = [read_table(Path(path)) for path in paths]
    for table in tables:
        unknown = sorted({op for op in table.frame["op"].unique() if op not in OPS})
        if unknown:
            shown = ", ".join(repr(op[:60]) for op in unknown[:MAX_NAMED])
            more = len(unknown) - MAX_NAMED
            raise ModelError(
                f"{table.path}: unknown ops {shown}{f' and {more} more' if more > 0 else ''}; "
                "`perfmodel kernel` lists those that can be predicted"
            )
    frame = joined(tables)
    known = devices_of(frame["device"])
    if of_cpu := next((name for name, each in known.items() if each.target == "cpu"), None):
        what = "a CPU, whose operators are predicted within programs: `perfmodel evaluate steps`"
        raise ModelError(f"{tables[0].path}: measured on {of_cpu}, {what}")
    host = ["device", LAUNCHED_US] if LAUNCHED_US in frame else ["device"]
    parts = []
    for _, own in frame.groupby(host, sort=False, dropna=False):
        part = known[own["device"].iloc[0]]
        launched_us = own[LAUNCHED_US].iloc[0] if LAUNCHED_US in own else np.nan
        if not np.isnan(launched_us):  # the shortest kernel is what the host's smallest call took
            part = replace(part, kernel_floor_us=shortest_kernel_us(launched_us))
        parts.append(durations(own, part))
    times = pd.concat(parts).rename(columns={"duration_us": "predicted_us"})
    measured = frame[["op", "device", "dtype"]].assign(measured_us=frame["duration_us"])
    points = measured.join(times[["predicted_us", "low_us", "high_us"]])
    rows = error_rows(points, ("device", "op", "dtype"), _FIGURES)
    late = sum(len(table.frame) for table in tables) - len(frame)
    said = f"{late:,} rows left out: their launches came late, so that they are host time"
    return Errors(SCHEMA, rows, [said] * bool(late))
