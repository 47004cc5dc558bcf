"""Which nodes of a directed graph lie on a cycle.

SciPy's strongly connected parts would do, but loading them takes longer than a prediction.
"""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Ints, Mask


def on_cycles(source: Ints, target: Ints, count: int) -> Mask:
    """Per node of `count`, whether edges from `source` to `target` lead from it back to it.

    A node does where its strongly connected part holds another one, or where an edge of its own
    comes back at once. Source: Tarjan, SIAM J. Comput. 1(2), 1972, without recursion.
    """
    by_source = np.argsort(source, kind="stable")
    targets = target[by_source].tolist()
    bounds = np.searchsorted(source[by_source], np.arange(count + 1)).tolist()
    edge, behind = bounds[:-1], bounds[1:]
    found, least = [0] * count, [0] * count
    """Per node: when it was met, from 1 on, and the first one met that it reaches. Where all that
    it reaches is known, it is done: met behind all others."""
    done, met = count + 1, 0
    open_nodes: list[int] = []
    is_within = [False] * count
    for root in range(count):
        way = [] if found[root] else [root]
        while way:
            node = way[-1]
            if not found[node]:
                met += 1
                found[node] = least[node] = met
                open_nodes.append(node)
            if edge[node] < behind[node]:
                to = targets[edge[node]]
                if found[to]:
                    least[node] = min(least[node], least[to])
                    edge[node] += 1
                else:
                    way.append(to)
                continue
            way.pop()
            if least[node] == found[node]:
                is_alone = open_nodes[-1] == node
                while found[node] != done:
                    member = open_nodes.pop()
                    found[member] = least[member] = done
                    is_within[member] = not is_alone
    result = np.array(is_within, np.bool_)
    result[source[source == target]] = True
    return result
