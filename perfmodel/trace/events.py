"""Events of one process, in whatever order a file has them, to a rank; a rank as a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Ints, Mask, has_code
from perfmodel.trace.categories import DEVICE_CATEGORIES, Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace, Strings

if TYPE_CHECKING:
    import pandas as pd

INTEGERS = tuple(each.name for each in fields(RankTrace) if each.type == "Ints")
TEXT_COLUMNS = (
    *("name", "input_shapes", "input_dtypes", "input_values", "input_strides", "grid"),
    *("collective", "process_group", "collective_dtype", "in_split", "out_split"),
)
"""Columns of `RankTrace` that are indices of its strings."""
_WIDE = ("size_bytes", "in_elements", "out_elements")
"""Columns of int64; other integers are ids and indices, int32 or, where one needs it, int64."""
_HOUR_NS = 3_600 * 10**9
_FAR = 1000
"""An event is far from its like where it is an hour and so many times their usual distance off."""
_FEW = 3
"""Of fewer it is not known where they lie."""
_ON_DEVICE = (*DEVICE_CATEGORIES, Category.GPU_ANNOTATION, Category.CUDA_SYNC)


def rank_of_columns(
    where: str,
    category: NDArray[np.uint8],
    start_ns: Ints,
    duration_ns: Ints,
    columns: Mapping[str, NDArray[Any]],
    **known: Any,
) -> RankTrace:
    """The rank of these events, but those whose times mean nothing, in order.

    `columns` are those of `RankTrace` of which the file says something, and `known` its other
    fields. All other columns are one array, read-only.
    """
    is_stray = _strays(start_ns, category)
    blank = np.full(len(category), NONE, np.int32)
    order = _order(start_ns, duration_ns, columns.get("event_index", blank))
    order = order[~is_stray[order]]
    start_ns = start_ns[order]
    origin_ns = int(start_ns[0]) if len(order) else 0
    blank = blank[: len(order)]
    blank.flags.writeable = False
    taken: dict[str, NDArray[Any]] = dict.fromkeys(INTEGERS, blank)
    taken |= {"waves": np.zeros(len(order)), "file_index": order.astype(np.int32)}
    for name, values in columns.items():
        taken[name] = values[order].astype(np.int64) if name in _WIDE else values[order]
    usual: dict[str, Any] = {"rank": NONE, "world_size": None, "devices": (), "warnings": []}
    if count := int(is_stray.sum()):
        usual["warnings"] = [f"{count} events begin hours from all others: left out"]
    return RankTrace(
        where=where,
        origin_ns=origin_ns,
        category=category[order],
        start_us=(start_ns - origin_ns) / 1e3,
        duration_us=duration_ns[order] / 1e3,
        **usual | taken | known,
    )


def rank_from_events(where: str, events: Iterable[Mapping[str, Any]], **known: Any) -> RankTrace:
    """The rank that `events` are of, in whatever order.

    An event has `category`, `name`, `start_ns`, `duration_ns`, and of the other columns of
    `RankTrace` those that are known, whole numbers and texts.
    """
    rows, strings = list(events), Strings()
    start_ns, duration_ns = (
        np.array([row[key] for row in rows], np.int64) for key in ("start_ns", "duration_ns")
    )
    columns, told = dict[str, Ints](), {name for row in rows for name in row}
    for name in INTEGERS:
        if name not in told:
            continue
        given = [row.get(name, NONE) for row in rows]
        if name in TEXT_COLUMNS:
            given = [strings.intern(text if isinstance(text, str) else None) for text in given]
        values = np.array(given, np.int64)
        narrow = values.astype(np.int32)
        columns[name] = narrow if (narrow == values).all() else values
    category = np.array([row["category"] for row in rows], np.uint8)
    return rank_of_columns(
        where, category, start_ns, duration_ns, columns, strings=strings, **known
    )


def _order(start_ns: Ints, duration_ns: Ints, event_index: Ints) -> Ints:
    """Rows by start, then longest first, then `Ev Idx`, then as they stand in the file."""
    order = np.argsort(start_ns, kind="stable")
    start_ns = start_ns[order]
    is_same = np.zeros(len(order) + 1, np.bool_)
    is_same[1:-1] = start_ns[1:] == start_ns[:-1]
    tied = np.flatnonzero(is_same[1:] | is_same[:-1])
    rows = order[tied]
    order[tied] = rows[np.lexsort((event_index[rows], -duration_ns[rows], start_ns[tied]))]
    return order


def _strays(start_ns: Ints, category: NDArray[np.uint8]) -> Mask:
    """Events that begin far from all others of host or device: their times mean nothing."""
    result = np.zeros(len(start_ns), np.bool_)
    if not len(start_ns) or int(start_ns.max()) - int(start_ns.min()) <= _HOUR_NS:
        return result
    is_device, is_known = has_code(category, _ON_DEVICE), category != Category.OTHER
    enough = min(is_device.sum(), (~is_device & is_known).sum()) >= _FEW
    for like in (is_device, ~is_device) if enough else (~result,):
        known = start_ns[like & is_known]
        if len(known) >= _FEW:
            middle_ns = int(np.partition(known, len(known) // 2)[len(known) // 2])
            usual_ns = int(np.median(np.abs(known - middle_ns)))
            result |= like & (np.abs(start_ns - middle_ns) > max(_HOUR_NS, _FAR * usual_ns))
    return result


def frame_of_rank(rank: RankTrace) -> pd.DataFrame:
    """The columns of `rank` as a frame, one row per event: texts as texts, missing where
    there is none; integers are `NONE` (-1) where the file says nothing.

    `rank` says which rank an event is of, and `device_name` what its device is.
    """
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
