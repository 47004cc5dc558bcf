"""The maximum cycle ratio of a graph: how often a step that depends on earlier ones can repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.trace.columns import NONE, Floats, Ints, Mask

CLOSE = 100.0
"""Values are sums of many lengths: so many times the rounding of one sum they may be off."""
START = 0.0
"""No cycle asks for less than nothing."""


def rounding(way: Floats) -> float:
    """What sums of `way` may be off by."""
    return 1e-12 * float(np.abs(way).sum()) + 1e-9


@dataclass(frozen=True)
class CycleRatio:
    """The largest ratio of weight to distance over all cycles; 0 without a cycle.

    `cycle` holds the edges of one that has it, in order; `potential` a value per node with
    `potential[target] >= potential[source] + weight - ratio * distance` for every edge.
    """

    ratio: float
    cycle: Ints
    potential: Floats


class Relaxation:
    """Longest ways through a graph whose edges of distance 0 close no cycle, pass by pass.

    `order` lists the nodes so that every edge of distance 0 goes forward.
    """

    def __init__(self, order: Ints, source: Ints, target: Ints) -> None:
        self.order = order.tolist()
        self.by_target = np.argsort(target, kind="stable")
        bounds = np.searchsorted(target[self.by_target], np.arange(len(order) + 1))
        first, behind = bounds[order], bounds[order + 1]
        entered = first < behind
        columns = (column[entered].tolist() for column in (order, first, behind))
        self.visits = list(zip(*columns, strict=True))
        """Nodes that edges lead to, and from which to before which edge by target these are."""
        self.edges, self.all_sources = self.by_target.tolist(), source.tolist()
        self.source = source[self.by_target].tolist()

    def relax(self, value: list[float], way: list[float], best: list[int], least: float) -> bool:
        """Raise `value` per node to what its edges ask for; whether any rose by more than `least`.

        `way` holds a length per edge by target; `best` gets the edge that decided.
        """
        source, edges = self.source, self.edges
        rose = False
        for node, first, behind in self.visits:
            now = value[node] + least
            chosen = NONE
            for at in range(first, behind):
                reached = value[source[at]] + way[at]
                if reached > now:
                    now, chosen = reached, at
            if chosen != NONE:
                value[node], best[node], rose = now, edges[chosen], True
        return rose

    def cycle(self, best: list[int]) -> list[int]:
        """Edges of a cycle among the deciding ones, in order; none where there is none."""
        seen = [0] * len(best)
        for number, first in enumerate(self.order, 1):
            node = first
            while not seen[node]:
                seen[node] = number
                if best[node] == NONE:
                    break
                node = self.all_sources[best[node]]
            else:
                if seen[node] == number:
                    return self._around(node, best)
        return []

    def _around(self, node: int, best: list[int]) -> list[int]:
        found, at = [best[node]], self.all_sources[best[node]]
        while at != node:
            found.append(best[at])
            at = self.all_sources[best[at]]
        return found[::-1]


def max_cycle_ratio(ways: Relaxation, weight: Floats, distance: Ints) -> CycleRatio:
    """The cycle with the most weight per distance, by rising ratio.

    As long as the longest ways at a ratio find a cycle that is longer than nothing, its own ratio
    is the next; each is above the one before, so this ends with the largest.
    Source: Lawler, Combinatorial Optimization (1976), minimum cost-to-time ratio; the rise from
    cycle to cycle as in Dasdan, ACM TODAES 9(4), 2004.
    """
    count, least = len(ways.order), rounding(weight)
    ratio, cycle = START, np.zeros(0, np.int64)
    value = [0.0] * count
    while True:
        way = (weight - ratio * distance)[ways.by_target].tolist()
        best = [NONE] * count
        found: list[int] = []
        while not found and ways.relax(value, way, best, least):
            found = ways.cycle(best)
        if not found:
            return CycleRatio(ratio, cycle, np.array(value))
        cycle = np.array(found, np.int64)
        ratio = float(weight[cycle].sum() / distance[cycle].sum())


def earliest(ways: Relaxation, way: Floats, at_least: Floats) -> Floats:
    """The smallest value per node, `at_least` and that every edge, of length `way`, allows.

    No cycle may be longer than nothing.
    """
    value, best = at_least.tolist(), [NONE] * len(at_least)
    lengths, least = way[ways.by_target].tolist(), rounding(way)
    for _ in range(len(value)):
        if not ways.relax(value, lengths, best, least):
            break
    return np.array(value)


def critical(source: Ints, target: Ints, way: Floats, value: Floats) -> Mask:
    """Which nodes lie on a cycle of length 0, given values that all edges allow."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(value)
    tight = value[source] + way >= value[target] - CLOSE * rounding(way)
    ends = source[tight], target[tight]
    links = coo_array((np.ones(len(ends[0]), np.int8), ends), (count, count))
    _, part = connected_components(links, connection="strong")
    found: Mask = np.bincount(part)[part] > 1
    found[ends[0][ends[0] == ends[1]]] = True
    return found
