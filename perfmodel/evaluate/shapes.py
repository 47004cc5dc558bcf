"""Device time of a trace's ops predicted from their shapes alone, against what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.durations import COLLECTIVE, durations_of
from perfmodel.errors import HardwareError, TraceError, UsageError
from perfmodel.evaluate.results import Kind, Row, rows_of
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering import Lowered, lower
from perfmodel.lowering.observed import answered_by, uses_tf32, with_placement
from perfmodel.ops.families import families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result
from perfmodel.trace import Trace
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links


def overlap_us(stream: Ints, start_us: Floats, duration_us: Floats) -> Floats:
    """Of each kernel, the time in which any other stream's ran too; all arrays `[n]`."""
    end_us = start_us + duration_us
    found = np.zeros(len(stream))
    for own in np.unique(stream):
        mine, others = np.flatnonzero(stream == own), np.flatnonzero(stream != own)
        if not len(others):
            continue
        starts, ends = _union_of_intervals(start_us[others], end_us[others])
        at = np.stack([starts, ends], axis=1).ravel()
        covered = np.concatenate([[0.0], np.repeat(np.cumsum(ends - starts), 2)[:-1]])
        found[mine] = np.interp(end_us[mine], at, covered) - np.interp(start_us[mine], at, covered)
    return found


def _union_of_intervals(start_us: Floats, end_us: Floats) -> tuple[Floats, Floats]:
    """Stretches in which any interval holds: sorted, apart from one another."""
    order = np.argsort(start_us, kind="stable")
    starts, reached = start_us[order], np.maximum.accumulate(end_us[order])
    begins = np.concatenate([[True], starts[1:] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(starts) - 1]])
    return starts[begins], reached[last]


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
    beside_us: Floats
    """Of `measured_us`, in which another stream ran something too, collectives among it."""
    lowered_frac: float
    """Share of the device time whose op a rule lowered."""
    fallback_frac: float
    """Share whose op only the fallback knows."""


@dataclass(frozen=True)
class _Kernels:
    """The kernels and copies of one rank that are no communication."""

    op: Ints
    """Index of the op of the graph that answers for each, or `NO_OP` (`answered_by`)."""
    family: NDArray[np.object_]
    duration_us: Floats
    beside_us: Floats


def shape_times(rank: RankTrace, links: Links, graph: OpGraph, device: Device) -> ShapeTimes:
    """Predicted and measured device time of every op of `graph` that launched something."""
    placed = with_placement(graph, rank, links)
    lowered = lower(placed, device.target, device=device, tf32_matmul=uses_tf32(rank))
    predicted, is_known = _predicted(lowered, device)
    kernels = _measured(rank, links, lowered)
    own = (kernels.op != NO_OP) & (predicted[kernels.op] > 0)
    by_rule = own & is_known[kernels.op]
    measured = np.bincount(kernels.op[own], kernels.duration_us[own], minlength=len(graph))
    beside = np.bincount(kernels.op[own], kernels.beside_us[own], minlength=len(graph))
    family = np.full(len(graph), "", object)
    for at in np.argsort(kernels.duration_us[own], kind="stable").tolist():
        family[kernels.op[own][at]] = kernels.family[own][at]
    op = np.flatnonzero(measured > 0)
    total = max(float(kernels.duration_us.sum()), np.finfo(float).tiny)
    return ShapeTimes(
        op=op,
        family=tuple(family[op].tolist()),
        predicted_us=predicted[op],
        measured_us=measured[op].astype(np.float64),
        beside_us=beside[op].astype(np.float64),
        lowered_frac=float(kernels.duration_us[by_rule].sum()) / total,
        fallback_frac=float(kernels.duration_us[own & ~by_rule].sum()) / total,
    )


def shapes_of(trace: Trace) -> list[ShapeTimes]:
    """`shape_times` of every rank.

    None where the trace records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    try:
        return [
            shape_times(rank, links, graph, device_of_rank(rank))
            for rank, links, graph in zip(trace.ranks, trace.links, op_graph(trace), strict=True)
            if rank.devices
        ]
    except (TraceError, HardwareError):
        return []


def shape_rows(name: str, found: list[ShapeTimes]) -> list[Row]:
    """Per family, and of all kernels together: errors of the ranks' device time."""
    families = sorted({family for times in found for family in times.family})
    rows = []
    for family in (*families, TOTAL):
        sums = [_sums(times, family) for times in found]
        predicted, measured = np.array(sums, np.float64).reshape(-1, 2).T
        rows += rows_of(name, Kind.SHAPES, family, predicted, measured)
    return rows


def predicted_in_model_mode(trace: Trace) -> Result | None:
    """The trace on its own device in mode `model`.

    None where it records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    if trace.device == "cpu":
        return None
    try:
        return predict(trace, mode="model").results[0]
    except (TraceError, HardwareError, UsageError):
        return None


def model_rows(name: str, found: Result | None) -> list[Row]:
    """Errors of the ranks' steps and GPU-active times."""
    rows = []
    for what in ("step", "gpu_active"):
        ranks = [] if found is None else [rank for rank in found.ranks if rank.measured]
        key = f"{what}_us"
        predicted = np.array([getattr(rank, key) for rank in ranks], np.float64)
        measured = np.array([(rank.measured or {})[key] for rank in ranks], np.float64)
        rows += rows_of(name, Kind.MODEL, what, predicted, measured)
    return rows


def _sums(times: ShapeTimes, family: str) -> tuple[float, float]:
    rows = np.array([family in (own, TOTAL) for own in times.family], bool)
    return float(times.predicted_us[rows].sum()), float(times.measured_us[rows].sum())


def device_of_rank(rank: RankTrace) -> Device:
    """The catalogue's device of the rank's first; raises `HardwareError` for an unknown one."""
    device = rank.devices[0]
    return from_driver_name(device.name, device.memory_bytes or None)


def _predicted(lowered: Lowered, device: Device) -> tuple[Floats, NDArray[np.bool_]]:
    """Per op of the graph: the time of its pieces, and whether a rule made them."""
    own = np.array([OPS[op].family != COLLECTIVE for op in lowered.rows.op], bool)
    pieces = np.flatnonzero(own)
    taken = durations_of(lowered.rows.take(pieces), device).duration_us
    total = np.bincount(lowered.owner[pieces], taken, minlength=len(lowered.graph))
    is_known = np.ones(len(lowered.graph), bool)
    is_known[lowered.owner[[op == UNKNOWN for op in lowered.rows.op]]] = False
    return total.astype(np.float64), is_known


def _measured(rank: RankTrace, links: Links, lowered: Lowered) -> _Kernels:
    rows = links.device_rows
    names = [rank.strings[name] for name in rank.name[rows].tolist()]
    family = np.array(families_of_kernels(names), object)
    mine = np.flatnonzero(family != COMMUNICATION)
    answered = answered_by(lowered, rank, links)[mine]
    duration_us = rank.duration_us[rows].astype(np.float64)
    beside = overlap_us(rank.stream[rows], rank.start_us[rows], duration_us)
    return _Kernels(answered, family[mine], duration_us[mine], beside[mine])
