"""Results for other tools: Perfetto timelines, GraphML."""

from __future__ import annotations

from perfmodel.report.perfetto import graphml, overlay_of, perfetto_json
from perfmodel.report.tracks import Overlay

__all__ = [
    "Overlay",
    "graphml",
    "overlay_of",
    "perfetto_json",
]
