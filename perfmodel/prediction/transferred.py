"""Mode `transfer`: measured times on another machine, by what models say of the two.

Per op measured time x model(target) / model(source), where the trace records shapes; by a roofline
ratio of the kernel's class elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfmodel import hardware as catalogue
from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.contract import WIRES
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import ROWS_ANYWHERE
from perfmodel.errors import HardwareError, PerfmodelError, TraceError
from perfmodel.hardware import Cluster, Part, cluster
from perfmodel.hardware.originals import unknown_generations
from perfmodel.hardware.reads import FigureRead, figures_used
from perfmodel.lowering import lower
from perfmodel.lowering.observed import launched_by, with_placement
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import UNKNOWN
from perfmodel.prediction.ratios import carried_frac, transfer_ratio
from perfmodel.prediction.scheduled import host_ratio
from perfmodel.timeline.graph.kinds import NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

COLLECTIVE = "collective"
_BY_SHAPES = ("matmul", "convolution", "attention", "vector")
"""Families whose shapes say all of the work, unlike lookups, waits and copies."""
Key = tuple[int, bool]
"""An op, and whether its collectives or all other work is meant."""


def members(graph: OpGraph, owner: Ints, is_collective: Mask) -> dict[Key, list[int]]:
    """Per op: which of the things with these owners are its own or of what it calls."""
    found: defaultdict[Key, list[int]] = defaultdict(list)
    for at, (op, kind) in enumerate(zip(owner.tolist(), is_collective.tolist(), strict=True)):
        while op != NO_OP:
            found[op, kind].append(at)
            op = graph.ops[op].parent
    return found


@dataclass(frozen=True)
class OpPieces:
    """What the ops of a graph become on a machine: pieces that models know."""

    rows: Rows
    """Collectives among as many nodes as their ranks fill."""
    of_op: Mapping[Key, list[int]]

    @classmethod
    def on(cls, graph: OpGraph, machine: Cluster) -> OpPieces:
        device = machine.node.device
        lowered = lower(graph, device.target, device=device)
        known = np.array([piece.op != UNKNOWN for piece in lowered.pieces], bool)
        is_collective = np.array([piece.kind == COLLECTIVE for piece in lowered.pieces], bool)
        of_op = members(graph, lowered.owner[known], is_collective[known])
        return cls(place_collectives(lowered.rows.take(np.flatnonzero(known)), machine), of_op)


class Source:
    """The ops of a rank on the machine of its trace: their pieces, and what was measured."""

    def __init__(
        self,
        graph: OpGraph,
        machine: Cluster,
        measured: Mapping[Key, list[int]],
        measured_us: Floats,
    ) -> None:
        self.graph, self.measured, self.measured_us = graph, measured, measured_us
        self.pieces = OpPieces.on(graph, machine)
        rows = self.pieces.rows
        self.modelled_us = durations_of(rows, machine).duration_us if len(rows) else np.zeros(0)
        ops = {op: OPS[op].family in _BY_SHAPES and op not in ROWS_ANYWHERE for op in set(rows.op)}
        self.by_shapes = np.array([ops[op] for op in rows.op], bool)
        """Per piece, whether its shapes say all of its work."""

    def compared(self, key: Key, after: OpPieces) -> Key | None:
        """By what an operation that an op launched goes to a machine with the pieces `after`: by
        that op, calls included, else by the innermost around it that has pieces on both machines.
        None where no model knows any."""
        op, kind = key
        while op != NO_OP and not ((op, kind) in self.pieces.of_op and (op, kind) in after.of_op):
            op = self.graph.ops[op].parent
        return None if op == NO_OP else (op, kind)

    def total_us(self, key: Key) -> float:
        return float(self.modelled_us[self.pieces.of_op[key]].sum())

    def unexplained_log(self, key: Key) -> float:
        """Logarithm of measured over modelled time, by the share that shapes say all of; 0 where
        nothing was measured."""
        own, modelled_us = self.pieces.of_op[key], self.total_us(key)
        measured_us = float(self.measured_us[self.measured.get(key, [])].sum())
        if modelled_us <= 0 or measured_us <= 0:
            return 0.0
        share = float((self.modelled_us[own] * self.by_shapes[own]).sum()) / modelled_us
        return share * float(np.log(measured_us / modelled_us))


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


def on_host(graph: ExecutionGraph) -> Mask:
    """Which nodes take as long as the speed of a host says."""
    return np.isin(graph.nodes_.scope, (Scope.HOST, Scope.ALLOCATOR))


class Transfer:
    """A trace's device operations, and the ops that launched them on its machine, `home`."""

    def __init__(
        self, trace: Trace, graph: ExecutionGraph, duration_us: Floats, home: Cluster
    ) -> None:
        self.rows, self.home = graph.device_span()[1], home
        self.taken, nodes = duration_us[self.rows], graph.nodes_
        labels = [graph.labels[row] for row in self.rows.tolist()]
        self._kinds = families_of_kernels(labels), dtypes_of_kernels(labels)
        self.on_host = on_host(graph)
        self.key = np.zeros((len(self.rows), 3), np.int64)
        """Rank, name and grid of each operation."""
        self.key[:, 0] = nodes.rank[self.rows]
        self.why_not = ""
        """Why no op is known."""
        self._ranks: list[tuple[Source, list[tuple[int, Key]]]] = []
        """Per rank its ops, and its operations (place, who launched it)."""
        try:
            graphs = {each.rank: each for each in op_graph(trace)}
        except TraceError as error:
            self.why_not, graphs = str(error), {}
        for rank, links in zip(trace.ranks, trace.links, strict=True):
            own = np.flatnonzero(self.key[:, 0] == rank.rank)
            events = nodes.row[self.rows[own]]
            self.key[own, 1], self.key[own, 2] = rank.name[events], rank.grid[events]
            if rank.rank not in graphs:
                continue
            ops = with_placement(graphs[rank.rank], rank, links)
            op_of_row = np.full(len(rank), NO_OP, np.int64)
            op_of_row[links.device_rows] = launched_by(ops, rank, links)
            op, taken_us = op_of_row[events], self.taken[own]
            is_collective = nodes.kind[self.rows[own]] == NodeKind.COLLECTIVE
            keys = zip(op.tolist(), is_collective.tolist(), strict=True)
            measured = members(ops, op, is_collective)
            source = Source(ops, home, measured, taken_us)
            self._ranks.append((source, list(zip(own.tolist(), keys, strict=True))))

    def by_class(self, target: Cluster, at: Ints) -> Floats:
        """Ratios of operations `at` by rooflines of their classes."""
        families, dtypes = ([names[place] for place in at.tolist()] for names in self._kinds)
        devices = self.home.node.device, target.node.device
        return transfer_ratio(families, dtypes, *devices, duration_us=self.taken[at])

    def modelled(self, target: Cluster) -> ModelledRatios:
        pieces, at, piece, per_us = list[Rows](), list[int](), list[int](), list[float]()
        unexplained, before_these = np.full(len(self.rows), np.nan), 0
        for source, operations in self._ranks:
            after = OpPieces.on(source.graph, target)
            for place, key in operations:
                chosen = source.compared(key, after)
                if chosen is None:
                    continue
                counted = after.of_op[chosen]
                at += [place] * len(counted)
                piece += [before_these + each for each in counted]
                per_us += [1.0 / source.total_us(chosen)] * len(counted)
                unexplained[place] = source.unexplained_log(chosen)
            pieces.append(after.rows)
            before_these += len(after.rows)
        return ModelledRatios(
            Rows.joined(pieces),
            np.array(at, np.int64),
            np.array(piece, np.int64),
            np.array(per_us, np.float64),
            np.where(np.isnan(unexplained), self.of_namesakes(unexplained), unexplained),
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

    def ratios(self, target: Cluster) -> tuple[Floats, Ints]:
        """Time on `target` over time at home, and by what: places in `BASES`."""
        found = self.modelled(target)
        taken_us = durations_of(found.pieces, target).duration_us if len(found.pieces) else found.at
        return self.ratios_of(found, taken_us, target)

    def ratios_of(
        self, found: ModelledRatios, taken_us: Floats | Ints, target: Cluster
    ) -> tuple[Floats, Ints]:
        """The same where the pieces that are `found` take so long on `target`."""
        every, devices = np.arange(len(self.rows)), (self.home.node.device, target.node.device)
        by_class = self.by_class(target, every)
        sums = np.bincount(found.at, found.per_us * taken_us[found.piece], minlength=len(every))
        plain = np.where(np.isin(every, found.at), sums, np.nan)
        left = np.exp((carried_frac(*devices) - 1.0) * found.unexplained)
        ways = np.stack([plain * left, self.of_namesakes(plain) * left, by_class])
        basis = np.argmax(~np.isnan(ways), axis=0)
        return ways[basis, every], basis


BASES = ("models of its op", "kernels of its name", "rooflines of its class")


@dataclass(frozen=True)
class TransferredDurations:
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
    basis: Ints
    """Likewise, what that is a ratio of: places in `BASES`."""
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
    devices, rows = (before.node.device, after.node.device), graph.device_span()[1]
    ratio, basis = np.ones(len(rows)), np.full(len(rows), len(BASES) - 1)
    notes = unknown_generations([*devices])
    if devices[0] != devices[1]:
        own = Transfer(trace, graph, duration_us, before)
        ratio, basis = own.ratios(after)
        if own.why_not:
            notes.append(f"no op has shapes for the kernel models ({own.why_not})")
    moved, taken = duration_us.copy(), duration_us[rows]
    moved[rows] = taken * ratio
    moved[on_host(graph)] *= host_ratio(before.node.host, after.node.host)
    shares = np.bincount(basis, taken, len(BASES)) / (float(taken.sum()) or 1.0)
    of_host = "assumed: the trace does not name its host"
    of_host = of_host if trace.recorded_on is None else "as given"
    notes.append(
        f"host time scaled from {before.node.host.name} ({of_host}) to {after.node.host.name} by "
        f"single-thread speed; device time: {shares[0]:.1%} by the kernel models for its op, "
        f"{shares[1]:.1%} by those of kernels of the same name, {shares[2]:.1%} by roofline ratio "
        "of its class"
    )
    meets = bool((graph.nodes_.kind == NodeKind.COLLECTIVE).any())
    parts = {"device", "host", *(WIRES if meets else ())}
    reads = dict.fromkeys((*figures_used(before, parts), *figures_used(after, parts)))
    return TransferredDurations(
        moved, float(shares[:2].sum()), tuple(notes), before, after, ratio, basis, tuple(reads)
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
