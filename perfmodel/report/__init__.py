"""Results for other tools: Perfetto timelines, GraphML."""

from __future__ import annotations

from perfmodel.report.graphml import graphml
from perfmodel.report.overlay import overlay_of
from perfmodel.report.perfetto import perfetto_json
from perfmodel.report.tracks import Overlay

__all__ = [
    "Overlay",
    "graphml",
    "overlay_of",
    "perfetto_json",
]
