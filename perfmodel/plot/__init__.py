"""Figures from frames, one style for all of them, and the small HTML tables of notebooks.

Nothing here knows a trace or a graph: a frame is anything with columns. matplotlib loads when the
first figure is drawn, not on import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
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
    "comparison_figure",
    "curves_figure",
    "errors_figure",
    "rates_figure",
    "roofline_figure",
    "save",
    "shares_figure",
    "steps_figure",
    "table_html",
    "timeline_figure",
]


__getattr__ = exports(
    __name__,
    {
        "breakdown_figure": "perfmodel.plot.bars",
        "colours_of": "perfmodel.plot.style",
        "comparison_figure": "perfmodel.plot.comparison",
        "curves_figure": "perfmodel.plot.curves",
        "errors_figure": "perfmodel.plot.scatter",
        "rates_figure": "perfmodel.plot.scatter",
        "roofline_figure": "perfmodel.plot.scatter",
        "save": "perfmodel.plot.figure",
        "shares_figure": "perfmodel.plot.curves",
        "steps_figure": "perfmodel.plot.curves",
        "table_html": "perfmodel.plot.names",
        "timeline_figure": "perfmodel.plot.timeline",
    },
)
