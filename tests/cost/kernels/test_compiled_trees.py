"""Trees walked by Numba, and asked by bits, say what they say walked by NumPy."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel.cost.learned.compiled  # noqa: F401
from perfmodel.cost.learned.forest import Forest, joined

STUMP = {"feature": [1, 0, 0], "threshold": [0.5, 0.0, 0.0], "below": [1, -1, -1]}
TREES = [
    STUMP | {"above": [2, -1, -1], "value": [0.0, -1.0, 2.0]},
    {"feature": [0], "threshold": [0.0], "below": [-1], "above": [-1], "value": [0.25]},
]


def without_numba(forest: Forest, matrix: np.ndarray) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "numba")
        return forest.predict(matrix)


def test_by_hand() -> None:
    forest = joined(TREES, 10.0)
    matrix = np.array([[9.0, 0.4], [9.0, 0.5]], np.float32)
    assert forest.predict(matrix).tolist() == [9.25, 12.25], "below is less than, not at most"


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_as_numpy(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(5):
        inner = 7  # a full tree of depth 3: node n has children 2 n + 1 and 2 n + 2
        child = [2 * n + 1 if n < inner else -1 for n in range(15)]
        trees.append(
            {
                "feature": rng.integers(0, 4, 15).tolist(),
                "threshold": rng.normal(size=15).tolist(),
                "below": child,
                "above": [c + 1 if c > 0 else -1 for c in child],
                "value": rng.normal(size=15).tolist(),
            }
        )
    forest, matrix = joined(trees, 1.0), rng.normal(size=(rows, 4)).astype(np.float32)
    matrix[:, 0] = trees[0]["threshold"][0]  # all rows go one way where this is asked
    walked = without_numba(forest, matrix)
    assert forest.predict(matrix) == pytest.approx(walked, rel=1e-9)
    many = without_numba(forest, np.tile(matrix, (2000, 1)))
    np.testing.assert_allclose(many.reshape(2000, rows), np.tile(walked, (2000, 1)), rtol=1e-9)
    above_all = 1.0 + sum(tree["value"][-1] for tree in trees)
    assert forest.predict(np.full((1, 4), np.inf)) == pytest.approx([above_all], rel=1e-9)


def test_a_node_of_two_parents_makes_no_tree() -> None:
    with pytest.raises(ValueError, match="more than one parent"):
        joined([STUMP | {"above": [1, -1, -1], "value": [0.0, 1.0, 2.0]}], 0.0)


@pytest.mark.parametrize("child", [3, 2**63, 1e30])
def test_a_child_is_a_node_of_its_tree(child: float) -> None:
    with pytest.raises(ValueError, match="points outside"):
        joined([STUMP | {"above": [child, -1, -1], "value": [0.0, 1.0, 2.0]}], 0.0)


def test_nodes_that_no_walk_reaches_do_not_count() -> None:
    orphan = {name: [*values, values[-1]] for name, values in (STUMP | TREES[0]).items()}
    forest = joined([orphan, *TREES], 10.0)
    assert forest.predict(np.array([[9.0, 0.4]], np.float32)).tolist() == [8.25]
    assert forest.above.tolist() == [2, 1, 2, 5, 4, 5, 6], "leaves are their own"


def test_one_row_as_among_many() -> None:
    rng = np.random.default_rng(7)
    trees = [STUMP | {"above": [2, -1, -1], "value": rng.normal(size=3)} for _ in range(200)]
    forest, matrix = joined(trees, 1.0), rng.normal(size=(100, 2)).astype(np.float32)
    alone = [forest.predict(matrix[row : row + 1])[0] for row in range(len(matrix))]
    assert alone == pytest.approx(forest.predict(matrix).tolist(), rel=1e-9)


def test_rows_of_several_blocks_are_in_their_order() -> None:
    forest = joined(TREES, 10.0)
    matrix = np.tile(np.array([[9.0, 0.4], [9.0, 0.5], [9.0, 0.6]], np.float32), (300, 1))
    assert without_numba(forest, matrix).tolist() == [9.25, 12.25, 12.25] * 300
    many = np.tile(matrix, (20, 1))
    assert without_numba(forest, many) == pytest.approx(np.tile([9.25, 12.25, 12.25], 6000))
    assert without_numba(forest, matrix[:0]).shape == (0,)
