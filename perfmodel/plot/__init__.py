"""Figures from frames, one style for all of them, and the small HTML tables of notebooks.

Nothing here knows a trace or a graph: a frame is anything with columns. matplotlib loads when the
first figure is drawn, not on import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.plot.charts import breakdown_figure as breakdown_figure
    from perfmodel.plot.charts import curves_figure as curves_figure
    from perfmodel.plot.charts import pareto_figure as pareto_figure
    from perfmodel.plot.names import table_html as table_html
    from perfmodel.plot.style import colours_of as colours_of
    from perfmodel.plot.style import save as save
    from perfmodel.plot.timeline import timeline_figure as timeline_figure

__getattr__, __dir__, __all__ = exports(__name__)
