"""Timelines as columns, and the figures made of them."""

from dataclasses import replace

import numpy as np
from reporting.handmade import KERNEL, LABELS, graph

from perfmodel.timeline.critical_path import critical_path, node_frame, piece_columns, step_figure
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import measured


def meeting(of: ExecutionGraph) -> ExecutionGraph:
    """The graph with its kernel taken for a transfer that its launch call arrived at."""
    return replace(of, arrivals=np.array([[3, 1]]))


def test_columns_of_the_pieces() -> None:
    frame = node_frame(measured(graph()))
    frame = frame[frame["kind"] != "mark"]
    assert frame["label"].tolist() == list(LABELS)
    assert frame["kind"].tolist() == ["host", "launch", "host", "kernel", "sync"]
    assert frame["scope"].tolist() == ["host", "host", "host", "compute", "host"]
    assert frame["resource"].tolist() == ["0/main"] * 3 + ["0/gpu0/stream7", "0/main"]
    assert frame["end_us"].tolist() == [14.0, 16.0, 20.0, 28.0, 30.0]


def test_waiting_for_other_ranks_is_a_piece() -> None:
    frame = node_frame(measured(meeting(graph()))).reset_index(drop=True)
    at = frame["kind"].tolist().index("collective_wait")
    assert (frame["start_us"][at], frame["end_us"][at]) == (16.0, 18.0)
    assert frame["resource"][at] == "0/gpu0/stream7"


def test_columns_of_a_path() -> None:
    timeline = measured(graph())
    frame = piece_columns(timeline, critical_path(timeline, 0))
    assert frame["cause"].tolist() == [
        "host_t2",
        "host_t4",
        "launch_latency",
        "compute",
        "blocking_call",
    ]
    assert frame["resource"].tolist()[2:4] == ["0/gpu0/stream7"] * 2
    assert frame["label"][3] == KERNEL
    assert (frame["end_us"] - frame["start_us"]).sum() == 20.0


def test_figure_of_a_step() -> None:
    timeline = measured(graph())
    figure = step_figure(timeline, 0, path=critical_path(timeline, 0), idle=[])
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "ProfilerStep#1, rank 0"
    assert axes.get_xlim() == (0.0, 20.0)
