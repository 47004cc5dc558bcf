"""Boosted trees as plain arrays, walked with NumPy: only fits load XGBoost.

Large ensembles are packed into bytes; small ones, of collectives and adapters, are plain JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import read_bytes
from perfmodel.errors import ModelError, PerfmodelError

DEEPEST = 12
_HEAD = Struct("<IIId")
"""Columns of the matrix, trees, depth, and the start of the sum."""
_MANY_ROWS = 600
"""Rows from which bits are faster than walks."""
_ROWS_AT_ONCE, _WORDS_AT_ONCE = 16384, 32768
"""What a processor's cache holds."""


@dataclass(frozen=True)
class Forest:
    """Trees padded to one depth, as heaps: the children of node `i` are `2 i + 1` for values below
    its threshold and `2 i + 2` for others. Below where a tree ends, thresholds are infinite."""

    feature: Ints
    """`[trees, 2^depth - 1]`."""
    threshold: NDArray[np.float32]
    value: NDArray[np.floating[Any]]
    """Of leaves, `[trees, 2^depth]`."""
    start: float

    @property
    def depth(self) -> int:
        """Steps of a walk."""
        return int(self.value.shape[1]).bit_length() - 1

    def of_width(self, columns: int) -> Forest:
        """Itself; raises `ValueError` where a node asks for another than so many columns."""
        if self.feature.min(initial=0) < 0 or self.feature.max(initial=-1) >= columns:
            raise ValueError(f"a node asks for a column that is none of {columns}")
        return self

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values."""
        single = np.ascontiguousarray(matrix, np.float32)
        found = self._by_bits if len(single) >= _MANY_ROWS else self._walked
        begins = range(0, len(single), _ROWS_AT_ONCE)
        blocks = [found(single[begin : begin + _ROWS_AT_ONCE]) for begin in begins]
        return self.start + np.concatenate(blocks or [np.zeros(0)])

    def _walked(self, matrix: NDArray[np.float32]) -> Floats:
        """All rows through all trees, level by level; `clip`, which never has to, spares checks."""
        flat, row = matrix.ravel(), np.arange(len(matrix)) * matrix.shape[1]
        trees, inner = self.feature.shape
        tree, at = np.arange(trees)[:, None], np.zeros((1, len(matrix)), np.int64)
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

    def trees(self) -> list[dict[str, list[float]]]:
        """Each tree without padding, level by level, as `joined` reads it."""
        columns = (each.tolist() for each in (self.feature, self.threshold, self.value))
        return [_compact(*each) for each in zip(*columns, strict=True)]


COLUMNS = ("feature", "threshold", "below", "above", "value")


def _compact(
    feature: list[int], threshold: list[float], value: list[float]
) -> dict[str, list[float]]:
    places, rows = [0], []
    for here, place in enumerate(places):  # children are appended on the way
        if place < len(feature) and threshold[place] < np.inf:
            rows.append((feature[place], threshold[place], len(places), len(places) + 1, 0.0))
            places += [2 * place + 1, 2 * place + 2]
        else:
            while place < len(feature):
                place = 2 * place + 1
            rows.append((0, 0.0, here, here, value[place - len(feature)]))
    return dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))


def joined(trees: Sequence[Mapping[str, Any]], start: float) -> Forest:
    """Trees of one array per name of `COLUMNS`, children counted from each tree's first node.

    A leaf's children are itself or negative. Raises `ValueError` for nodes that are no tree, and
    for numbers that are not finite.
    """
    columns = {name: _column([tree[name] for tree in trees]) for name in COLUMNS}
    sizes = np.array([len(tree["value"]) for tree in trees], np.int64)
    if any([len(tree[name]) for tree in trees] != sizes.tolist() for name in COLUMNS):
        raise ValueError("columns of different lengths")
    if not sizes.all() or not np.isfinite(start):
        raise ValueError("a tree without nodes, or a start that is no number")
    roots = np.cumsum(sizes) - sizes
    first, own = np.repeat(roots, sizes), np.arange(int(sizes.sum()))
    below, above = (
        np.clip(columns[name], -1, len(own)).astype(np.int64) + first for name in COLUMNS[2:4]
    )
    is_leaf, ends = ((child < first) | (child == own) for child in (below, above))
    last = first + np.repeat(sizes, sizes)
    if (is_leaf != ends).any() or ((np.maximum(below, above) >= last) & ~is_leaf).any():
        raise ValueError("a node with one child, or one that points outside of its tree")
    none = len(own)  # a leaf of 0, below every leaf on the side that no row takes
    is_leaf = np.append(is_leaf, True)
    node = roots[:, None]
    levels: list[tuple[Ints, Floats]] = []
    while not is_leaf[node].all():
        if len(levels) == DEEPEST:
            raise ValueError("trees deeper than any that are grown, or nodes in a circle")
        inner, known = ~is_leaf[node], np.minimum(node, none - 1)
        feature = np.where(inner, columns["feature"][known], 0)
        levels.append((feature, np.where(inner, columns["threshold"][known], np.inf)))
        children = np.where(inner, below[known], node), np.where(inner, above[known], none)
        node = np.stack(children, axis=2).reshape(len(trees), -1)
    empty = np.zeros((len(trees), 0))
    feature, threshold = (
        np.concatenate([empty, *(level[at] for level in levels)], axis=1) for at in (0, 1)
    )
    value = np.append(columns["value"], 0.0)[node]
    return Forest(feature.astype(np.int64), threshold.astype(np.float32), value, start)


def _column(trees: Sequence[Any]) -> NDArray[Any]:
    """The nodes of all trees, one number each, that single precision holds."""
    values = np.concatenate([np.asarray(nodes) for nodes in trees])
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ValueError("nodes that are no numbers")
    if not (np.abs(values.astype(np.float64)) <= np.finfo(np.float32).max).all():
        raise ValueError("a node with a number that is not finite")
    return values


def of_booster(booster: Any) -> tuple[Forest, int]:
    """The trees of XGBoost's `Booster`, and of how many columns they are."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    parameters = learner["learner_model_param"]
    names = ("split_indices", "split_conditions", "left_children", "right_children")
    trees = [
        dict(zip(COLUMNS, (tree[name] for name in (*names, "split_conditions")), strict=True))
        for tree in learner["gradient_booster"]["model"]["trees"]
    ]
    start = float(str(parameters["base_score"]).strip("[]"))
    return joined(trees, start), int(parameters["num_feature"])


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
    feature = np.frombuffer(raw, np.uint8, inner, before).astype(np.int64)
    threshold = np.frombuffer(raw, "<f4", inner, before + inner).astype(np.float32)
    value = np.frombuffer(raw, "<f4", trees * leaves, before + 5 * inner).astype(np.float32)
    if not np.isfinite([start, *value]).all() or np.isnan(threshold).any():
        raise ValueError("a number that is not finite")
    shape = trees, leaves - 1
    return Forest(
        feature.reshape(shape), threshold.reshape(shape), value.reshape(trees, leaves), start
    ).of_width(columns)


_STORED = {
    "column": "feature",
    "threshold": "threshold",
    "left": "below",
    "right": "above",
    "value": "value",
}
_MAX_BYTES = 32_000_000


def forest_from_dict(content: Mapping[str, Any], columns: int) -> Forest:
    """From `forest_to_dict`; raises `ModelError` for anything else."""
    try:
        trees = [{own: tree[name] for name, own in _STORED.items()} for tree in content["trees"]]
        return joined(trees, float(content["base"])).of_width(columns)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ModelError(f"trees: cannot be read: {error!r}") from None


def forest_to_dict(forest: Forest) -> dict[str, Any]:
    """Plain data, one entry per tree."""

    def plain(values: list[float]) -> list[float]:
        return [int(each) if float(each).is_integer() else round(float(each), 7) for each in values]

    trees = [{name: plain(tree[own]) for name, own in _STORED.items()} for tree in forest.trees()]
    return {"base": forest.start, "depth": forest.depth, "trees": trees}


def read_document(path: Path, schema: str) -> dict[str, Any]:
    """The JSON object of that schema in a file; raises `ModelError` that names the file."""
    try:
        document = json.loads(read_bytes(path, max_bytes=_MAX_BYTES))
    except PerfmodelError as error:
        raise ModelError(str(error)) from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ModelError(f"{path}: expected a file of schema {schema}")
    return document
