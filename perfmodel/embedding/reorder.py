"""Queries of a batch in an order in which neighbours look up the same rows.

Queries (samples, or bags) are vertices; an edge is as heavy as two have rows in common. Either the
graph is walked along its heaviest edges, or its maximum spanning tree is visited depth first, which
puts the clusters of single linkage side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.base.registry import Registry
from perfmodel.errors import WorkloadError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


MAX_QUERIES = 64
"""Rows that more queries than this have in common join nothing: a cache holds them anyway."""

ORDERS: Registry[Callable[[csr_matrix], Ints]] = Registry("order of queries")


@dataclass(frozen=True, eq=False)
class Queries:
    """Rows of each query: `rows` `[lookups]`, those of query q from `offsets[q]` to `[q + 1]`.

    Row numbers of several tables must differ (add to each the rows of the tables before).
    """

    offsets: Ints
    rows: Ints

    def __post_init__(self) -> None:
        lengths = np.diff(self.offsets)
        if len(self.offsets) < 2 or self.offsets[0] != 0 or (lengths < 0).any():
            raise WorkloadError("queries: offsets must ascend from 0")
        if self.offsets[-1] != len(self.rows):
            raise WorkloadError(f"queries: offsets end at {self.offsets[-1]} of {len(self.rows)}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def in_order(self, order: Ints) -> Queries:
        """The same queries, query `order[i]` in place i."""
        lengths = np.diff(self.offsets)[order]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths)
        return Queries(offsets, self.rows[places + np.arange(offsets[-1])])

    def reuse(self, window: int) -> float:
        """Lookups per distinct row within every `window` queries that follow one another."""
        query = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        order = np.lexsort((query // window, self.rows))
        again = np.diff(self.rows[order]) == 0
        again &= np.diff(query[order] // window) == 0
        return len(self.rows) / max(len(self.rows) - int(again.sum()), 1)


@dataclass(frozen=True, eq=False)
class Reordering:
    """An order of queries, and the work to find it: pairs of lookups compared, edges kept."""

    order: Ints
    pairs: int
    edges: int


def reordered(queries: Queries, kind: str = "walked") -> Reordering:
    """`queries` in an order of a `kind` of `ORDERS` (`walked`, `clustered`).

    The graph takes time and memory in proportion to `pairs`, the order in proportion to `edges`;
    together 0.1 to 1 us per pair here on one core. Raises `PerfmodelError` for another kind.
    """
    find = ORDERS[kind]
    graph, pairs = query_graph(queries)
    return Reordering(find(graph), pairs, graph.nnz // 2)


def query_graph(queries: Queries) -> tuple[csr_matrix, int]:
    """Rows that two queries have in common, `[queries, queries]`, and how many pairs were made."""
    from scipy.sparse import csr_matrix

    query = np.repeat(np.arange(len(queries)), np.diff(queries.offsets))
    _, row = np.unique(queries.rows, return_inverse=True)
    columns = int(row.max()) + 1 if len(row) else 0
    named = csr_matrix((np.ones(len(row), np.int32), (query, row)), shape=(len(queries), columns))
    named.data[:] = 1
    of_row = np.bincount(named.indices, minlength=columns)
    is_shared = (of_row > 1) & (of_row <= MAX_QUERIES)
    named = named[:, is_shared]
    graph = (named @ named.T).tocsr()
    graph.setdiag(0)
    graph.eliminate_zeros()
    return graph, int(np.sum(of_row[is_shared].astype(np.int64) ** 2))


@ORDERS.register("walked")
def walked(graph: csr_matrix) -> Ints:
    """From each query to the one not yet visited that shares most with it; else to the heaviest."""
    count = graph.shape[0]
    weight = np.asarray(graph.sum(axis=1)).ravel()
    starts = iter(np.argsort(-weight, kind="stable").tolist())
    visited = np.zeros(count, bool)
    order = np.empty(count, np.int64)
    current = -1
    for place in range(count):
        following = -1
        if current >= 0:
            own = slice(graph.indptr[current], graph.indptr[current + 1])
            shared = np.where(visited[graph.indices[own]], 0, graph.data[own])
            best = int(np.argmax(shared)) if len(shared) else -1
            following = int(graph.indices[own][best]) if best >= 0 and shared[best] > 0 else -1
        while following < 0:
            start = next(starts)
            following = -1 if visited[start] else start
        visited[following] = True
        order[place] = current = following
    return order


@ORDERS.register("clustered")
def clustered(graph: csr_matrix) -> Ints:
    """The maximum spanning tree of each component, depth first, from its heaviest query."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components, depth_first_order, minimum_spanning_tree

    count = graph.shape[0]
    distance = graph.astype(np.float64)
    distance.data = 1.0 / distance.data
    tree = minimum_spanning_tree(distance).tocoo()
    component = connected_components(tree, directed=False)[1]
    heaviest = np.argsort(-np.asarray(graph.sum(axis=1)).ravel(), kind="stable")
    heads = heaviest[np.unique(component[heaviest], return_index=True)[1]]
    begins = np.concatenate([tree.row, np.full(len(heads), count)])
    ends = np.concatenate([tree.col, heads])
    rooted = coo_matrix((np.ones(len(ends)), (begins, ends)), shape=(count + 1, count + 1))
    result = depth_first_order(rooted.tocsr(), count, directed=False, return_predecessors=False)
    return np.asarray(result[1:], np.int64)
