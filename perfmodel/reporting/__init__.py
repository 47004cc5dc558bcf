"""Results for other tools: pages, Perfetto timelines, GraphML, Chakra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.lazy import exports

if TYPE_CHECKING:
    from perfmodel.reporting.perfetto import chakra_linked as chakra_linked
    from perfmodel.reporting.perfetto import graphml as graphml
    from perfmodel.reporting.perfetto import perfetto_json as perfetto_json

__getattr__, __all__ = exports(__name__)
