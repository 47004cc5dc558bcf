"""Figures of shares over sizes."""

from __future__ import annotations

import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import shares_figure

SHARES = {"name": ["a", "a", "b"], "size": [1, 10, 5], "share": [0.2, 0.9, 0.5]}


def test_a_line_per_name_in_percent() -> None:
    (axes,) = shares_figure(SHARES, size="rows", share="lookups").axes
    first, second = axes.lines
    assert list(first.get_xdata()) == [1, 10]
    assert list(first.get_ydata()) == pytest.approx([20, 90])
    assert list(second.get_ydata()) == pytest.approx([50])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rows", "lookups (%)")
    assert axes.get_xscale() == "log"


def test_no_shares_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no shares"):
        shares_figure({name: [] for name in SHARES}, size="rows", share="lookups")
