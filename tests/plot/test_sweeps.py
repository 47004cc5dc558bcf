"""Figures of sweeps."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import pareto_figure

ACROSS, UP = np.array([2e7, 1e7, np.nan, 3e7]), np.array([2e-4, 3e-4, 1e-4, 1e-4])


def test_points_of_a_front_have_their_numbers_and_axes_no_power_of_ten() -> None:
    figure = pareto_figure(
        ACROSS, UP, np.array([3, 1]), labels=("samples", "dollars"), names=("0", "1", "2", "3")
    )
    (axes,) = figure.axes
    assert axes.lines[0].get_xdata().tolist() == [1e7, 3e7]
    assert [(each.get_text(), each.xy) for each in axes.texts] == [
        ("1", (1e7, 3e-4)),
        ("3", (3e7, 1e-4)),
    ]
    figure.canvas.draw()
    assert "20,000,000" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert axes.xaxis.get_offset_text().get_text() == ""


def test_a_long_front_has_no_numbers() -> None:
    many = np.arange(13.0)
    figure = pareto_figure(many, -many, np.arange(13), labels=("", ""), names=[""] * 13)
    assert not figure.axes[0].texts


def test_points_without_figures_are_an_error() -> None:
    with pytest.raises(UsageError, match="no point"):
        pareto_figure(
            np.array([np.nan]), np.array([1.0]), np.array([], int), labels=("", ""), names=()
        )
