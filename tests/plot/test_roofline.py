"""The roofline."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import roofline_figure


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
    assert y[-1] == pytest.approx(10.0)


def test_roofs_of_one_height_are_one_line_with_all_their_names() -> None:
    frame = {"family": ["matmul"], "intensity": [10.0], "tflop_per_s": [1.0], "time_us": [1.0]}
    peaks = {"matrix": 20.0, "vector": 20.0, "half": 40.0}
    axes = roofline_figure(frame, peaks=peaks, gb_per_s=1000.0).axes[0]
    told = [text.get_text() for text in axes.texts]
    assert told == ["matrix, vector 20 TFLOP/s", "half 40 TFLOP/s"]
    assert len(axes.lines) == 2


def test_nothing_to_draw_is_said() -> None:
    nothing = dict.fromkeys(("family", "intensity", "tflop_per_s", "time_us"), ())
    with pytest.raises(UsageError, match="to draw"):
        roofline_figure(nothing, peaks={}, gb_per_s=1)
