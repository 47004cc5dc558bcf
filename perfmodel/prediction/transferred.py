"""Mode `transfer`: measured times on another machine, by what models say of the two.

Per op measured time x model(target) / model(source), where the trace records shapes; by a roofline
ratio of the kernel's class elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel import hardware as catalogue
from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.contract import WIRES
from perfmodel.errors import HardwareError, PerfmodelError, TraceError
from perfmodel.hardware import Cluster, Part, cluster
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.hardware.generations import unknown_generations
from perfmodel.hardware.reads import FigureRead, figures_used
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.prediction.ratio_by_bound import carried_frac, host_ratio, transfer_ratio
from perfmodel.prediction.ratios import ComparedOps, OpPieces, Source, launches
from perfmodel.timeline.graph.kinds import NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

ComparedOn = tuple[ComparedOps, Source, OpPieces]
"""An op, its pieces on the source as modelled and measured, and those on the target."""


@dataclass(frozen=True)
class TransferredDurations:
    """Durations on the target, and how they were found."""

    duration_us: Floats
    """Per node of the graph."""
    modelled_frac: float
    """Share of the measured device time that kernel models transferred, by op or by name."""
    carried_frac: float
    """How much of what is unexplained on the source the target is taken to show as well."""
    notes: tuple[str, ...]
    source: Cluster
    target: Cluster
    ratio: Floats
    """Per device operation of the graph (`device_span`): target over source."""
    by_op: Floats
    """Likewise, by the models of its op; NaN where none is known."""
    by_name: Floats
    """Likewise, by kernels of its name."""
    compared: dict[int, ComparedOn]
    """By place of `ratio`, what `by_op` compares."""
    reads: tuple[FigureRead, ...]
    """The figures of both machines that the ratios follow from."""


def transfer_durations(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, target: str | Path | Part
) -> TransferredDurations:
    """`duration_us` of the nodes of `graph` on `target`: device time by ratio of models or of
    rooflines, host time by the hosts' speed.

    Raises `TraceError` where the trace does not name one GPU, `UsageError` between GPUs and CPUs.
    """
    before = source_machine(trace, f"so no ratio to {target} is known: name it with --source")
    after = equal_nodes(cluster(target), "a trace")
    rows = graph.device_span()[1]
    taken = duration_us[rows]
    notes = unknown_generations([before.node.device, after.node.device])
    ratio = np.ones(len(rows))
    by_op = by_name = np.full(len(rows), np.nan)
    compared: dict[int, ComparedOn] = {}
    if before.node.device != after.node.device:
        labels = [graph.labels[row] for row in rows]
        kinds = families_of_kernels(labels), dtypes_of_kernels(labels)
        ratio = transfer_ratio(*kinds, before.node.device, after.node.device, duration_us=taken)
        try:
            by_op, by_name, compared = _modelled(trace, graph, rows, taken, before, after)
        except TraceError as error:
            notes.append(f"no op has shapes for the kernel models ({error})")
    ratio = np.select([~np.isnan(by_op), ~np.isnan(by_name)], [by_op, by_name], ratio)
    moved = duration_us.copy()
    moved[rows] = taken * ratio
    host = np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))
    moved[host] *= host_ratio(before.node.host, after.node.host)
    total_us = float(taken.sum()) or 1.0
    op_frac = float(taken[~np.isnan(by_op)].sum()) / total_us
    name_frac = float(taken[~np.isnan(by_name)].sum()) / total_us - op_frac
    is_given = trace.recorded_on is not None
    of_host = "as given" if is_given else "assumed: the trace does not name its host"
    notes.append(
        f"host time scaled from {before.node.host.name} ({of_host}) to {after.node.host.name} by "
        f"single-thread speed; device time: {op_frac:.1%} by the kernel models for its op, "
        f"{name_frac:.1%} by those of kernels of the same name, {1 - op_frac - name_frac:.1%} by "
        "roofline ratio of its class"
    )
    meets = bool((graph.nodes_.kind == NodeKind.COLLECTIVE).any())
    parts = {"device", "host", *(WIRES if meets else ())}
    reads = (*figures_used(before, parts), *figures_used(after, parts))
    return TransferredDurations(
        moved,
        op_frac + name_frac,
        carried_frac(before.node.device, after.node.device),
        tuple(notes),
        before,
        after,
        ratio,
        by_op,
        by_name,
        compared,
        tuple(dict.fromkeys(reads)),
    )


def source_machine(trace: Trace, otherwise: str) -> Cluster:
    """The machine that a trace was recorded on: as a user says, else by the one device that its
    ranks name. Raises `TraceError` where there is none, with what follows (`otherwise`), and
    `HardwareError` where the catalogue does not know it."""
    if trace.recorded_on is not None:
        return equal_nodes(cluster(trace.recorded_on), "a trace")
    firsts = (device for rank in trace.ranks for device in rank.devices[:1])
    named = {device for device in firsts if device.name}
    if not named:
        raise TraceError(f"{trace.source}: does not name its GPU, {otherwise}")
    if len({device.name for device in named}) > 1:
        names = ", ".join(sorted(device.name for device in named))
        raise TraceError(f"{trace.source}: its ranks ran on different GPUs ({names})")
    device = min(named, key=lambda device: device.memory_bytes)
    try:
        return cluster(catalogue.from_driver_name(device.name, device.memory_bytes or None))
    except HardwareError as error:
        raise HardwareError(
            f"{trace.source}: {error}; name the machine that it was recorded on with --source"
        ) from None


def known_machine(trace: Trace) -> Cluster | None:
    """The same, None where nothing tells. Raises `HardwareError` for what a user named."""
    try:
        return source_machine(trace, "")
    except PerfmodelError:
        if trace.recorded_on is not None:
            raise
        return None


def kernel_keys(trace: Trace, graph: ExecutionGraph, rows: Ints) -> Ints:
    """Rank, name and grid of the operations in `rows` of the graph's nodes `[n, 3]`."""
    key = np.zeros((len(rows), 3), np.int64)
    key[:, 0] = graph.nodes_.rank[rows]
    for rank in trace.ranks:
        own = key[:, 0] == rank.rank
        events = graph.nodes_.row[rows[own]]
        key[own, 1], key[own, 2] = rank.name[events], rank.grid[events]
    return key


def _modelled(
    trace: Trace, graph: ExecutionGraph, rows: Ints, taken: Floats, source: Cluster, target: Cluster
) -> tuple[Floats, Floats, dict[int, ComparedOn]]:
    """Per device operation the ratio of its op's models, and that of its namesakes (of its rank,
    name and grid, else of its rank and name, by time); NaN where none is known; and what the models
    of ops compare. Raises `TraceError` where the trace records no shapes."""
    modelled, unexplained = np.full((2, len(rows)), np.nan)
    compared: dict[int, ComparedOn] = {}
    for launched in launches(trace, graph, rows):
        before, after = launched.on_source(source, taken), launched.pieces_on(target)
        there = after.by_op(after.duration_us(target))
        for at, op, kind in launched.operations():
            chosen = before.compared(op, kind, there)
            if chosen is not None:
                modelled[at] = chosen.sum_us(there) / chosen.sum_us(before.modelled)
                unexplained[at] = before.unexplained_log(chosen)
                compared[at] = chosen, before, after
    left = 1.0 - carried_frac(source.node.device, target.node.device)
    key = kernel_keys(trace, graph, rows)
    by_op = modelled * np.exp(-left * unexplained)
    same, beyond = (mean_of_same_key(key, each, taken) for each in (modelled, unexplained))
    return by_op, same * np.exp(-left * beyond), compared


def mean_of_same_key(key: Ints, values: Floats, taken: Floats) -> Floats:
    """Per operation the mean of `values`, weighted by time `taken`, of those of the same `key`,
    else of its first two columns; NaN where all are."""
    means = _mean_of_group(key, values, taken)
    return np.where(np.isnan(means), _mean_of_group(key[:, :2], values, taken), means)


def _mean_of_group(key: Ints, values: Floats, taken: Floats) -> Floats:
    group = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    known = ~np.isnan(values)
    weight = np.maximum(taken, 1e-9) * known
    total = np.bincount(group, weight)
    moved = np.bincount(group, weight * np.where(known, values, 0.0))
    mean: Floats = np.divide(moved, total, out=np.full(len(total), np.nan), where=total > 0)
    return mean[group]
