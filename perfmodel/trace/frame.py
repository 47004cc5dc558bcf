"""Events of ranks as a pandas frame.

Columns: `name`, `category`, `start_us`, `duration_us`, and all other columns of `RankTrace`. `rank`
says which rank an event is of, and `device_name` (with `device_memory_bytes`) what its device is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace
from perfmodel.trace.events import INTEGERS, TEXT_COLUMNS

if TYPE_CHECKING:
    import pandas as pd


def frame_of_rank(rank: RankTrace) -> pd.DataFrame:
    """The columns of `rank` as a frame, one row per event: texts as texts, missing where
    there is none; integers are `NONE` (-1) where the file says nothing."""
    import pandas as pd

    text = np.array([*rank.strings.texts, None], dtype=object)
    category = np.array([each.name.lower() for each in Category], dtype=object)
    device = next(iter(rank.devices), DeviceProperties(""))
    columns = {name: getattr(rank, name) for name in INTEGERS if name != "file_index"}
    columns |= {name: text[getattr(rank, name)] for name in TEXT_COLUMNS}
    columns |= {
        "rank": rank.rank,
        "category": category[rank.category],
        "start_us": rank.start_us,
        "duration_us": rank.duration_us,
        "waves": rank.waves,
        "world_size": NONE if rank.world_size is None else rank.world_size,
        "origin_ns": rank.origin_ns,
        "device_name": device.name or None,
        "device_memory_bytes": device.memory_bytes,
    }
    first = ("rank", "name", "category", "start_us", "duration_us", "thread", "stream", "device")
    return pd.DataFrame(columns)[[*first, *(name for name in columns if name not in first)]]
