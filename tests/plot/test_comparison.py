"""Designs side by side as a figure."""

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.plot.bars import comparison_figure

FRAME = {
    "design": ["default", "far", "cannot"],
    "step_us": [1000.0, 3000.0, np.nan],
    "low_us": [900.0, 2500.0, np.nan],
    "high_us": [1200.0, 3500.0, np.nan],
    "why_not": ["", "", "a rank needs too much of the memory"],
}


def test_points_are_steps_and_what_cannot_be_is_said() -> None:
    (axes,) = comparison_figure(FRAME, title="one").axes
    assert axes.lines[0].get_xdata().tolist() == [1.0, 3.0]
    assert "a rank needs too much" in axes.texts[0].get_text()
    assert axes.get_xscale() == "linear"
    assert [text.get_text() for text in axes.get_yticklabels()] == FRAME["design"]


def test_steps_far_apart_are_on_a_logarithmic_axis() -> None:
    far = {**FRAME, "step_us": [1e3, 1e5, np.nan], "high_us": [1.2e3, 2e5, np.nan]}
    (axes,) = comparison_figure(far).axes
    assert axes.get_xscale() == "log"
    assert axes.lines[0].get_xdata().tolist() == [1.0, 100.0]


def test_nothing_that_can_be_is_drawn_all_the_same() -> None:
    none = {**FRAME, **{name: [np.nan] * 3 for name in ("step_us", "low_us", "high_us")}}
    assert len(comparison_figure(none).axes[0].texts) == 3


def test_no_designs_is_an_error() -> None:
    with pytest.raises(UsageError, match="no designs"):
        comparison_figure({"design": []})
