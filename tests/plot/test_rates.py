"""Figures of training rates over devices."""

from __future__ import annotations

import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import rates_figure

RATES = {
    "group": ["dlrm", "dlrm", "dcn"],
    "device": ["h100", "h100", "a100"],
    "devices": [16, 8, 8],
    "published": [4e6, 2e6, 1e6],
    "predicted": [5e6, 2.5e6, 1.5e6],
}


def test_groups_get_axes_and_devices_lines_sorted_by_count() -> None:
    """A pair of axes per group; predicted rates joined from few devices to many, in millions."""
    first, second = rates_figure(RATES).axes
    assert [axes.get_title("left") for axes in (first, second)] == ["dlrm", "dcn"]
    (line,) = first.lines
    assert list(line.get_xdata()) == [8, 16]
    assert list(line.get_ydata()) == pytest.approx([2.5, 5])
    (points,) = first.collections
    assert points.get_offsets().tolist() == [[8, 2], [16, 4]]
    assert first.get_yscale() == second.get_xscale() == "log"


def test_a_line_joins_the_fastest_of_as_many_devices() -> None:
    """One node of eight and two of four: the slower has a ring off the line."""
    two_of_four = {"device": "h100", "devices": 8, "published": 1e6, "predicted": 2e6}
    rates = {name: [*RATES[name], two_of_four.get(name, "dlrm")] for name in RATES}
    line, rest = rates_figure(rates).axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([2.5, 5])
    assert list(rest.get_ydata()) == pytest.approx([2])


def test_published_points_are_named_where_there_are_some() -> None:
    """A configuration that nobody measured has a ring alone."""
    unpublished = {**RATES, "published": [4e6, 2e6, float("nan")]}
    titles = [axes.get_legend().get_title().get_text() for axes in rates_figure(unpublished).axes]
    assert ["published" in title for title in titles] == [True, False]


def test_no_rates_are_a_usage_error() -> None:
    """An empty frame says so instead of drawing empty axes."""
    with pytest.raises(UsageError, match="no rates"):
        rates_figure({name: [] for name in RATES})
