"""Figures from frames, one style for all of them, and the small HTML tables of notebooks.

Nothing here knows a trace or a graph: a frame is anything with columns. matplotlib loads when the
first figure is drawn, not on import.
"""

from __future__ import annotations

from perfmodel.plot.bars import breakdown_figure
from perfmodel.plot.curves import shares_figure, steps_figure
from perfmodel.plot.figure import save
from perfmodel.plot.names import table_html
from perfmodel.plot.scatter import errors_figure, rates_figure, roofline_figure
from perfmodel.plot.style import colours_of
from perfmodel.plot.timeline import timeline_figure

__all__ = [
    "breakdown_figure",
    "colours_of",
    "errors_figure",
    "rates_figure",
    "roofline_figure",
    "save",
    "shares_figure",
    "steps_figure",
    "table_html",
    "timeline_figure",
]
