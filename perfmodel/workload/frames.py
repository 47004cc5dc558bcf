"""A workload as a frame and as HTML."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from perfmodel.plot.html import table_html
from perfmodel.workload.counts import counts
from perfmodel.workload.model import Workload
from perfmodel.workload.tables import lookups

if TYPE_CHECKING:
    import pandas as pd

_SHOWN_TABLES = 40


def tables_frame(workload: Workload) -> pd.DataFrame:
    """One row per table; `unique_rows` are those expected in one global batch."""
    import pandas as pd

    about = lookups(workload.tables, workload.batch)
    return pd.DataFrame(
        {
            "rows": about.hash_size,
            "dim": about.dim,
            "pooling": about.pooling,
            "alpha": about.alpha,
            "parameters": [table.rows * table.dim for table in workload.tables],
            "unique_rows": about.unique_rows,
        }
    )


def workload_html(workload: Workload) -> str:
    """What the model is, how large, and its tables."""
    size = {key.replace("_", " "): value for key, value in asdict(counts(workload)).items()}
    software = workload.implementation
    settings = {
        "bottom MLP": "-".join(map(str, workload.bottom_widths)),
        "interaction": workload.interaction.kind,
        "top MLP": "-".join(map(str, workload.top_widths)),
        "batch": workload.batch,
        "implementation": f"{software.name}, {software.precision}",
        **size,
    }
    title = f"{workload.name}: {workload.title}" if workload.title else workload.name
    about = table_html(list(settings.items()), ("setting", "value"), title)
    rows = [(table.rows, table.dim, table.pooling, table.alpha) for table in workload.tables]
    more = len(rows) - _SHOWN_TABLES
    caption = f"tables ({more} more)" if more > 0 else "tables"
    return about + table_html(rows[:_SHOWN_TABLES], ("rows", "dim", "pooling", "alpha"), caption)
