"""Boosted trees asked about many rows at once: whether a row meets a condition is a bit of a word.

Trees share few conditions, thresholds of a figure. Each is compared with every row once; which rows
reach a node is then a matter of whole words, 64 rows each, and a row looks up nothing but the leaf
that it ends at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import Floats, Ints

MAX_DEPTH = 12
"""Of trees whose leaves are told apart by a table of all turns."""
_WORD = 64
_BLOCK_WORDS = 1 << 15
"""Words of one level of so many trees at once stay in a processor's cache."""
_BYTE = 8


class Conditions(NamedTuple):
    """The different ones of all trees, a figure against a threshold, sorted by both."""

    feature: Ints
    threshold: NDArray[np.float32]
    of_node: Ints
    """Of each node; of a leaf one more than there are."""


def conditions_of(feature: Ints, threshold: NDArray[np.float32], below: Ints) -> Conditions:
    """What the inner nodes of a forest ask; arguments as in `forest.Forest`."""
    inner = np.flatnonzero(below != np.arange(len(below)))
    inner = inner[np.lexsort((threshold[inner], feature[inner]))]
    feature, threshold = feature[inner], threshold[inner]
    is_new = np.ones(len(inner), np.bool_)
    is_new[1:] = (feature[1:] != feature[:-1]) | (threshold[1:] != threshold[:-1])
    of_node = np.full(len(below), is_new.sum())
    of_node[inner] = np.cumsum(is_new) - 1
    return Conditions(feature[is_new], threshold[is_new], of_node)


class Level(NamedTuple):
    """Inner nodes of all trees at one depth, tree after tree."""

    begins: Ints
    """Where each tree's nodes begin and the last one's end, `[trees + 1]`."""
    condition: Ints
    child: Ints
    """Which child of the level before each is: 2 x its parent's place there, and 1 for above. The
    roots are children of as many places as there are trees."""


def sums_of_bits(
    roots: Ints,
    below: Ints,
    value: NDArray[np.floating[Any]],
    depth: int,
    conditions: Conditions,
    matrix: NDArray[np.float32],
) -> Floats:
    """The sum over trees for each row of `matrix` `[rows, figures]`; other arguments as in
    `forest.Forest`."""
    words = -(-len(matrix) // _WORD)
    one_way = _one_way(conditions, matrix)
    levels, leaves = _pruned(roots, below, value, depth, conditions.of_node, one_way)
    is_open = one_way[:-1] == 0
    bits = _bits(conditions.feature[is_open], conditions.threshold[is_open], matrix, words)
    widest = max((len(level.child) for level in levels), default=1)
    trees = max(1, _BLOCK_WORDS * len(roots) // (words * widest))
    total = np.zeros(len(matrix))
    for begin in range(0, len(roots), trees):
        own = leaves[begin : begin + trees]
        codes = _codes(levels, range(begin, begin + len(own)), bits, len(matrix))
        for leaf, code in zip(own, codes, strict=True):
            total += leaf.take(code, mode="clip")
    return total


def _pruned(
    roots: Ints,
    below: Ints,
    value: NDArray[np.floating[Any]],
    depth: int,
    condition: Ints,
    one_way: Ints,
) -> tuple[list[Level], Floats]:
    """(The levels of what is left of the trees where all rows go one way, with places among the
    conditions that part them; the value `[trees, codes]` of the leaf that is reached by the turns
    that are the bits of a code.)"""
    place = np.cumsum(one_way == 0) - 1

    def settled(node: Ints) -> Ints:
        while (turn := one_way.take(condition.take(node))).any():
            node = np.where(turn > 0, below.take(node) + turn - 1, node)
        return node

    tree, code = np.arange(len(roots)), np.zeros(len(roots), np.int64)
    child, node = 2 * tree, settled(roots)
    values = np.zeros((len(tree), 1 << depth))
    levels: list[Level] = []
    while len(node):
        is_inner = below.take(node) != node
        leaf, inner = np.flatnonzero(~is_inner), np.flatnonzero(is_inner)
        values[tree[leaf], code[leaf] << (depth - len(levels))] = value[node[leaf]]
        tree, node, child, code = tree[inner], node[inner], child[inner], code[inner]
        if len(node):
            begins = np.searchsorted(tree, np.arange(len(values) + 1))
            levels.append(Level(begins, place.take(condition.take(node)), child))
        tree, child = tree.repeat(2), np.arange(2 * len(node))
        code, node = (
            (each[:, None] + np.arange(2)).ravel() for each in (2 * code, below.take(node))
        )
        node = settled(node)
    return levels, np.ascontiguousarray(values[:, :: 1 << (depth - len(levels))])


def _one_way(conditions: Conditions, matrix: NDArray[np.float32]) -> Ints:
    """Where all rows go at each condition: 1 below, 2 above, 0 both ways; at last 0, for leaves."""
    least, most = (ends[conditions.feature] for ends in (matrix.min(axis=0), matrix.max(axis=0)))
    return np.append(np.where(least >= conditions.threshold, 2, most < conditions.threshold), 0)


def _bits(
    feature: Ints, threshold: NDArray[np.float32], matrix: NDArray[np.float32], words: int
) -> NDArray[np.uint64]:
    """Whether each row reaches each threshold, sorted by `feature`, `[thresholds, words]`."""
    packed = np.zeros((len(threshold), words * _BYTE), np.uint8)
    ends = np.searchsorted(feature, np.arange(matrix.shape[1] + 1)).tolist()
    for values, begin, end in zip(np.ascontiguousarray(matrix.T), ends, ends[1:], strict=False):
        own = np.packbits(values >= threshold[begin:end, None], axis=1, bitorder="little")
        packed[begin:end, : own.shape[1]] = own
    return packed.view(np.uint64)


def _codes(
    levels: list[Level], trees: range, bits: NDArray[np.uint64], rows: int
) -> NDArray[np.unsignedinteger[Any]]:
    """The turns of each row in each of `trees`, `[trees, rows]`: a bit per level, 1 for above."""
    code: NDArray[np.unsignedinteger[Any]] = np.zeros((len(trees), rows), np.uint8)
    sides = np.full((2, len(trees), bits.shape[1]), ~np.uint64(0))
    before = trees.start
    for depth, level in enumerate(levels):
        begin = level.begins[trees.start : trees.stop + 1]
        own = slice(begin[0], begin[-1])
        place = (level.child[own] >> 1) - before + (level.child[own] & 1) * sides.shape[1]
        reached = sides.reshape(-1, bits.shape[1]).take(place, axis=0, mode="clip")
        sides, before = np.empty((2, *reached.shape), np.uint64), begin[0]
        bits.take(level.condition[own], axis=0, out=sides[1], mode="clip")
        sides[1] &= reached
        if depth + 1 < len(levels):
            np.bitwise_xor(reached, sides[1], out=sides[0])
        turns = np.zeros((len(trees), bits.shape[1]), np.uint64)
        tree = np.flatnonzero(np.diff(begin))
        turns[tree] = np.bitwise_or.reduceat(sides[1], begin[tree] - begin[0], axis=0)
        code = code.astype(np.uint16) if depth == _BYTE else code
        code += code
        code |= np.unpackbits(turns.view(np.uint8), axis=1, count=rows, bitorder="little")
    return code
