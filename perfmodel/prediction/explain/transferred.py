"""Why nodes of a transfer take what they take: measured time x target over source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from perfmodel.arrays import Ints
from perfmodel.graph.kinds import EdgeKind, Scope
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import figure_reads, with_read_log
from perfmodel.lowering.observed import uses_tf32
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import CLASS_OF_FAMILY
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.prediction.explain.modelled import reason_of_row, speed_reason
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.explain.replayed import ReplayGrounds
from perfmodel.prediction.ratio_by_bound import host_ratio, transfer_ratio
from perfmodel.prediction.ratios import ComparedOps, OpDurations, OpPieces, Source, compare_ops
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.prediction.transferred import TransferredDurations, kernel_keys, launches

MOST_NAMESAKES = 3
"""Kernels of the same name whose ratios are told; the mean is of all."""


@dataclass(frozen=True)
class _Sides:
    """The ops of one rank as they are on the source and on the target."""

    graph: OpGraph
    launched: dict[int, tuple[int, str]]
    """By place among the device's operations: the op that launched it, and its kind."""
    machines: tuple[tuple[Cluster, OpPieces], ...]
    source: Source
    after: OpDurations


@dataclass(frozen=True)
class TransferGrounds:
    """A measured graph on another machine: `replayed` is what was measured, then what-ifs."""

    replayed: ReplayGrounds
    moved: TransferredDurations
    _made: dict[int, _Sides] = field(default_factory=dict, init=False, compare=False, repr=False)

    def lag_source(self, edge: EdgeKind) -> str:
        """Lags stay as measured."""
        return f"{self.replayed.lag_source(edge)}; taken over unchanged"

    def ops(self) -> Sequence[str]:
        """As of a replay."""
        return self.replayed.ops()

    def reason(self, node: int) -> Reason:
        """The ratio that the node's duration was multiplied by, and both sides of it."""
        return self.replayed.changed(node, self._moved(node))

    def _moved(self, node: int) -> Reason:
        graph, moved = self.replayed.graph, self.moved
        was = self.replayed.source(node)
        if graph.nodes_.scope[node] in (Scope.HOST, Scope.ALLOCATOR):
            here, there = moved.source.node.host, moved.target.node.host
            return speed_reason(was, host_ratio(here, there), here, there)
        at = np.flatnonzero(self._rows == node)
        if not len(at):
            return was
        place = int(at[0])
        ratio = float(moved.ratio[place])
        if not np.isnan(moved.by_op[place]):
            return self._by_op(was, place, ratio)
        if not np.isnan(moved.by_name[place]):
            return self._by_name(was, place, ratio)
        return self._by_roofline(was, node, ratio)

    @cached_property
    def _rows(self) -> Ints:
        return self.replayed.graph.device_span()[1]

    def _by_op(self, was: Reason, place: int, ratio: float) -> Reason:
        """Models of the op's pieces on both machines, summed."""
        sides = self._sides(int(self.replayed.graph.nodes_.rank[self._rows[place]]))
        op, kind = sides.launched[place]
        chosen = compare_ops(sides.graph, op, kind, sides.source.modelled, sides.after)
        assert chosen is not None
        name = sides.graph.ops[chosen.op].name
        inside = _compared_ops([each.parent for each in sides.graph.ops], chosen)
        parts = [
            _side(machine, pieces, chosen, inside, f"{name} on {machine.name}")
            for machine, pieces in sides.machines
        ]
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "op": name,
            "unexplained_factor": float(np.exp(sides.source.unexplained(chosen))),
            "carried_frac": self.moved.carried_frac,
        }
        formula = (
            "measured time x what the op's pieces take on the target over the source x "
            "unexplained_factor ^ (carried_frac - 1)"
        )
        taken_us = was.duration_us * ratio
        return Reason("ratio of models", formula, taken_us, terms, (), (was, *parts))

    def _sides(self, rank: int) -> _Sides:
        """The ops of `rank` on both machines, made once."""
        if rank not in self._made:
            self._made[rank] = _sides_of(self, self._rows, rank)
        return self._made[rank]

    def _by_name(self, was: Reason, place: int, ratio: float) -> Reason:
        """The mean ratio of kernels of the same name."""
        key = kernel_keys(self.replayed.trace, self.replayed.graph, self._rows)
        known = ~np.isnan(self.moved.by_op)
        alike = np.flatnonzero(known & (key == key[place]).all(axis=1))
        if not len(alike):
            alike = np.flatnonzero(known & (key[:, :2] == key[place, :2]).all(axis=1))
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "kernels_of_the_name": len(alike),
        }
        firsts = alike[:MOST_NAMESAKES].tolist()
        for each in firsts:
            terms[f"ratio of node {self._rows[each]}"] = float(self.moved.by_op[each])
        formula = "measured time x the mean ratio, by time, of kernels of its name that have one"
        return Reason("ratio of namesakes", formula, was.duration_us * ratio, terms, (), (was,))

    def _by_roofline(self, was: Reason, node: int, ratio: float) -> Reason:
        """Rates of the class that the kernel's name tells."""
        label = self.replayed.graph.labels[node]
        (family,), (dtype,) = families_of_kernels([label]), dtypes_of_kernels([label])
        machines = [with_read_log(each) for each in (self.moved.source, self.moved.target)]
        (source, here), (target, there) = machines
        devices = source.node.device, target.node.device
        transfer_ratio([family], [dtype], *devices, duration_us=[was.duration_us])
        read = (*figure_reads(self.moved.source, here), *figure_reads(self.moved.target, there))
        terms: Terms = {
            "measured_us": was.duration_us,
            "ratio": ratio,
            "family": family,
            "dtype": dtype,
            "class": CLASS_OF_FAMILY[family],
        }
        formula = (
            "floor of the target + (measured - floor of the source) x rate of the source over the "
            "target's, of the class that the kernel's name tells"
        )
        return Reason("ratio of rooflines", formula, was.duration_us * ratio, terms, read, (was,))


def _sides_of(moved: TransferGrounds, rows: Ints, rank: int) -> _Sides:
    """Raises `TraceError` where the trace records no shapes."""
    trace, measured_us = moved.replayed.trace, moved.replayed.graph.nodes_.duration_us[rows]
    tf32_matmul = any(uses_tf32(each) for each in trace.ranks)
    launched = next(
        found for found in launches(trace, moved.replayed.graph, rows) if found.ops.rank == rank
    )
    graph = launched.ops
    before, after = (
        (machine, OpPieces.on(graph, machine, tf32_matmul=tf32_matmul))
        for machine in (moved.moved.source, moved.moved.target)
    )
    return _Sides(
        graph,
        {at: (op, kind) for at, op, kind in launched.operations()},
        (before, after),
        launched.on_source(before[1], before[0], measured_us),
        OpDurations.of_pieces(graph, after[1], after[1].duration_us(after[0])),
    )


def _compared_ops(parents: Sequence[int], chosen: ComparedOps) -> set[int]:
    """The op that was compared and, where calls count, all below it."""
    found = {chosen.op}
    if chosen.whole:
        for op, parent in enumerate(parents):
            if parent != NO_OP and parent in found:
                found.add(op)
    return found


def _side(
    machine: Cluster, pieces: OpPieces, chosen: ComparedOps, inside: set[int], what: str
) -> Reason:
    """What the op's pieces take on one machine."""
    own = [
        at
        for at, (owner, kind) in enumerate(
            zip(pieces.owner.tolist(), pieces.kind.tolist(), strict=True)
        )
        if owner in inside and kind in chosen.kinds
    ]
    rows = place_collectives(pieces.rows, machine)
    parts = tuple(reason_of_row(rows, machine, at) for at in own)
    return Reason(what, "sum of its pieces", sum(each.duration_us for each in parts), {}, (), parts)
