"""Scatter of errors, and the roofline."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import errors_figure, roofline_figure

ERRORS = {
    "group": ["add", "mm", "mm"],
    "measured_us": [10.0, 100.0, 1000.0],
    "predicted_us": [20.0, 100.0, 500.0],
    "low_us": [12.0, 80.0, 250.0],
    "high_us": [30.0, 120.0, 2000.0],
}


def test_a_point_is_the_ratio_and_the_title_counts_the_intervals() -> None:
    """The first interval, 1.2 to 3 times what was measured, misses; the other two do not."""
    axes = errors_figure(ERRORS, title="Two ops").axes[0]
    points = np.concatenate([each.get_offsets() for each in axes.collections[2:]])
    assert sorted(points.tolist()) == [[10.0, 2.0], [100.0, 1.0], [1000.0, 0.5]]
    assert axes.get_title(loc="left") == "Two ops; 67% within the interval"


def test_many_rows_are_thinned() -> None:
    many = {name: values * 2000 for name, values in ERRORS.items()}
    axes = errors_figure(many).axes[0]
    assert sum(len(each.get_offsets()) for each in axes.collections[2:]) == 2000


def test_a_roof_bends_where_memory_and_computing_meet() -> None:
    """1,000 GB/s and 10 TFLOP/s meet at 10 FLOP per byte."""
    frame = {
        "family": ["matmul", "vector"],
        "intensity": [100.0, 0.1],
        "tflop_per_s": [8.0, 0.09],
        "time_us": [5.0, 1.0],
    }
    axes = roofline_figure(frame, peaks={"fp32": 10.0}, gb_per_s=1000.0).axes[0]
    x, y = axes.lines[0].get_data()
    assert y[np.searchsorted(x, 1.0)] == pytest.approx(x[np.searchsorted(x, 1.0)])
    assert y[-1] == 10.0


def test_roofs_of_one_height_are_one_line_with_all_their_names() -> None:
    frame = {"family": ["matmul"], "intensity": [10.0], "tflop_per_s": [1.0], "time_us": [1.0]}
    peaks = {"matrix": 20.0, "vector": 20.0, "half": 40.0}
    axes = roofline_figure(frame, peaks=peaks, gb_per_s=1000.0).axes[0]
    told = [text.get_text() for text in axes.texts]
    assert told == ["matrix, vector 20 TFLOP/s", "half 40 TFLOP/s"]
    assert len(axes.lines) == 2


@pytest.mark.parametrize(
    "draw", [errors_figure, lambda f: roofline_figure(f, peaks={}, gb_per_s=1)]
)
def test_nothing_to_draw_is_said(draw: object) -> None:
    nothing: dict[str, list[object]] = {name: [] for name in (*ERRORS, "family", "intensity")}
    nothing |= {"tflop_per_s": [], "time_us": []}
    with pytest.raises(UsageError, match="to draw"):
        draw(nothing)  # type: ignore[operator]
