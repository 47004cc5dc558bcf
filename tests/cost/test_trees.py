"""Trees as plain data: what is written is what is read, and nothing that is no tree is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cost import trees
from perfmodel.errors import ModelError

STUMP = json.dumps({"nodeid": 0, "split": "size", "split_condition": 2.0, "yes": 1, "no": 2,
         "children": [{"nodeid": 1, "leaf": -1.0}, {"nodeid": 2, "leaf": 3.0}]})  # fmt: skip
LEAF = json.dumps({"nodeid": 0, "leaf": 0.25})


def test_dumps_are_walked_as_they_read() -> None:
    forest = trees.of_dumps([STUMP, LEAF], 10.0, ["ranks", "size"])
    answers = forest.predict(np.array([[0.0, 1.0], [0.0, 2.0]]))
    assert answers.tolist() == [10.0 - 1.0 + 0.25, 10.0 + 3.0 + 0.25]


def test_what_is_written_is_read() -> None:
    plain = trees.forest_to_dict(trees.of_dumps([LEAF, STUMP], 0.5, ["size"]))
    assert trees.forest_to_dict(trees.forest_from_dict(plain, 1)) == plain
    assert plain["trees"][1]["left"] == [1, 1, 2]


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
    plain = trees.forest_to_dict(trees.of_dumps([STUMP], 0.0, ["size"]))
    plain["trees"][0][name] = values
    with pytest.raises(ModelError, match="trees"):
        trees.forest_from_dict(plain, 1)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "y.json").write_text('{"schema": "s", "features": ["b"]}')
    for name in ("x.json", "missing.json", "y.json"):
        with pytest.raises(ModelError, match=name):
            trees.read_trees(tmp_path / name, "s", ["a"])
