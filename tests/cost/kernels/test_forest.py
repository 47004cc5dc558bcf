"""Trees as arrays: by hand, by bits as by walks, and nothing that is no tree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.learned.forest import joined, pack, unpack

STUMP = {"feature": [1, 0, 0], "threshold": [0.5, 0.0, 0.0], "below": [1, -1, -1]}
TREES = [
    STUMP | {"above": [2, -1, -1], "value": [0.0, -1.0, 2.0]},
    {"feature": [0], "threshold": [0.0], "below": [-1], "above": [-1], "value": [0.25]},
]


def test_by_hand() -> None:
    forest = joined(TREES, 10.0)
    matrix = np.array([[9.0, 0.4], [9.0, 0.5]], np.float32)
    assert forest.predict(matrix).tolist() == [9.25, 12.25], "below is less than, not at most"
    assert forest.predict(matrix[:0]).shape == (0,)
    assert joined(TREES[1:], 1.0).predict(matrix).tolist() == [1.25] * 2


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_many_rows_as_few(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    trees = []
    for _ in range(5):
        child = [2 * n + 1 if n < 7 and n != 2 else -1 for n in range(15)]  # one side ends early
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
    few = np.concatenate([forest.predict(matrix[row : row + 1]) for row in range(rows)])
    many = forest.predict(np.tile(matrix, (900, 1)))
    np.testing.assert_allclose(many.reshape(900, rows), np.tile(few, (900, 1)), rtol=1e-9)
    assert joined(forest.trees(), 1.0).predict(matrix) == pytest.approx(few, rel=1e-12)
    assert unpack(pack(forest, 4), 4).predict(matrix) == pytest.approx(few, rel=1e-5)


@pytest.mark.parametrize("child", [3, 2**63, 1e30])
def test_a_child_is_a_node_of_its_tree(child: float) -> None:
    with pytest.raises(ValueError, match="points outside"):
        joined([STUMP | {"above": [child, -1, -1], "value": [0.0, 1.0, 2.0]}], 0.0)


def test_nodes_in_a_circle_are_no_tree() -> None:
    circle = STUMP | {"below": [1, 0, -1], "above": [2, 2, -1], "value": [0.0, 1.0, 2.0]}
    with pytest.raises(ValueError, match="in a circle"):
        joined([circle], 0.0)


def test_nodes_that_no_walk_reaches_do_not_count() -> None:
    orphan = {name: [*values, values[-1]] for name, values in (STUMP | TREES[0]).items()}
    forest = joined([orphan, *TREES], 10.0)
    assert forest.predict(np.array([[9.0, 0.4]], np.float32)).tolist() == [8.25]
    assert forest.trees()[0]["below"] == [1, 1, 2], "leaves are their own"
