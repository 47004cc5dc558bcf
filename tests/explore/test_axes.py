"""Points of a sweep: grids, tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UsageError
from perfmodel.explore.axes import GRID, LOG, Range, Space
from perfmodel.explore.result import pareto
from perfmodel.explore.spec import load_spec


def test_a_grid_has_every_pair_once_the_last_axis_fastest() -> None:
    space = Space({"a": (1, 2, 3), "b": ("x", "y")}, GRID)
    points = space.points(0, len(space))
    rows = list(zip(points.column("a"), points.column("b"), strict=True))
    assert rows == [(1, "x"), (1, "y"), (2, "x"), (2, "y"), (3, "x"), (3, "y")]
    part = space.points(2, 5)
    assert list(zip(part.column("a"), part.column("b"), strict=True)) == rows[2:5]


def test_ranges() -> None:
    assert Range(1.0, 3.0, 3).levels() == [1.0, 2.0, 3.0]
    assert Range(1.0, 100.0, 3, LOG).levels() == pytest.approx([1.0, 10.0, 100.0])
    assert Range(1, 4, 7, whole=True).levels() == [1, 2, 3, 4], "no whole number twice"


def test_groups_are_points_that_share_values() -> None:
    points = Space({"a": (1, 2), "b": ("x", "y")}, GRID).points(0, 4)
    keys, _, group = points.groups(("b",))
    assert [keys[at] for at in group.tolist()] == [("x",), ("y",), ("x",), ("y",)]
    assert points.groups(())[0] == [()]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_the_front_is_what_none_beats(pairs: list[tuple[int, int]]) -> None:
    found = pareto(np.array(pairs, float))
    beaten = {
        pair
        for pair in pairs
        if any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in pairs)
    }
    assert {pairs[at] for at in found.tolist()} == set(pairs) - beaten
    assert len({pairs[at] for at in found.tolist()}) == len(found)


def test_a_front_without_what_is_not_known() -> None:
    assert pareto(np.array([[np.nan, 1.0], [2.0, 2.0]])).tolist() == [1]


BASE = 'trace = "t.json"\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected one of trace, workload"),
        (BASE + "axis = 1", "unknown key axis"),
        (BASE + "[axes]\nhardware = []", "no points"),
        (BASE + '[axes]\nhardware = "a"', "a list of values, or low, high"),
        (BASE + "[axes]\ndevice.tdp_w = {low = 2, high = 1, steps = 3}", "low the smaller"),
        (BASE + "[axes]\ndevice.tdp_w = {low = 1, high = 2}", "steps: expected a whole number"),
        (BASE + "[axes]\na = {low = 0, high = 2, steps = 3, scale = 'log'}", "low above 0"),
        (BASE + "[axes]\na = {low = 0, high = 2, step = 3}", "unknown key step"),
        (BASE + "[axes]\nbatch = [{a = 1}]", r"axes\.batch: expected numbers, texts or lists"),
        (BASE + "[axes]\nbatch = [[2020-01-01]]", r"axes\.batch: .*got 2020-01-01"),
        (BASE + 'sample = "random"', 'expected one of "grid"'),
        (BASE + 'table = "none.csv"', "none.csv: cannot be read"),
        (BASE + 'objective = ["speed"]', "objective 'speed': expected one of step_us"),
        ("[[", "not valid TOML"),
    ],
)
def test_what_a_spec_cannot_say(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=expected) as error:
        load_spec(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_gives_its_rows(tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("hardware,device.tdp_w\nt4,70\nl4,72.5\n")
    path = tmp_path / "spec.toml"
    path.write_text(BASE + 'table = "points.csv"')
    spec = load_spec(path)
    assert spec.space.points(1, 2).at(0) == {"hardware": "l4", "device.tdp_w": 72.5}
    assert spec.input == str(tmp_path / "t.json")
