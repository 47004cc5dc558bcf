"""Boosted trees as plain arrays, walked with NumPy: only fits load XGBoost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints

DEEPEST = 12
"""Levels; `fit kernels` makes eight, and leaves double with each."""
_HEAD = Struct("<IIId")
"""Columns of the matrix, trees, depth, and the start of the sum."""
_MANY_ROWS = 600
"""Rows from which bits are faster than walks."""
_FEW_AT_ONCE, _ROWS_AT_ONCE, _WORDS_AT_ONCE = 64, 16384, 32768
"""What a processor's cache holds, of walks and of bits."""


@dataclass(frozen=True)
class Forest:
    """Trees padded to one depth, as heaps: the children of node `i` are `2 i + 1` for values below
    its threshold and `2 i + 2` for others. Below where a tree ends, thresholds are infinite."""

    feature: NDArray[np.int32]
    """`[trees, 2^depth - 1]`."""
    threshold: NDArray[np.float32]
    value: NDArray[np.float32]
    """Of leaves, `[trees, 2^depth]`."""
    start: float

    @property
    def depth(self) -> int:
        """Steps of a walk."""
        return int(self.value.shape[1]).bit_length() - 1

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values."""
        single = np.ascontiguousarray(matrix, np.float32)
        few = len(single) < _MANY_ROWS
        found, at_once = (self._walked, _FEW_AT_ONCE) if few else (self._by_bits, _ROWS_AT_ONCE)
        blocks = [found(single[at : at + at_once]) for at in range(0, len(single), at_once)]
        return self.start + np.concatenate(blocks or [np.zeros(0)])

    def _walked(self, matrix: NDArray[np.float32]) -> Floats:
        """All rows through all trees, level by level; `clip`, which never has to, spares checks."""
        flat, row = matrix.ravel(), np.arange(len(matrix), dtype=np.int32) * matrix.shape[1]
        trees, inner = self.feature.shape
        tree, at = np.arange(trees, dtype=np.int32)[:, None], np.zeros((1, len(matrix)), np.int32)
        for _ in range(self.depth):
            node = at + inner * tree
            values = flat.take(self.feature.take(node, mode="clip") + row, mode="clip")
            at = 2 * at + 1 + (values >= self.threshold.take(node, mode="clip"))
        leaves = self.value.take(at + (inner + 1) * tree - inner, mode="clip")
        return np.asarray(leaves.sum(axis=0, dtype=np.float64))

    @cached_property
    def _conditions(self) -> tuple[Ints, NDArray[np.float32], Ints]:
        """(feature and threshold of each distinct condition, sorted; that of each node)."""
        both = np.stack([self.feature.ravel(), self.threshold.ravel()], axis=1)
        known, of_node = np.unique(both.view(np.complex128).ravel(), return_inverse=True)
        feature, threshold = known.real.astype(np.int64), known.imag.astype(np.float32)
        return feature, threshold, of_node.reshape(self.feature.shape)

    def _by_bits(self, matrix: NDArray[np.float32]) -> Floats:
        """Each condition is compared with every row once; which rows reach a node is then a matter
        of words of 64 rows, and a row looks up only the leaf that it ends at."""
        feature, threshold, condition = self._conditions
        rows, words = len(matrix), -(-len(matrix) // 64)
        bits = np.zeros((len(feature), 8 * words), np.uint8)
        ends = np.searchsorted(feature, np.arange(matrix.shape[1] + 1)).tolist()
        for values, begin, end in zip(np.ascontiguousarray(matrix.T), ends, ends[1:], strict=False):
            is_above = np.packbits(values >= threshold[begin:end, None], axis=1, bitorder="little")
            bits[begin:end, : is_above.shape[1]] = is_above
        total, trees = np.zeros(rows), max(1, _WORDS_AT_ONCE // (words * self.value.shape[1]))
        for begin in range(0, len(condition), trees):
            own = slice(begin, begin + trees)
            codes = self._codes(condition[own], bits.view(np.uint64), rows)
            for leaves, code in zip(self.value[own], codes, strict=True):
                total += leaves.take(code, mode="clip")
        return total

    def _codes(self, condition: Ints, bits: NDArray[np.uint64], rows: int) -> NDArray[np.uint16]:
        """The leaf of each row in each tree: its turns, a bit per level."""
        code = np.zeros((len(condition), rows), np.uint16)
        reached = np.full((len(condition), 1, bits.shape[1]), ~np.uint64(0))
        for level in range(self.depth):
            first = (1 << level) - 1
            own = condition[:, first : 2 * first + 1]
            sides = np.empty((*own.shape, 2, bits.shape[1]), np.uint64)
            above = bits.take(own, axis=0, mode="clip")
            above &= reached
            turns = np.bitwise_or.reduce(above, axis=1).view(np.uint8)
            code += code
            code |= np.unpackbits(turns, axis=1, count=rows, bitorder="little")
            if level + 1 < self.depth:
                np.bitwise_xor(reached, above, out=sides[:, :, 0])
                sides[:, :, 1] = above
                reached = sides.reshape(len(condition), -1, bits.shape[1])
        return code


def of_booster(booster: Any) -> tuple[Forest, int]:
    """The trees of XGBoost's `Booster`, and of how many columns they are."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    inner: list[tuple[int, int, int, float]] = []  # tree, place in the heap, feature, threshold
    leaves: list[tuple[int, int, float]] = []
    trees = learner["gradient_booster"]["model"]["trees"]
    for at, tree in enumerate(trees):
        places = [(0, 0)]
        for node, place in places:  # children are appended on the way
            below, number = tree["left_children"][node], tree["split_conditions"][node]
            if below < 0:
                leaves.append((at, place, number))
                continue
            inner.append((at, place, tree["split_indices"][node], number))
            places += [(below, 2 * place + 1), (tree["right_children"][node], 2 * place + 2)]
    nodes = 0
    while nodes <= max((place for _, place, *_ in inner), default=-1):
        nodes = 2 * nodes + 1
    feature = np.zeros((len(trees), nodes), np.int32)
    threshold = np.full(feature.shape, np.inf, np.float32)
    value = np.zeros((len(trees), nodes + 1), np.float32)
    for at, place, column, number in inner:
        feature[at, place], threshold[at, place] = column, number
    for at, place, number in leaves:
        while place < nodes:
            place = 2 * place + 1
        value[at, place - nodes] = number
    parameters = learner["learner_model_param"]
    start = float(str(parameters["base_score"]).strip("[]"))
    return Forest(feature, threshold, value, start), int(parameters["num_feature"])


def pack(forest: Forest, columns: int) -> bytes:
    """`forest`, of at most 256 `columns`, as `unpack` reads it: features, thresholds and leaves of
    all trees, one, four and four bytes each (little-endian)."""
    head = _HEAD.pack(columns, len(forest.feature), forest.depth, forest.start)
    numbers = (each.astype("<f4").tobytes() for each in (forest.threshold, forest.value))
    return b"".join([head, forest.feature.astype(np.uint8).tobytes(), *numbers])


def unpack(raw: bytes, columns: int) -> Forest:
    """The trees that `pack` wrote for so many `columns`; raises `ValueError` for anything else."""
    own, trees, depth, start = _HEAD.unpack(raw[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    leaves = 1 << min(depth, DEEPEST)
    inner, before = trees * (leaves - 1), _HEAD.size
    if depth > DEEPEST or len(raw) != before + 5 * inner + 4 * trees * leaves or not trees:
        raise ValueError(f"{len(raw)} bytes are not {trees} trees of {depth} levels")
    if own != columns:
        raise ValueError(f"it is of {own} columns, not of {columns}")
    feature = np.frombuffer(raw, np.uint8, inner, before).astype(np.int32)
    threshold = np.frombuffer(raw, "<f4", inner, before + inner).astype(np.float32)
    value = np.frombuffer(raw, "<f4", trees * leaves, before + 5 * inner).astype(np.float32)
    if not np.isfinite([start, *value]).all() or np.isnan(threshold).any():
        raise ValueError("a number that is not finite")
    if feature.max(initial=-1) >= columns:
        raise ValueError(f"a node asks for a column that is none of {columns}")
    shape = trees, leaves - 1
    value = value.reshape(trees, leaves)
    return Forest(feature.reshape(shape), threshold.reshape(shape), value, start)
