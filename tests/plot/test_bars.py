"""Stacked bars: widths, totals, what is put together."""

import pytest

from perfmodel.errors import UsageError
from perfmodel.plot import breakdown_figure

MEASURED = {"compute": 600.0, "communication": 300.0, "host_t1": 100.0}
BARS = {"measured": MEASURED, "predicted": MEASURED | {"host_t1": 130.0}, "nothing": {}}


def bars(figure) -> list[tuple[float, float]]:
    return [(patch.get_x(), patch.get_width()) for patch in figure.axes[0].patches]


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_measured_next_to_predicted() -> None:
    figure = breakdown_figure(BARS, title="where")
    assert bars(figure) == [(0, 600), (0, 600), (600, 300), (600, 300), (900, 100), (900, 130)]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["measured", "predicted"]
    assert "1.00 ms" in texts(figure)
    assert "1.03 ms  (+3.0 %)" in texts(figure)
    assert "compute 60 %" in texts(figure)


def test_one_bar_has_its_times_in_the_legend() -> None:
    figure = breakdown_figure({"": {"matmul": 5.0}})
    assert bars(figure) == [(0, 5)]
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["matmul  5.0 us"]


def test_parts_without_time_have_no_line_in_the_legend() -> None:
    figure = breakdown_figure({"a": {"compute": 1e6, "network": 0.0}, "b": {"host": 5.0}})
    legend = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert legend == ["compute", "host (ops and gaps)"]


@pytest.mark.parametrize(
    ("bars", "message"),
    [
        ({}, "no time to draw"),
        ({"a": {}}, "no time to draw"),
        ({"a": {"b": -1.0}}, "0 us or more"),
        ({"a": {"b": float("nan")}}, "0 us or more"),
    ],
)
def test_bad_input(bars: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        breakdown_figure(bars)
