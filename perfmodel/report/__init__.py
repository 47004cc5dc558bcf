"""Results for people and other tools: figures, Perfetto timelines, GraphML."""

from __future__ import annotations

from perfmodel.report.figures import comparison_figure, step_figure
from perfmodel.report.frames import piece_columns, timeline_columns
from perfmodel.report.graphml import graphml
from perfmodel.report.perfetto import perfetto_json
from perfmodel.report.tracks import Overlay

__all__ = [
    "Overlay",
    "comparison_figure",
    "graphml",
    "perfetto_json",
    "piece_columns",
    "step_figure",
    "timeline_columns",
]
