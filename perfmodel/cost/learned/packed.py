"""Trees as model directories hold them: a figure and a number per node, and nothing to run.

Nodes lie tree after tree, each level by level with siblings together. So where a node's children
lie, and where a tree ends, follow from which nodes are leaves; what follows cannot contradict.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

import numpy as np

from perfmodel.cost.learned.forest import DEEPEST, Forest, joined

_HEAD = Struct("<IId")
"""Columns of the matrix, nodes, and the start of the sum."""
_LEAF = 255
"""In the place of a figure; there are fewer."""
_NODE_BYTES = 5


def trees_of(booster: Any) -> tuple[Forest, int]:
    """The trees of XGBoost's `Booster`, and of how many columns they are."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    parameters = learner["learner_model_param"]
    trees = [
        {
            "feature": tree["split_indices"],
            "threshold": tree["split_conditions"],
            "below": tree["left_children"],
            "above": tree["right_children"],
            "value": tree["split_conditions"],
        }
        for tree in learner["gradient_booster"]["model"]["trees"]
    ]
    start = float(str(parameters["base_score"]).strip("[]"))
    return joined(trees, start), int(parameters["num_feature"])


def pack(forest: Forest, columns: int) -> bytes:
    """`forest`, of fewer than 255 `columns`, as `unpack` reads it: features of all nodes, one byte
    each, then thresholds and values of leaves, four each (little-endian)."""
    is_leaf = forest.below == np.arange(len(forest.below))
    feature = np.where(is_leaf, _LEAF, forest.of_width(min(columns, _LEAF)).feature)
    number = np.where(is_leaf, forest.value, forest.threshold)
    head = _HEAD.pack(columns, len(feature), forest.start)
    return head + feature.astype(np.uint8).tobytes() + number.astype("<f4").tobytes()


def unpack(raw: bytes, columns: int) -> Forest:
    """The trees that `pack` wrote for so many `columns`; raises `ValueError` for anything else."""
    own, count, start = _HEAD.unpack(raw[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    if not count or len(raw) != _HEAD.size + _NODE_BYTES * count:
        raise ValueError(f"it is of {len(raw)} bytes, which {count} nodes are not")
    if own != columns:
        raise ValueError(f"it is of {own} columns, not of {columns}")
    feature = np.frombuffer(raw, np.uint8, count, _HEAD.size).astype(np.int64)
    number = np.frombuffer(raw, "<f4", count, _HEAD.size + count).astype(np.float32)
    if not (np.isfinite(number).all() and np.isfinite(start)):
        raise ValueError("a number that is not finite")
    is_leaf = feature == _LEAF
    roots, below, depth = _shape(is_leaf)
    return Forest(
        roots=roots,
        feature=np.where(is_leaf, 0, feature),
        threshold=np.where(is_leaf, np.float32(np.nan), number),
        below=below,
        value=np.where(is_leaf, number, np.float32(0.0)),
        depth=depth,
        start=start,
    ).of_width(columns)


def _shape(is_leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """(roots, children below, steps of a walk): a tree ends where each child that a node has is
    there; the first node that is not a root is a child of the first that is not a leaf."""
    place = np.arange(len(is_leaf))
    missing = np.cumsum(np.where(is_leaf, -1, 1))
    lowest = np.minimum.accumulate(np.append(0, missing))
    last = np.flatnonzero(np.diff(lowest))
    if not len(last) or last[-1] != len(is_leaf) - 1:
        raise ValueError("a tree that ends early")
    roots = np.append(0, last[:-1] + 1)
    size = np.diff(np.append(roots, len(is_leaf)))
    inner = np.flatnonzero(~is_leaf)
    before = np.searchsorted(inner, roots)
    of_tree = np.repeat(np.arange(len(roots)), size)[inner]
    below = place.copy()
    below[inner] = roots[of_tree] + 1 + 2 * (np.arange(len(inner)) - before[of_tree])
    return roots, below, _depth(roots, last, inner, before)


def _depth(roots: np.ndarray, last: np.ndarray, inner: np.ndarray, before: np.ndarray) -> int:
    """Of the deepest tree: how far its last node is from its root."""
    depth, node = 0, last
    while (is_child := node > roots).any():
        depth += 1
        if depth > DEEPEST:
            raise ValueError("trees deeper than any that are grown")
        parent = before[is_child] + (node - roots - 1)[is_child] // 2
        node = node.copy()
        node[is_child] = inner[parent]
    return max(depth, 1)
