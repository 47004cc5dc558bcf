"""A trace on thousands of machines at once: durations of its nodes, and periods of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.registry import compiled, library
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.contract import COLLECTIVE, LOWERING, parts_of
from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.explore.axes import Machines, MemoizedFigures, Points
from perfmodel.hardware import Cluster, cluster, node_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.prediction.scheduled import host_ratio
from perfmodel.prediction.transferred import ModelledRatios, Transfer, on_host, source_machine
from perfmodel.timeline.graph.recorded_steps import is_window
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import step_us_of_many
from perfmodel.trace import Trace

AT_ONCE = 64
"""Configurations that one thread takes in turn, each from the cycle that decided the one before."""


prange = library("numba").prange
Durations = NDArray[np.float32] | Floats
"""`[nodes, configurations]` microseconds."""


@compiled()
def _ratio(
    heads: Ints,
    first: Ints,
    edge: Ints,
    source: Ints,
    distance: Ints,
    weight: Floats,
    value: Floats,
    best: Ints,
    seen: Ints,
    cycle: Ints,
    length: int,
) -> tuple[float, int]:
    """As `steady.max_cycle_ratio`, from the cycle in the first `length` of `cycle`, where the one
    that decides is left; its ratio and length."""
    least = 1e-9
    for each in weight:
        least += 1e-12 * abs(each)
    ratio = 0.0
    if length:
        taken, steps = 0.0, 0
        for at in range(length):
            taken, steps = taken + weight[cycle[at]], steps + distance[cycle[at]]
        ratio = max(taken / steps, 0.0)
    while True:
        value[:], best[:] = 0.0, -1
        found = False
        while not found:
            rose = False
            for node in heads:
                now, chosen = value[node] + least, -1
                for at in range(first[node], first[node + 1]):
                    reached = value[source[edge[at]]] + weight[edge[at]]
                    reached -= ratio * distance[edge[at]]
                    if reached > now:
                        now, chosen = reached, edge[at]
                if chosen >= 0:
                    value[node], best[node], rose = now, chosen, True
            if not rose:
                return ratio, length
            seen[:] = -1
            for start in heads:
                node = start
                while seen[node] < 0 and best[node] >= 0:
                    seen[node] = start
                    node = source[best[node]]
                if seen[node] == start and best[node] >= 0:
                    found = True
                    begun, length, taken, steps = node, 0, 0.0, 0
                    while not length or node != begun:
                        cycle[length] = best[node]
                        taken, steps = taken + weight[best[node]], steps + distance[best[node]]
                        node = source[best[node]]
                        length += 1
                    break
                if seen[node] < 0:
                    seen[node] = start
        above = taken / steps
        ratio = above if above > ratio else ratio * (1 + 1e-15 * length)


@compiled(parallel=True)
def _ratios(
    row: Ints,
    into: Ints,
    way_us: Floats,
    overlap_frac: Floats,
    origin: Ints,
    meeting: Ints,
    heads: Ints,
    first: Ints,
    edge: Ints,
    source: Ints,
    distance: Ints,
    duration_us: Floats,
) -> Floats:
    """Per configuration, the period of a `RepeatedStep` whose columns these are; `origin` is the
    node that each edge of the step comes from, `duration_us` `[nodes, configurations]`."""
    nodes, configurations = duration_us.shape
    result = np.empty(configurations, np.float64)
    for chunk in prange((configurations + AT_ONCE - 1) // AT_ONCE):
        until, way = np.empty(nodes, np.float64), np.empty(len(way_us), np.float64)
        taken, weight = np.empty(nodes, np.float64), np.empty(len(meeting), np.float64)
        value, best = np.empty(len(heads), np.float64), np.empty(len(heads), np.int64)
        seen, cycle = np.empty(len(heads), np.int64), np.empty(len(heads) + 1, np.int64)
        length = 0
        for at in range(chunk * AT_ONCE, min((chunk + 1) * AT_ONCE, configurations)):
            for node in range(nodes):
                taken[row[node]] = duration_us[node, at]
            for each in range(len(way)):
                way[each] = way_us[each] - overlap_frac[each] * duration_us[origin[each], at]
            for place in range(nodes):
                until[place] = taken[place]
                if into[place] >= 0:
                    until[place] += until[place - 1] + way[into[place]]
            for each in range(len(meeting)):
                weight[each] = until[row[origin[meeting[each]]]] + way[meeting[each]]
            result[at], length = _ratio(
                heads, first, edge, source, distance, weight, value, best, seen, cycle, length
            )
    return result


def many_periods_us(periods: Periods, duration_us: Durations) -> Floats:
    """`Periods.step_us` of many configurations at once: `[ranks, steps, configurations]` from
    durations `[nodes, configurations]`. Raises `UsageError` where those are of other nodes."""
    graph = periods.graph
    if duration_us.ndim != 2 or len(duration_us) != len(graph):
        raise UsageError(
            f"durations of shape {duration_us.shape}: expected [{len(graph)} nodes, configurations]"
        )
    if is_window(graph):
        return step_us_of_many(graph, duration_us.astype(np.float64))[:, None]
    columns = []
    for each in periods.repeated:
        edges, ways = each.step.edges, each.ways
        source = np.empty(len(each.meeting), np.int64)
        source[ways.by_target] = ways.source
        bounds = np.zeros(len(ways.order) + 1, np.int64)
        for node, _, behind in ways.visits:
            bounds[node + 1] = behind
        columns.append(
            _ratios(
                each.row.astype(np.int64),
                each.into.astype(np.int64),
                edges.lag_us.astype(np.float64),
                edges.overlap_frac.astype(np.float64),
                edges.source.astype(np.int64),
                each.meeting.astype(np.int64),
                np.array(ways.order, np.int64),
                np.maximum.accumulate(bounds),
                ways.by_target.astype(np.int64),
                source,
                each.step.distance[each.meeting].astype(np.int64),
                np.ascontiguousarray(duration_us[each.step.nodes]),
            )
        )
    return periods.by_rank(columns)


Block = NDArray[np.float32]


class _Pieces(NamedTuple):
    """What the trace's ops become on some machines, and how long that takes."""

    found: ModelledRatios
    is_kernel: Mask
    kernels_us: MemoizedFigures[Floats]
    others_us: MemoizedFigures[Floats]
    """Of collectives."""


class TransferTables:
    """Durations of the nodes of `graph` on the machines of many points."""

    def __init__(self, trace: Trace, graph: ExecutionGraph, machines: Machines) -> None:
        """Raises `TraceError` where the trace does not name one GPU."""
        self.trace, self.graph, self.machines = trace, graph, machines
        source = source_machine(trace, "so no ratio to another machine is known").node.device
        self._transfer = Transfer(trace, graph, graph.nodes_.duration_us, cluster(source))
        self.rows = self._transfer.rows
        own_host = node_of(source).host
        self._host = MemoizedFigures(
            machines, lambda m: host_ratio(own_host, m.node.host), ("host.single_thread_ratio",)
        )
        self._pieces = MemoizedFigures(machines, self._lowered, LOWERING)

    def blocks(self, points: Points, width: int) -> Iterator[tuple[Ints, Block]]:
        """(places among `points`, durations `[nodes, points]` in microseconds) of at most `width`
        points at a time."""
        every, which = self._pieces.of(points)
        for number, pieces in enumerate(every):
            own = np.flatnonzero(which == number)
            for begin in range(0, len(own), width):
                chosen = own[begin : begin + width]
                yield chosen, self._block(pieces, points.take(chosen))

    def _block(self, pieces: _Pieces, points: Points) -> Block:
        usual = self.graph.nodes_.duration_us.astype(np.float32)
        block = np.repeat(usual[:, None], len(points), axis=1)
        ratios, group = self._host.of(points)
        block[on_host(self.graph)] *= np.array(ratios, np.float32)[group]
        (kernels, device), (others, wires) = (
            each.of(points) for each in (pieces.kernels_us, pieces.others_us)
        )
        _, first, group = np.unique(
            device * len(others) + wires, return_index=True, return_inverse=True
        )
        moved, taken_us = np.empty((len(self.rows), len(first))), np.empty(len(pieces.is_kernel))
        for number, at in enumerate(first.tolist()):
            taken_us[pieces.is_kernel] = kernels[device[at]]
            taken_us[~pieces.is_kernel] = others[wires[at]]
            target = self.machines.remembered(points.at(at))
            moved[:, number] = self._transfer.ratios(pieces.found, taken_us, target)[0]
        block[self.rows] *= moved.astype(np.float32)[:, group]
        return block

    def _lowered(self, machine: Cluster) -> _Pieces:
        found = self._transfer.modelled(machine)
        families = np.array([OPS[op].family for op in found.pieces.op], object)
        is_kernel, times_us = families != COLLECTIVE, list[MemoizedFigures[Floats]]()
        for which, always in ((is_kernel, {"device"}), (~is_kernel, set[str]())):
            time_us = partial(_time_us, found.pieces.take(np.flatnonzero(which)))
            parts = always.union(*(parts_of(family) for family in set(families[which])))
            times_us.append(MemoizedFigures(self.machines, time_us, tuple(sorted(parts))))
        return _Pieces(found, is_kernel, *times_us)


def _time_us(rows: Rows, machine: Cluster) -> Floats:
    if not len(rows):
        return np.zeros(0)
    return durations_of(place_collectives(rows, machine), machine).duration_us


WIDTHS = 64, 4096
"""Points that are scheduled at once, of large graphs and of small ones."""
BLOCK_CELLS = 1 << 23
"""Durations that are held at once: 32 MB."""
