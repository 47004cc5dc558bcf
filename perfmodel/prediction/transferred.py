"""Mode `transfer`: measured times on another machine, by what models say of the two.

Per op measured time x model(target) / model(source), where the trace records shapes; by a roofline
ratio of the kernel's class elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfmodel import hardware as catalogue
from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.contract import WIRES
from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, PerfmodelError, TraceError
from perfmodel.hardware import Cluster, Part, cluster
from perfmodel.hardware.originals import unknown_generations
from perfmodel.hardware.reads import FigureRead, figures_used
from perfmodel.lowering.observed import launched_by, uses_tf32, with_placement
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import Rows
from perfmodel.prediction.ratios import (
    KIND_OF_NODE,
    KINDS,
    ComparedOps,
    OpPieces,
    Source,
    carried_frac,
    sums_by_op,
    transfer_ratio,
)
from perfmodel.prediction.scheduled import host_ratio, place_collectives
from perfmodel.timeline.graph.kinds import NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

ComparedOn = tuple[ComparedOps, Source, OpPieces]
"""An op, its pieces on the source as modelled and measured, and those on the target."""


class ModelledRatios(NamedTuple):
    """What models say of device operations on a target: over its time on the source, each takes a
    sum of pieces, as long as the source shows no more than its models."""

    pieces: Rows
    at: Ints
    """Of each share of a sum, its operation; likewise its piece, and the ratio per microsecond."""
    piece: Ints
    per_us: Floats
    unexplained: Floats
    """Per operation, logarithm of measured over modelled on the source, where shapes say all; that
    of its namesakes where its own op tells nothing, and NaN without any."""
    compared: dict[int, ComparedOn]
    """By place of the operation, what its ratio compares."""


class Transfer:
    """A trace's device operations, and the ops that launched them on its machine, `home`."""

    def __init__(
        self, trace: Trace, graph: ExecutionGraph, duration_us: Floats, home: Cluster
    ) -> None:
        self.rows, self.home = graph.device_span()[1], home
        self.taken = duration_us[self.rows]
        labels = [graph.labels[row] for row in self.rows.tolist()]
        self._kinds = families_of_kernels(labels), dtypes_of_kernels(labels)
        self.on_host = np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))
        self.key = kernel_keys(trace, graph, self.rows)
        self.why_not = ""
        """Why no op is known."""
        self._ranks: list[tuple[OpGraph, list[tuple[int, int, str]], Source]] = []
        """Per rank its ops, its operations (place, op, kind), and the ops on `home`."""
        self._tf32_matmul = any(uses_tf32(rank) for rank in trace.ranks)
        try:
            graphs = {each.rank: each for each in op_graph(trace)}
        except TraceError as error:
            self.why_not = str(error)
            return
        nodes = graph.nodes_
        for rank, links in zip(trace.ranks, trace.links, strict=True):
            ops = with_placement(graphs[rank.rank], rank, links)
            op_of_row = np.full(len(rank), NO_OP, np.int64)
            op_of_row[links.device_rows] = launched_by(ops, rank, links)
            own = np.flatnonzero(nodes.rank[self.rows] == rank.rank)
            op = op_of_row[nodes.row[self.rows[own]]]
            kinds = [KIND_OF_NODE[NodeKind(it)] for it in nodes.kind[self.rows[own]].tolist()]
            known, code = op != NO_OP, np.array([KINDS.index(kind) for kind in kinds], np.int64)
            measured = sums_by_op(ops, code[known], op[known], self.taken[own[known]])
            pieces = OpPieces.on(ops, home, tf32_matmul=self._tf32_matmul)
            operations = list(zip(own.tolist(), op.tolist(), kinds, strict=True))
            self._ranks.append((ops, operations, Source.of(pieces, home, measured)))

    def by_class(self, target: Cluster, at: Ints) -> Floats:
        """Ratios of operations `at` by rooflines of their classes."""
        families, dtypes = ([names[place] for place in at.tolist()] for names in self._kinds)
        devices = self.home.node.device, target.node.device
        return transfer_ratio(families, dtypes, *devices, duration_us=self.taken[at])

    def modelled(self, target: Cluster) -> ModelledRatios:
        """By the models of the operations' ops."""
        pieces, at, piece, per_us = list[Rows](), list[int](), list[int](), list[float]()
        unexplained, compared = np.full(len(self.rows), np.nan), dict[int, ComparedOn]()
        before_these = 0
        for ops, operations, before in self._ranks:
            after = OpPieces.on(ops, target, tf32_matmul=self._tf32_matmul)
            there = after.by_op(np.ones(len(after.owner)))
            for place, op, kind in operations:
                chosen = before.compared(op, kind, there)
                if chosen is None:
                    continue
                counted = (after.counted(chosen) + before_these).tolist()
                at += [place] * len(counted)
                piece += counted
                per_us += [1.0 / chosen.sum_us(before.modelled)] * len(counted)
                unexplained[place] = before.unexplained_log(chosen)
                compared[place] = chosen, before, after
            pieces.append(after.rows)
            before_these += len(after.owner)
        return ModelledRatios(
            Rows.joined(pieces),
            np.array(at, np.int64),
            np.array(piece, np.int64),
            np.array(per_us, np.float64),
            np.where(np.isnan(unexplained), self.of_namesakes(unexplained), unexplained),
            compared,
        )

    def of_namesakes(self, values: Floats) -> Floats:
        """Per operation the mean of `values`, weighted by time, of those of the same rank, name and
        grid, else of the same rank and name; NaN where all are."""
        known, means = ~np.isnan(values), np.full(len(values), np.nan)
        weight = np.maximum(self.taken, 1e-9) * known
        for width in (3, 2):
            group = np.unique(self.key[:, :width], axis=0, return_inverse=True)[1].reshape(-1)
            total = np.bincount(group, weight)
            sums = np.bincount(group, weight * np.where(known, values, 0.0))
            mean = np.divide(sums, total, out=np.full(len(total), np.nan), where=total > 0)
            means = np.where(np.isnan(means), mean[group], means)
        return means


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
    after = cluster(target)
    devices = before.node.device, after.node.device
    notes, carried = unknown_generations([*devices]), carried_frac(*devices)
    rows = graph.device_span()[1]
    ratio, compared = np.ones(len(rows)), dict[int, ComparedOn]()
    by_op = by_name = np.full(len(rows), np.nan)
    if devices[0] != devices[1]:
        own = Transfer(trace, graph, duration_us, before)
        ratio = own.by_class(after, np.arange(len(rows)))
        found = own.modelled(after)
        compared, left = found.compared, np.exp((carried - 1.0) * found.unexplained)
        taken_us = np.zeros(0)
        if len(found.pieces):
            taken_us = durations_of(place_collectives(found.pieces, after), after).duration_us
        sums = np.bincount(found.at, found.per_us * taken_us[found.piece], minlength=len(rows))
        plain = np.where(np.isin(np.arange(len(rows)), found.at), sums, np.nan)
        by_op, by_name = plain * left, own.of_namesakes(plain) * left
        if own.why_not:
            notes.append(f"no op has shapes for the kernel models ({own.why_not})")
    ratio = np.select([~np.isnan(by_op), ~np.isnan(by_name)], [by_op, by_name], ratio)
    moved, taken = duration_us.copy(), duration_us[rows]
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
    return TransferredDurations(
        moved,
        op_frac + name_frac,
        carried,
        tuple(notes),
        before,
        after,
        ratio,
        by_op,
        by_name,
        compared,
        tuple(dict.fromkeys((*figures_used(before, parts), *figures_used(after, parts)))),
    )


def source_machine(trace: Trace, otherwise: str) -> Cluster:
    """The machine that a trace was recorded on: as a user says, else by the one device that its
    ranks name. Raises `TraceError` where there is none, with what follows (`otherwise`), and
    `HardwareError` where the catalogue does not know it."""
    if trace.recorded_on is not None:
        return cluster(trace.recorded_on)
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
