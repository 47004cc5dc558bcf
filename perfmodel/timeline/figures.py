"""Timelines and paths as frames, and the figures of where their steps went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.plot import timeline_figure
from perfmodel.timeline.critical_path import ROUNDING_US, Piece
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.graph.types import names
from perfmodel.timeline.schedule import Timeline, step_bounds
from perfmodel.trace.columns import NONE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


WAITING_LABEL = "waiting for other ranks"


def node_frame(timeline: Timeline) -> pd.DataFrame:
    """The graph's `nodes` with a column `node`, `start_us` and `end_us`; and a row of node -1 for
    each wait for other ranks, from a rank's arrival at a collective to its transfer."""
    import pandas as pd

    graph = timeline.graph
    times = {"start_us": timeline.start_us, "end_us": timeline.end_us}
    nodes = graph.nodes.assign(node=np.arange(len(graph)), **times)
    if graph.arrivals is None:
        return nodes
    transfer, arrival = graph.arrivals.T
    waiting = nodes.iloc[transfer].assign(
        label=WAITING_LABEL,
        kind="collective_wait",
        cause="collective_wait",
        scope="none",
        node=NONE,
        start_us=timeline.end_us[arrival],
        end_us=timeline.start_us[transfer],
    )
    return pd.concat([nodes, waiting[waiting.end_us > waiting.start_us]])


def piece_columns(timeline: Timeline, pieces: Iterable[Piece]) -> pd.DataFrame:
    """Pieces of a critical path, or of idle time, in order of time.

    Columns `node` (-1: none), `edge` (text, empty where the piece is the node itself), `cause`,
    `start_us`, `end_us`; of the node `rank`, `resource`, `label` and `kind`.
    """
    import pandas as pd

    frame = pd.DataFrame(list(pieces), columns=list(Piece._fields))
    types: dict[str, Any] = {"node": int, "edge": int, "cause": int, "start_us": float}
    frame = frame.astype(types | {"end_us": float}).sort_values(["start_us", "end_us"])
    frame = frame.reset_index(drop=True)
    has_node = frame.node >= 0
    of_node = timeline.graph.nodes.iloc[frame.node].reset_index(drop=True)
    texts = {name: of_node[name].where(has_node, "") for name in ("resource", "label", "kind")}
    kinds = {"edge": names(EdgeKind, frame.edge), "cause": names(Cause, frame.cause)}
    return frame.assign(rank=of_node["rank"].where(has_node), **texts, **kinds)


def step_figure(
    timeline: Timeline, mark: int, *, path: Iterable[Piece], idle: Iterable[Piece] | None = None
) -> Figure:
    """The timeline of one step (row `mark` of the graph's marks), with its path and idle time."""

    def drawn(pieces: Iterable[Piece]) -> pd.DataFrame:
        """None that only rounding made."""
        every = piece_columns(timeline, pieces)
        return every[every.end_us - every.start_us > ROUNDING_US]

    marks = timeline.graph.marks
    start_us, end_us = step_bounds(timeline, mark)
    return timeline_figure(
        node_frame(timeline),
        path=drawn(path),
        idle=None if idle is None else drawn(idle),
        start_us=start_us,
        end_us=end_us,
        title=f"{marks.name[mark]}, rank {marks.rank[mark]}",
    )
