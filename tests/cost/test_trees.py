"""Trees as plain data: what is written is what is read, and nothing that is no tree is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.cost.learned import forest as trees
from perfmodel.errors import ModelError

STUMP = {"column": [0, 0, 0], "threshold": [2.0, 0, 0], "left": [1, 1, 2], "right": [2, 1, 2],
         "value": [0, -1.0, 3.0]}  # fmt: skip
LEAF = {"column": [0], "threshold": [0], "left": [0], "right": [0], "value": [0.25]}


def test_what_is_written_is_read() -> None:
    forest = trees.forest_from_dict({"base": 10.0, "trees": [STUMP, LEAF]}, 2)
    answers = forest.predict(np.array([[1.0, 0.0], [2.0, 0.0]]))
    assert answers.tolist() == [10.0 - 1.0 + 0.25, 10.0 + 3.0 + 0.25]
    plain = trees.forest_to_dict(forest)
    assert trees.forest_to_dict(trees.forest_from_dict(plain, 1)) == plain
    assert plain["trees"][0]["left"] == [1, 1, 2]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("left", [1, 1, 7]),
        ("column", [4, 0, 0]),
        ("value", ["a", "b", "c"]),
        ("value", [0.0, float("nan"), 0.0]),
    ],
)
def test_what_is_no_tree_is_an_error(name: str, values: list) -> None:
    plain = {"base": 0.0, "trees": [{**STUMP, name: values}]}
    with pytest.raises(ModelError, match="trees"):
        trees.forest_from_dict(plain, 1)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "y.json").write_text('{"schema": "t"}')
    for name in ("x.json", "missing.json", "y.json"):
        with pytest.raises(ModelError, match=name):
            trees.read_document(tmp_path / name, "s")
