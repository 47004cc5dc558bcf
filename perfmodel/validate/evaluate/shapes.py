"""Device time of a trace's ops predicted from their shapes alone, against what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.contract import COLLECTIVE
from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, TraceError, UsageError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering import Lowered, lower
from perfmodel.lowering.observed import answered_by, uses_tf32, with_placement
from perfmodel.ops.families import families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import UNKNOWN
from perfmodel.prediction import predict
from perfmodel.trace import Trace
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.validate.evaluate.results import Kind, Row, rows_of

COMMUNICATION = "communication"
TOTAL = "all kernels"


@dataclass(frozen=True)
class ShapeTimes:
    """One rank: device time per op that was lowered, and how much of all of it that is.

    Collectives are left out: what is measured of them contains waiting.
    """

    op: Ints
    """Indices of the ops of the graph that both sides have."""
    family: tuple[str, ...]
    """Per op: the family of the measured kernel that took longest."""
    predicted_us: Floats
    measured_us: Floats
    lowered_frac: float
    """Share of the device time whose op a rule lowered."""
    fallback_frac: float
    """Share whose op only the fallback knows."""


def shape_times(rank: RankTrace, links: Links, graph: OpGraph, device: Device) -> ShapeTimes:
    """Predicted and measured device time of every op of `graph` that launched something."""
    located = with_placement(graph, rank, links)
    lowered = lower(located, device.target, device=device, tf32_matmul=uses_tf32(rank))
    predicted, is_known = _predicted(lowered, device)
    rows = links.device_rows
    names = [rank.strings[name] for name in rank.name[rows].tolist()]
    kernel_family = np.array(families_of_kernels(names), object)
    duration_us = rank.duration_us[rows].astype(np.float64)
    kernels = np.flatnonzero(kernel_family != COMMUNICATION)
    total_us = max(float(duration_us[kernels].sum()), np.finfo(float).tiny)
    op = answered_by(lowered, rank, links)[kernels]
    counts = (op != NO_OP) & (predicted[op] > 0)
    kernels, op = kernels[counts], op[counts]
    measured = np.bincount(op, duration_us[kernels], minlength=len(graph))
    family = np.full(len(graph), "", object)
    longest_last = np.argsort(duration_us[kernels], kind="stable")
    family[op[longest_last]] = kernel_family[kernels[longest_last]]
    by_rule = is_known[op]
    ops = np.flatnonzero(measured > 0)
    return ShapeTimes(
        op=ops,
        family=tuple(family[ops].tolist()),
        predicted_us=predicted[ops],
        measured_us=measured[ops].astype(np.float64),
        lowered_frac=float(duration_us[kernels[by_rule]].sum()) / total_us,
        fallback_frac=float(duration_us[kernels[~by_rule]].sum()) / total_us,
    )


def times_of_ranks(trace: Trace) -> Iterator[tuple[Device, OpGraph, ShapeTimes]]:
    """Of every rank with a GPU its device, its ops and their times.

    Raises `TraceError` where shapes are not recorded, `HardwareError` for an unknown device.
    """
    for rank, links, graph in zip(trace.ranks, trace.links, op_graph(trace), strict=True):
        if rank.devices:
            described = rank.devices[0]
            device = from_driver_name(described.name, described.memory_bytes or None)
            yield device, graph, shape_times(rank, links, graph, device)


def shapes_of(trace: Trace) -> list[ShapeTimes]:
    """`shape_times` of every rank.

    None where the trace records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    try:
        return [times for *_, times in times_of_ranks(trace)]
    except (TraceError, HardwareError):
        return []


def shape_rows(name: str, result: list[ShapeTimes]) -> list[Row]:
    """Per family, and of all kernels together: errors of the ranks' device time."""
    families = sorted({family for times in result for family in times.family})
    rows = []
    for family in (*families, TOTAL):
        predicted, measured = np.zeros((2, len(result)))
        for at, times in enumerate(result):
            counts = np.array([family in (own, TOTAL) for own in times.family], bool)
            predicted[at] = times.predicted_us[counts].sum()
            measured[at] = times.measured_us[counts].sum()
        rows += rows_of(name, Kind.SHAPES, family, predicted, measured)
    return rows


def model_rows(name: str, trace: Trace) -> tuple[list[Row], float | None]:
    """Errors of the ranks' steps and GPU-active times on the trace's own device in mode `model`,
    and the share of device time that follows from shapes.

    Nothing where it records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    if trace.device == "cpu":
        return [], None
    try:
        result = predict(trace, mode="model").results[0]
    except (TraceError, HardwareError, UsageError):
        return [], None
    rows, ranks = [], [rank for rank in result.ranks if rank.measured]
    for what in ("step", "gpu_active"):
        key = f"{what}_us"
        predicted = np.array([getattr(rank, key) for rank in ranks], np.float64)
        measured = np.array([(rank.measured or {})[key] for rank in ranks], np.float64)
        rows += rows_of(name, Kind.MODEL, what, predicted, measured)
    return rows, result.coverage["modelled_frac"]


def _predicted(lowered: Lowered, device: Device) -> tuple[Floats, NDArray[np.bool_]]:
    """Per op of the graph: the time of its pieces, and whether a rule made them."""
    counts = np.array([OPS[op].family != COLLECTIVE for op in lowered.rows.op], bool)
    pieces = np.flatnonzero(counts)
    taken = durations_of(lowered.rows.take(pieces), device).duration_us
    total = np.bincount(lowered.owner[pieces], taken, minlength=len(lowered.graph))
    is_known = np.ones(len(lowered.graph), bool)
    is_known[lowered.owner[[op == UNKNOWN for op in lowered.rows.op]]] = False
    return total.astype(np.float64), is_known
