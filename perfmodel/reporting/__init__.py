"""Results for other tools: pages, Perfetto timelines, GraphML, Chakra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.reporting.perfetto import chakra_linked, graphml, overlay_of, perfetto_json
    from perfmodel.reporting.tracks import Overlay

__all__ = ["Overlay", "chakra_linked", "graphml", "overlay_of", "perfetto_json"]

_PERFETTO = ("chakra_linked", "graphml", "overlay_of", "perfetto_json")
__getattr__ = exports(
    __name__,
    dict.fromkeys(_PERFETTO, "perfmodel.reporting.perfetto")
    | {"Overlay": "perfmodel.reporting.tracks"},
)
