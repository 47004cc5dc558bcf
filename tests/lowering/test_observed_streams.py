"""Streams and waits of a profile, carried over to what is predicted of its ops."""

from __future__ import annotations

import numpy as np
from tiny import COMMS, Tiny

from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.host.measure import of_sorted
from perfmodel.lowering.host.profile import Profile
from perfmodel.lowering.observed import with_streams
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.timeline.schedule import schedule

X = Tensor((8, 32), device="cuda:0")
HOST = ("T1", "T2", "T3", "T4", "T5", "op_without_launch")
COLLECTIVE = {
    "collective": "all_reduce",
    "group_size": "2",
    "dtype": "fp32",
    "in_elements": "256",
    "out_elements": "256",
}


def _profiled() -> OpGraph:
    """relu, all-reduce behind it, relu beside that, and relu behind a wait for the all-reduce."""
    t = Tiny()
    t.step(1, 0, 400)
    t.around_an_exchange("aten::relu", "record_param_comms", ("relu",) * 3)
    rank, links = t.linked()
    rows = [
        row for row in range(len(rank)) if rank.text(row) in ("aten::relu", "record_param_comms")
    ]
    rows.sort(key=lambda row: float(rank.start_us[row]))
    ops = tuple(
        Op("record_param_comms", (X,), event=row, attributes=COLLECTIVE)
        if rank.text(row) == "record_param_comms"
        else Op("aten::relu", (X,), event=row)
        for row in rows
    )
    return with_streams(OpGraph(ops), rank, links)


def test_streams_and_waits_are_those_of_the_profile() -> None:
    graph = _profiled()
    assert [op.attributes["stream"] for op in graph.ops] == [
        "compute",
        f"stream{COMMS}",
        "compute",
        "compute",
    ]
    assert graph.waits is not None
    assert graph.waits.tolist() == [[0, 1], [1, 3]]


def test_only_what_waited_waits_again() -> None:
    graph = _profiled()
    profile = Profile({(kind, None, None): of_sorted(np.array([1.0])) for kind in HOST})
    lowered = lower(graph, "cuda")
    taken = np.array([10.0, 500.0, 10.0, 10.0])
    built = execution_graph(lowered, taken, profile)
    timeline = schedule(built.graph)
    node = {int(piece): at for at, piece in enumerate(built.piece) if piece >= 0}
    first, reduce, beside, behind = (node[piece] for piece in range(4))
    start, end = timeline.start_us, timeline.end_us
    assert start[reduce] >= end[first]
    assert start[beside] < end[reduce]
    assert start[behind] >= end[reduce]


def test_a_graph_without_a_profile_knows_of_no_waits() -> None:
    assert OpGraph((Op("aten::relu", (X,)),)).waits is None
