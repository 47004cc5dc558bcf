"""Mode `transfer`: measured times on another machine, by what models say of the two.

Per op measured time x model(target) / model(source), where the trace records shapes; by a roofline
ratio of the kernel's class elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel import hardware as catalogue
from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.contract import WIRES
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import ROWS_ANYWHERE
from perfmodel.cost.learned.features import describe, distance, similarity
from perfmodel.errors import HardwareError, PerfmodelError, TraceError, UsageError
from perfmodel.hardware import Cluster, Device, Part, cluster
from perfmodel.hardware.catalogue import unknown_generations
from perfmodel.hardware.schema import FigureRead, figures_used
from perfmodel.lowering import lower
from perfmodel.lowering.observed import launched_by, with_placement
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import (
    CLASS_OF_FAMILY,
    COMMUNICATION,
    COMPUTE_BOUND,
    HOST_COPY,
    MEMORY_BOUND,
)
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.streaming import UNKNOWN
from perfmodel.prediction.scheduled import host_ratio
from perfmodel.timeline.graph.kinds import NodeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace

_DEFAULT_DTYPE = {"attention": "fp16"}
"""The type of a kernel whose name tells none: fused attention has no fp32 in practice."""

_RATE: dict[str, Callable[[Device, str | None], float]] = {
    COMPUTE_BOUND: lambda device, dtype: device.matrix_tflop_per_s(dtype) * device.gemm_peak_frac,
    MEMORY_BOUND: lambda device, dtype: device.hbm_gb_per_s,
    COMMUNICATION: lambda device, dtype: device.peer_gb_per_s,
    HOST_COPY: lambda device, dtype: device.host_gb_per_s,
}
"""Per class, the rate of a device whose ratio is the ratio of times."""

_CARRIED_FRAC = 0.5
"""How much of what a kernel takes beyond its model on one device it also takes on an unrelated one,
as a power. Source: rows of the same shapes on pairs of devices, the target left out of the fits,
mean logarithmic error at 0, 0.25, 0.5, 0.75 and 1: 29, 29, 30, 32, 34 % between NVIDIA and AMD."""

RATIO_SPREAD: dict[str, float] = {
    COMPUTE_BOUND: 1.75,
    MEMORY_BOUND: 1.3,
    COMMUNICATION: 1.8,
    HOST_COPY: 1.2,
}
"""Per class, the factor within which the ratio of its time between two devices lies from the
modelled one in 90 % of pairs. Source: sums over equal rows of the measured tables against ratios
of the physics: 18 of 21 pairs of P100, V100, T4, P4, A100, H100, B200 and L40S (products and
convolutions; int8 1 of 3), 10 of 10 (elementwise). assumed: communication, copies to the host."""
HOST_SPREAD = 1.3
"""Likewise of host time. Source: three programs on two machines: 0.90, 0.93 and 1.25 times what
single-thread speed says."""


def transfer_ratio(
    families: Sequence[str],
    dtypes: Sequence[str | None],
    source: Device,
    target: Device,
    *,
    duration_us: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Time on `target` divided by time on `source`, per kernel.

    `families` and `dtypes` (None where unknown) are what `perfmodel.ops` reads from the kernels'
    names. `duration_us` (microseconds on `source`) keeps tiny kernels from scaling: only what is
    above the shortest kernel of the source scales with the rate, and what is left is the shortest
    kernel of the target,

        t_target = floor_target + (t_source - floor_source) x rate_source / rate_target,

    and in proportion to the floors below `floor_source`. Rates: peak of the type's units times the
    share that the best matrix product reaches (matmul, convolution, attention), memory bandwidth,
    links to the peers (communication, which still contains its waiting), PCIe (host copies).

    Raises `UsageError` between a GPU and a CPU, whose kernels have nothing in common.
    Source: roofline; floors and shares of peak are figures of the hardware catalogue.
    """
    if (source.target == "cpu") != (target.target == "cpu"):
        raise UsageError(
            f"kernels of {source.name} cannot be transferred to {target.name}: one is a GPU, the "
            "other a CPU, and their kernels have nothing in common"
        )
    pairs, of_pair = list(zip(families, dtypes, strict=True)), {}
    for family, dtype in set(pairs):
        rate, known = _RATE[CLASS_OF_FAMILY[family]], dtype or _DEFAULT_DTYPE.get(family)
        of_pair[family, dtype] = rate(source, known) / rate(target, known)
    ratio = np.fromiter((of_pair[pair] for pair in pairs), np.float64, len(pairs))
    if duration_us is None or source == target:
        return ratio
    measured = np.asarray(duration_us, np.float64)
    above_us = np.maximum(measured - source.kernel_floor_us, 0.0)
    above_frac = np.divide(above_us, measured, out=np.zeros_like(measured), where=measured > 0)
    floors = target.kernel_floor_us / source.kernel_floor_us
    return floors + above_frac * (ratio - floors)


def carried_frac(source: Device, target: Device) -> float:
    """How much of what is unexplained of a kernel on `source` holds on `target`, 0.5 to 1.

    1 for boards of one chip, with the same library, falling to a half.
    """
    near = similarity(distance(describe(source), describe(target)))
    return _CARRIED_FRAC + (1.0 - _CARRIED_FRAC) * near


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

    def modelled(self, key: Key) -> tuple[float, float]:
        """Its modelled time; and the logarithm of measured over that, by the share that shapes say
        all of; 0 where nothing was measured."""
        own = self.pieces.of_op[key]
        modelled_us = float(self.modelled_us[own].sum())
        measured_us = float(self.measured_us[self.measured.get(key, [])].sum())
        if modelled_us <= 0 or measured_us <= 0:
            return modelled_us, 0.0
        share = float((self.modelled_us[own] * self.by_shapes[own]).sum()) / modelled_us
        return modelled_us, share * float(np.log(measured_us / modelled_us))


class ModelledRatios(NamedTuple):
    """What models say of device operations on a target: over its time on the source, each takes a
    sum of pieces, as long as the source shows no more than its models."""

    pieces: Rows
    at: Ints
    """Of each share of a sum, its operation; likewise its piece, and the ratio per microsecond."""
    piece: Ints
    per_us: Floats
    unexplained: Floats
    """Per operation, logarithm of measured over modelled on the source, where shapes say all."""


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
        self.why_not = ""
        """Why no op is known."""
        self._ranks: list[tuple[Source, list[tuple[int, Key]]]] = []
        """Per rank its ops, and its operations (place, who launched it)."""
        try:
            graphs = {each.rank: each for each in op_graph(trace)}
        except TraceError as error:
            self.why_not, graphs = str(error), {}
        for rank, links in zip(trace.ranks, trace.links, strict=True):
            if rank.rank not in graphs:
                continue
            own = np.flatnonzero(nodes.rank[self.rows] == rank.rank)
            events = nodes.row[self.rows[own]]
            ops = with_placement(graphs[rank.rank], rank, links)
            op_of_row = np.full(len(rank), NO_OP, np.int64)
            op_of_row[links.device_rows] = launched_by(ops, rank, links)
            op, taken_us = op_of_row[events], self.taken[own]
            is_collective = nodes.kind[self.rows[own]] == NodeKind.COLLECTIVE
            keys = zip(op.tolist(), is_collective.tolist(), strict=True)
            measured = members(ops, op, is_collective)
            source = Source(ops, home, measured, taken_us)
            self._ranks.append((source, list(zip(own.tolist(), keys, strict=True))))

    def modelled(self, target: Cluster) -> ModelledRatios:
        pieces, at, piece, per_us = list[Rows](), list[int](), list[int](), list[float]()
        unexplained, before_these = np.zeros(len(self.rows)), 0
        for source, operations in self._ranks:
            after = OpPieces.on(source.graph, target)
            for place, key in operations:
                if (chosen := source.compared(key, after)) is None:
                    continue
                modelled_us, unexplained[place] = source.modelled(chosen)
                counted = after.of_op[chosen]
                at += [place] * len(counted)
                piece += [before_these + each for each in counted]
                per_us += [1.0 / modelled_us] * len(counted)
            pieces.append(after.rows)
            before_these += len(after.rows)
        return ModelledRatios(
            Rows.joined(pieces),
            np.array(at, np.int64),
            np.array(piece, np.int64),
            np.array(per_us, np.float64),
            unexplained,
        )

    def ratios(
        self, found: ModelledRatios, taken_us: Floats | Ints, target: Cluster
    ) -> tuple[Floats, Mask]:
        """Time on `target`, where the pieces that are `found` take so long, over time at home; and
        whether that is by the models of its op, not by the rooflines of its class."""
        count, devices = len(self.rows), (self.home.node.device, target.node.device)
        sums = np.bincount(found.at, found.per_us * taken_us[found.piece], minlength=count)
        ratios = sums * np.exp((carried_frac(*devices) - 1.0) * found.unexplained)
        by_models = np.isin(np.arange(count), found.at)
        by_class = transfer_ratio(*self._kinds, *devices, duration_us=self.taken)
        return np.where(by_models, ratios, by_class), by_models


@dataclass(frozen=True)
class TransferredDurations:
    """Durations on the target, and how they were found."""

    duration_us: Floats
    """Per node of the graph."""
    modelled_frac: float
    """Share of the measured device time that kernel models transferred."""
    notes: tuple[str, ...]
    source: Cluster
    target: Cluster
    ratio: Floats
    """Per device operation of the graph (`device_span`): target over source."""
    by_models: Mask
    """Likewise, whether that is a ratio of models, not of rooflines."""
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
    ratio, by_models = np.ones(len(rows)), np.zeros(len(rows), bool)
    notes = unknown_generations([*devices])
    if devices[0] != devices[1]:
        own = Transfer(trace, graph, duration_us, before)
        found = own.modelled(after)
        taken_us = durations_of(found.pieces, after).duration_us if len(found.pieces) else found.at
        ratio, by_models = own.ratios(found, taken_us, after)
        if own.why_not:
            notes.append(f"no op has shapes for the kernel models ({own.why_not})")
    moved, taken = duration_us.copy(), duration_us[rows]
    moved[rows] = taken * ratio
    moved[on_host(graph)] *= host_ratio(before.node.host, after.node.host)
    modelled_frac = float(taken[by_models].sum()) / (float(taken.sum()) or 1.0)
    of_host = "assumed: the trace does not name its host"
    of_host = of_host if trace.recorded_on is None else "as given"
    notes.append(
        f"host time scaled from {before.node.host.name} ({of_host}) to {after.node.host.name} by "
        f"single-thread speed; device time: {100 * modelled_frac:.1f} % by models of its op, "
        f"{100 * (1 - modelled_frac):.1f} % by roofline ratio of its class"
    )
    meets = bool((graph.nodes_.kind == NodeKind.COLLECTIVE).any())
    parts = {"device", "host", *(WIRES if meets else ())}
    reads = dict.fromkeys((*figures_used(before, parts), *figures_used(after, parts)))
    return TransferredDurations(
        moved, modelled_frac, tuple(notes), before, after, ratio, by_models, tuple(reads)
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
