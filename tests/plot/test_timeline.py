"""The timeline figure: what stands where, and in which colour."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from perfmodel.errors import UsageError
from perfmodel.plot import timeline_figure
from perfmodel.plot.style import CAUSE_COLOURS, KIND_COLOURS

FRAME = {
    "resource": ["0/main", "0/main", "0/gpu0/stream10", "0/gpu0/stream7", "0/main"],
    "label": ["aten::linear", "cudaLaunchKernel", "k", "void n::k<1>(int)", "outside"],
    "kind": ["host", "launch", "kernel", "kernel", "host"],
    "scope": ["host", "host", "compute", "compute", "host"],
    "start_us": [0.0, 40.0, 50.0, 60.0, 900.0],
    "end_us": [40.0, 50.0, 60.0, 110.0, 950.0],
}
IDLE = {"cause": ["host_t1"], "start_us": [10.0], "end_us": [60.0]}
PATH = {
    "resource": ["0/main", "0/gpu0/stream7"],
    "cause": ["host_t1", "compute"],
    "start_us": [10.0, 60.0],
    "end_us": [60.0, 110.0],
}


def areas(figure, colour: str) -> float:
    """Area of all polygons of a colour, in microseconds times lanes."""
    total = 0.0
    for collection in figure.axes[0].collections:
        if not isinstance(collection, PolyCollection):
            continue
        for path, face in zip(collection.get_paths(), collection.get_facecolors(), strict=True):
            if to_hex(face) == colour.lower():
                x, y = path.vertices.T
                total += abs((x[:-1] * y[1:] - x[1:] * y[:-1]).sum()) / 2
    return total


def test_lanes_threads_above_streams_by_number() -> None:
    figure = timeline_figure(FRAME, idle=IDLE, path=PATH, start_us=10, end_us=110, title="t")
    axes = figure.axes[0]
    names = [label.get_text().split("\n")[0] for label in axes.get_yticklabels()]
    assert names == ["main", "stream 7", "stream 10", "GPU idle", "critical path"]
    heights = axes.get_yticks()
    assert (np.diff(heights) < 0).all()
    assert "50 % busy" in axes.get_yticklabels()[1].get_text()
    assert axes.get_xlim() == (0.0, 100.0)
    assert axes.get_xlabel().endswith("(us)")


def test_the_coloured_area_is_the_time() -> None:
    figure = timeline_figure(FRAME, idle=IDLE, path=PATH, start_us=10, end_us=110)
    lane = 0.76
    assert areas(figure, KIND_COLOURS["host"]) == pytest.approx(30 * lane)
    assert areas(figure, KIND_COLOURS["launch"]) == pytest.approx(10 * lane)
    assert areas(figure, KIND_COLOURS["kernel"]) == pytest.approx((60 + 50) * lane)
    assert areas(figure, CAUSE_COLOURS["host_t1"]) == pytest.approx(100 * lane)


def test_the_path_is_a_line_through_its_lanes() -> None:
    figure = timeline_figure(FRAME, path=PATH, start_us=10, end_us=110)
    (line,) = figure.axes[0].lines
    x, y = line.get_data()
    assert list(x) == [0.0, 50.0, 50.0, 100.0]
    assert y[0] == y[1] > y[2] == y[3]


def test_the_legend_says_how_long() -> None:
    figure = timeline_figure(FRAME, idle=IDLE, path=PATH, start_us=10, end_us=110)
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "GPU idle: 50.0 us, 50 %" in texts
    assert "Python, between ops (T1)  50.0 us" in texts
    assert "critical path: 100.0 us, 100 %" in texts


def test_wide_pieces_carry_short_names() -> None:
    figure = timeline_figure(FRAME, start_us=0, end_us=110)
    assert {text.get_text() for text in figure.axes[0].texts} >= {"aten::linear", "k"}


def test_bad_input() -> None:
    with pytest.raises(UsageError, match="empty"):
        timeline_figure(FRAME, start_us=5, end_us=5)
    with pytest.raises(UsageError, match="'kind'"):
        timeline_figure({"resource": [], "label": []}, start_us=0, end_us=1)
    for name in ("main", "a/main", "1a/main", "/main"):
        odd = FRAME | {"resource": [name, *FRAME["resource"][1:]]}
        with pytest.raises(UsageError, match=f"resource '{name}': expected RANK/THREAD"):
            timeline_figure(odd, start_us=0, end_us=110)
    digits = FRAME | {"resource": ["0/other:1\N{SUPERSCRIPT TWO}", *FRAME["resource"][1:]]}
    timeline_figure(digits, start_us=0, end_us=110)


def test_an_empty_window_still_draws() -> None:
    figure = timeline_figure(FRAME, idle=IDLE, start_us=200, end_us=300)
    assert len(figure.axes) == 1


def test_fifty_thousand_pieces_draw_no_more_than_there_is_room_for() -> None:
    count = 50_000
    start = np.arange(count, dtype=float) * 2
    names = np.array(["0/main", "0/gpu0/stream7"], dtype=object)[np.arange(count) % 2]
    frame = {
        "resource": names,
        "label": [f"void n::kernel_{i % 500}<float>(int)" for i in range(count)],
        "kind": np.where(np.arange(count) % 2, "kernel", "host"),
        "start_us": start,
        "end_us": start + 1,
    }
    figure = timeline_figure(frame, start_us=0, end_us=2.0 * count)
    assert areas(figure, KIND_COLOURS["kernel"]) == pytest.approx(count / 2 * 0.76)
    drawn = figure.axes[0].collections
    corners = sum(len(path.vertices) for shape in drawn for path in shape.get_paths())
    assert corners < count / 2
    assert len(figure.axes[0].texts) < 500


def test_a_process_without_a_device_has_no_lane_of_its_idle_time() -> None:
    on_host = {name: column[:2] for name, column in FRAME.items()}
    no_idle = {"cause": [], "start_us": [], "end_us": []}
    for frame, lanes in ((on_host, 1), (FRAME, 4)):
        axes = timeline_figure(frame, idle=no_idle, start_us=10, end_us=110).axes[0]
        assert len(axes.get_yticks()) == lanes
