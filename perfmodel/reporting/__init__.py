"""Results for other tools: Perfetto timelines, GraphML, Chakra."""

from __future__ import annotations

from perfmodel.reporting.perfetto import chakra_linked, graphml, overlay_of, perfetto_json
from perfmodel.reporting.tracks import Overlay

__all__ = [
    "Overlay",
    "chakra_linked",
    "graphml",
    "overlay_of",
    "perfetto_json",
]
