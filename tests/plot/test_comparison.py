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
    "hbm_gb": [10.0, 1.0, np.nan],
    "host_gb": [np.nan, 50.0, np.nan],
    "kwh_per_million_samples": [0.1, 0.2, np.nan],
    "usd_per_million_samples": [np.nan] * 3,
}


def test_bars_are_steps_memory_and_energy() -> None:
    figure = comparison_figure(FRAME, title="one")
    steps, memory, energy = figure.axes
    assert [bar.get_width() for bar in steps.patches] == [1.0, 3.0]
    assert [bar.get_width() for bar in memory.patches] == [10, 1, 0, 0, 50, 0]
    assert [bar.get_width() for bar in energy.patches] == [100, 200]
    assert "a rank needs too much" in steps.texts[0].get_text()
    legend = memory.get_legend()
    assert [each.get_text() for each in legend.get_texts()] == ["hbm, per rank", "host, per node"]
    assert steps.get_xscale() == "linear"
    assert [text.get_text() for text in steps.get_yticklabels()] == FRAME["design"]


def test_values_far_apart_are_points_on_a_logarithmic_axis() -> None:
    far = {**FRAME, "step_us": [1e3, 1e5, np.nan], "high_us": [1.2e3, 2e5, np.nan]}
    steps, _, energy = comparison_figure(far).axes
    assert (steps.get_xscale(), energy.get_xscale()) == ("log", "linear")
    assert not steps.patches
    assert steps.lines[0].get_xdata().tolist() == [1.0, 100.0]


def test_nothing_that_can_be_is_drawn_all_the_same() -> None:
    none = {**FRAME, **{name: [np.nan] * 3 for name in ("step_us", "low_us", "high_us", "hbm_gb")}}
    assert len(comparison_figure(none).axes[0].texts) == 3


def test_no_designs_is_an_error() -> None:
    with pytest.raises(UsageError, match="no designs"):
        comparison_figure({"design": []})
