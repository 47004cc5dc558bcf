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
from perfmodel.ops import dtypes_of_kernels, families_of_kernels
from perfmodel.ops.families import CLASS_OF_FAMILY
from perfmodel.prediction.explain.modelled import reason_of_row, speed_reason
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.explain.replayed import ReplayGrounds
from perfmodel.prediction.ratio_by_bound import host_ratio, transfer_ratio
from perfmodel.prediction.ratios import OpDurations, OpPieces, Source
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.prediction.transferred import TransferredDurations, kernel_keys, launches

MOST_NAMESAKES = 3
"""Kernels of the same name whose ratios are told; the mean is of all."""


@dataclass(frozen=True)
class _Sides:
    """The ops of one rank as they are on the source and on the target."""

    launched: dict[int, tuple[int, str]]
    """By place among the device's operations: the op that launched it, and its kind."""
    source: Source
    target: OpPieces
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
        chosen = sides.source.compared(op, kind, sides.after)
        assert chosen is not None
        name = sides.target.graph.ops[chosen.op].name
        parts = [
            _side(machine, pieces, pieces.counted(chosen), f"{name} on {machine.name}")
            for machine, pieces in (
                (self.moved.source, sides.source.pieces),
                (self.moved.target, sides.target),
            )
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
    launched = next(
        sides for sides in launches(trace, moved.replayed.graph, rows) if sides.ops.rank == rank
    )
    source, target = moved.moved.source, moved.moved.target
    pieces = launched.pieces_on(target)
    return _Sides(
        {at: (op, kind) for at, op, kind in launched.operations()},
        launched.on_source(source, measured_us),
        pieces,
        pieces.by_op(pieces.duration_us(target)),
    )


def _side(machine: Cluster, pieces: OpPieces, counted: Ints, what: str) -> Reason:
    """What the op's pieces take on one machine."""
    rows = place_collectives(pieces.rows, machine)
    parts = tuple(reason_of_row(rows, machine, at) for at in counted.tolist())
    return Reason(what, "sum of its pieces", sum(each.duration_us for each in parts), {}, (), parts)
