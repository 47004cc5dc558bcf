"""Curves over an axis, and their bands."""

from __future__ import annotations

import pytest

from perfmodel.errors import UsageError
from perfmodel.plot.charts import curves_figure

FRAME = {"size": [4.0, 1.0, 2.0, 1.0], "time": [1.0, 3.0, 2.0, 5.0], "name": ["a", "a", "a", "b"]}


def test_a_curve_per_name_in_order_of_x() -> None:
    figure = curves_figure(FRAME, "size", "time", "name", labels=("GB", "us"), log="x")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.lines[0].get_xdata().tolist() == [1.0, 2.0, 4.0]
    assert axes.lines[0].get_ydata().tolist() == [3.0, 2.0, 1.0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes.get_xlabel() == "GB"


def test_few_sizes_are_the_ticks_and_a_heading_says_what_the_names_are() -> None:
    figure = curves_figure(
        FRAME, "size", "time", "name", labels=("GB", "us"), legend="kept by", log="x"
    )
    (axes,) = figure.axes
    assert axes.get_xticks().tolist() == [1.0, 2.0, 4.0]
    assert axes.get_legend().get_title().get_text() == "kept by"


def test_nothing_to_draw() -> None:
    with pytest.raises(UsageError, match="no curve"):
        curves_figure({"x": [], "y": [], "n": []}, "x", "y", "n", labels=("", ""))
