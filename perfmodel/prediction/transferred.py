"""Mode `transfer`: measured times on another machine, by what models say of the two.

Per op measured time x model(target) / model(source), where the trace records shapes; by a roofline
ratio of the kernel's class elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel import hardware as catalogue
from perfmodel.errors import TraceError
from perfmodel.graph.kinds import NodeKind, Scope
from perfmodel.graph.opgraph import op_graph
from perfmodel.graph.ops import NO_OP, OpGraph
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster, Device, Part, cluster
from perfmodel.hardware.reads import Read, reads_of, recorded
from perfmodel.lowering.observed import launched_by, uses_tf32, with_placement
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.prediction.ratios import COLLECTIVE, COPY, KERNEL, op_ratios
from perfmodel.trace import Trace
from perfmodel.trace.columns import Floats, Ints
from perfmodel.transfer import host_ratio, transfer_ratio

_KIND = {NodeKind.KERNEL: KERNEL, NodeKind.COPY: COPY, NodeKind.COLLECTIVE: COLLECTIVE}


@dataclass(frozen=True)
class Transferred:
    """Durations on the target, and how they were found."""

    duration_us: Floats
    """Per node of the graph."""
    modelled_frac: float
    """Share of the measured device time that kernel models transferred, by op or by name."""
    notes: tuple[str, ...]
    source: Cluster
    target: Cluster
    ratio: Floats
    """Per device operation of the graph (`device_span`): target over source."""
    by_op: Floats
    """Likewise, by the models of its op; NaN where none is known."""
    by_name: Floats
    """Likewise, by kernels of its name."""
    reads: tuple[Read, ...]
    """The figures of both machines that the ratios follow from."""


def transferred(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, target: str | Path | Part
) -> Transferred:
    """`duration_us` of the nodes of `graph` on `target`: device time by ratio of models or of
    rooflines, host time by the hosts' speed.

    Raises `TraceError` where the trace does not name one GPU, `UsageError` between GPUs and CPUs.
    """
    before = cluster(source_device(trace, f"so no ratio to {target} is known"))
    after = cluster(target)
    (source, here), (machine, there) = recorded(before), recorded(after)
    rows = graph.device_span()[1]
    taken = duration_us[rows]
    notes = []
    ratio = np.ones(len(rows))
    by_op = by_name = np.full(len(rows), np.nan)
    if before.node.device != after.node.device:
        ratio = _roofline(graph, rows, duration_us, source.node.device, machine.node.device)
        try:
            by_op = _modelled(trace, graph, rows, source, machine)
        except TraceError as error:
            notes.append(f"no op has shapes for the kernel models ({error})")
        by_name = _of_namesakes(trace, graph, rows, by_op, taken)
    ratio = np.select([~np.isnan(by_op), ~np.isnan(by_name)], [by_op, by_name], ratio)
    moved = duration_us.copy()
    moved[rows] = taken * ratio
    host = np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))
    moved[host] *= host_ratio(source.node.host, machine.node.host)
    total_us = float(taken.sum()) or 1.0
    op_frac = float(taken[~np.isnan(by_op)].sum()) / total_us
    name_frac = float(taken[~np.isnan(by_name)].sum()) / total_us - op_frac
    notes.append(
        f"host time scaled from {before.node.host.name} (assumed: the trace does not name its "
        f"host) to {after.node.host.name} by single-thread speed; device time: {op_frac:.1%} by "
        f"the kernel models' ratio for its op, {name_frac:.1%} by that of kernels of the same "
        f"name, {1 - op_frac - name_frac:.1%} by roofline ratio of its class"
    )
    reads = (*reads_of(before, here), *reads_of(after, there))
    return Transferred(
        moved,
        op_frac + name_frac,
        tuple(notes),
        before,
        after,
        ratio,
        by_op,
        by_name,
        tuple(dict.fromkeys(reads)),
    )


def source_device(trace: Trace, otherwise: str) -> Device:
    """The one device that the ranks of a trace ran on.

    Raises `TraceError` where there is none, saying what follows from it (`otherwise`).
    """
    named = {rank.devices[0] for rank in trace.ranks if rank.devices}
    if not named:
        raise TraceError(f"{trace.source}: does not name its GPU, {otherwise}")
    if len({device.name for device in named}) > 1:
        found = ", ".join(sorted(device.name for device in named))
        raise TraceError(f"{trace.source}: its ranks ran on different GPUs ({found})")
    device = min(named, key=lambda device: device.memory_bytes)
    return catalogue.from_driver_name(device.name, device.memory_bytes or None)


def _roofline(
    graph: ExecutionGraph, rows: Ints, duration_us: Floats, source: Device, target: Device
) -> Floats:
    labels = [graph.labels[row] for row in rows]
    return transfer_ratio(
        families_of_kernels(labels),
        dtypes_of_kernels(labels),
        source,
        target,
        duration_us=duration_us[rows],
    )


def _of_namesakes(
    trace: Trace, graph: ExecutionGraph, rows: Ints, ratio: Floats, taken: Floats
) -> Floats:
    """Per operation the mean ratio, by time, of those of its rank, name and grid whose ratio is
    known; else of its rank and name; else NaN.

    Kernels that were launched before the recording began have no op; later ones like them have.
    """
    key = namesakes(trace, graph, rows)
    found = _mean_of_group(key, ratio, taken)
    return np.where(np.isnan(found), _mean_of_group(key[:, :2], ratio, taken), found)


def namesakes(trace: Trace, graph: ExecutionGraph, rows: Ints) -> Ints:
    """Rank, name and grid of the operations in `rows` of the graph's nodes `[n, 3]`."""
    key = np.zeros((len(rows), 3), np.int64)
    key[:, 0] = graph.nodes_.rank[rows]
    for rank in trace.ranks:
        own = key[:, 0] == rank.rank
        events = graph.nodes_.row[rows[own]]
        key[own, 1], key[own, 2] = rank.name[events], rank.grid[events]
    return key


def _mean_of_group(key: Ints, ratio: Floats, taken: Floats) -> Floats:
    group = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    known = ~np.isnan(ratio)
    weight = np.maximum(taken, 1e-9) * known
    total = np.bincount(group, weight)
    moved = np.bincount(group, weight * np.where(known, ratio, 0.0))
    mean: Floats = np.divide(moved, total, out=np.full(len(total), np.nan), where=total > 0)
    return mean[group]


def _modelled(
    trace: Trace, graph: ExecutionGraph, rows: Ints, source: Cluster, target: Cluster
) -> Floats:
    """Per device operation the ratio of its op's models; NaN where none is known.

    Raises `TraceError` where the trace records no shapes.
    """
    tf32_matmul = any(uses_tf32(rank) for rank in trace.ranks)
    found = np.full(len(rows), np.nan)
    for ops, own, launched, kinds in launches(trace, graph, rows):
        ratio = op_ratios(ops, source, target, tf32_matmul=tf32_matmul)
        for at, op, kind in zip(own.tolist(), launched.tolist(), kinds, strict=True):
            known = None if op == NO_OP else ratio(op, kind)
            found[at] = np.nan if known is None else known
    return found


def launches(
    trace: Trace, graph: ExecutionGraph, rows: Ints
) -> Iterator[tuple[OpGraph, Ints, Ints, list[str]]]:
    """Per rank its ops, which of `rows` it ran, the op that launched each, and their kinds.

    Raises `TraceError` where the trace records no shapes.
    """
    graphs = {found.rank: found for found in op_graph(trace)}
    ranks = graph.nodes_.rank[rows]
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        ops = with_placement(graphs[rank.rank], rank, links)
        op_of_row = np.full(len(rank), NO_OP, np.int64)
        op_of_row[links.device_rows] = launched_by(ops, rank, links)
        own = np.flatnonzero(ranks == rank.rank)
        kinds = [_KIND[NodeKind(kind)] for kind in graph.nodes_.kind[rows[own]].tolist()]
        yield ops, own, op_of_row[graph.nodes_.row[rows[own]]], kinds
