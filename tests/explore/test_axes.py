"""Points of a sweep: grids, tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UsageError
from perfmodel.explore.axes import Points
from perfmodel.explore.result import pareto
from perfmodel.explore.spec import load_spec


def test_a_grid_has_every_pair_once_the_last_axis_fastest() -> None:
    points = Points.grid({"a": (1, 2, 3), "b": ("x", "y")})
    rows = list(zip(points.column("a"), points.column("b"), strict=True))
    assert rows == [(1, "x"), (1, "y"), (2, "x"), (2, "y"), (3, "x"), (3, "y")]
    part = points.take(np.arange(2, 5))
    assert list(zip(part.column("a"), part.column("b"), strict=True)) == rows[2:5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("low = 1.0, high = 3.0, steps = 3", [1.0, 2.0, 3.0]),
        ("low = 1.0, high = 100.0, steps = 3, scale = 'log'", [1.0, 10.0, 100.0]),
        ("low = 1, high = 4, steps = 7", [1, 2, 3, 4]),  # no whole number twice
    ],
)
def test_ranges(tmp_path: Path, text: str, expected: list[float]) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(f"{BASE}[axes]\na = {{ {text} }}")
    found = load_spec(path).points.column("a")
    assert found == pytest.approx(expected)
    assert {type(each) for each in found} == {type(each) for each in expected}


def test_a_grid_has_a_limit() -> None:
    with pytest.raises(UsageError, match="16,000,000 points: expected at most 10,000,000"):
        Points.grid({"a": tuple(range(4000)), "b": tuple(range(4000))})


def test_groups_are_points_that_share_values() -> None:
    points = Points.grid({"a": (1, 2), "b": ("x", "y")})
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
        (BASE + "[axes]\ndevice.tdp_w = {low = 1, high = 2}", "steps is missing"),
        (BASE + "[axes]\na = {low = 0, high = 2, steps = 3, scale = 'log'}", "low above 0"),
        (BASE + "[axes]\na = {low = 0, high = 2, step = 3}", "unknown key step"),
        (BASE + "[axes]\nbatch = [{a = 1}]", r"axes\.batch: expected numbers, texts or lists"),
        (BASE + "[axes]\nbatch = [[2020-01-01]]", r"axes\.batch: .*got 2020-01-01"),
        (BASE + "[axes]\na = {low = 0, high = 2, steps = 20_000_000}", "from 1 to 1e\\+07"),
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
    assert spec.points.at(1) == {"hardware": "l4", "device.tdp_w": 72.5}
    assert spec.trace == str(tmp_path / "t.json")
