"""Events of ranks as a pandas frame, and frames of events as ranks.

Columns are those that `Trace.events` gives out: `name`, `category`, `start_us`, `duration_us`, and
of the other columns of `RankTrace` those that are there. `rank` says which rank an event is of, and
`device_name` (with `device_memory_bytes`) what its device is. Messages count rows from 0, whatever
the frame's index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.frames import FRAME_NAME
from perfmodel.errors import TraceError
from perfmodel.trace.categories import CATEGORY_OF_TEXT, Category
from perfmodel.trace.columns import NONE, DeviceProperties, RankTrace, Strings
from perfmodel.trace.sqlite import TEXT_COLUMNS, WIDE_COLUMNS, narrow

if TYPE_CHECKING:
    import pandas as pd


_OWN = ("name", "category", "start_us", "duration_us")
_OF_RANK = ("rank", "world_size", "origin_ns", "device_name", "device_memory_bytes")
"""Columns with one value per rank; its first row's counts."""
_INTEGERS = tuple(
    each.name
    for each in fields(RankTrace)
    if each.type == "Ints" and each.name not in (*TEXT_COLUMNS, "file_index")
)
_LIMIT = 2.0**62
_MICROSECONDS, _WHOLE = "microseconds", "a whole number"
_CATEGORIES = {each.name.lower(): each for each in Category} | CATEGORY_OF_TEXT


def frame_of_rank(rank: RankTrace) -> pd.DataFrame:
    """The columns of `rank` as a frame, one row per event: texts as texts, missing where
    there is none; integers are `NONE` (-1) where the file says nothing."""
    import pandas as pd

    text = np.array([*rank.strings.texts, None], dtype=object)
    category = np.array([each.name.lower() for each in Category], dtype=object)
    device = next(iter(rank.devices), DeviceProperties(""))
    columns = {name: getattr(rank, name) for name in _INTEGERS}
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
    first = ("rank", *_OWN, "thread", "stream", "device")
    return pd.DataFrame(columns)[[*first, *(name for name in columns if name not in first)]]


def ranks_of_frame(frame: pd.DataFrame) -> list[RankTrace]:
    """The ranks whose events the rows of `frame` are, in order of rank.

    Raises `TraceError` with one line that names column and row: for missing columns, a column that
    comes twice, values of another type, times that are no finite numbers, negative durations, and
    for a frame without events.
    """
    columns = list(frame.columns)
    for name in columns:
        if not isinstance(name, str) or columns.count(name) > 1:
            what = "comes twice" if isinstance(name, str) else "has a name that is no text"
            raise TraceError(f"{FRAME_NAME}: column {name!r} {what}")
    for name in _OWN:
        if name not in columns:
            raise TraceError(
                f"{FRAME_NAME}: no column {name}: expected the columns of Trace.events; events of "
                "Chrome are read from their file"
            )
    if not len(frame):
        raise TraceError(f"{FRAME_NAME}: holds no events")
    ranks = _integers(frame, "rank")
    for row in np.flatnonzero(ranks < 0)[: "rank" in columns]:
        raise _wrong(frame, "rank", int(row), "a rank")
    rows_of = {number: np.flatnonzero(ranks == number) for number in np.unique(ranks).tolist()}
    return [_of_rank(frame, rows_of, rank) for rank in _ranks(frame, rows_of)]


def _of_rank(frame: pd.DataFrame, rows_of: Mapping[int, Ints], rank: RankTrace) -> RankTrace:
    """`rank` with what the columns of its first row say of it."""
    said = frame.iloc[rows_of[rank.rank][:1]]
    numbers = {name: int(_integers(said, name)[0]) for name in _OF_RANK if name != "device_name"}
    name = said["device_name"].iloc[0] if "device_name" in said else None
    memory_bytes = max(numbers["device_memory_bytes"], 0)
    return replace(
        rank,
        where=FRAME_NAME if len(rows_of) == 1 else f"{FRAME_NAME}: rank {rank.rank}",
        world_size=None if numbers["world_size"] < 0 else numbers["world_size"],
        origin_ns=rank.origin_ns + max(numbers["origin_ns"], 0),
        devices=(DeviceProperties(name, memory_bytes),) if isinstance(name, str) else (),
    )


def _ranks(frame: pd.DataFrame, rows_of: Mapping[int, Ints]) -> Iterator[RankTrace]:
    strings = Strings()
    start_us, duration_us = _times(frame, "start_us"), _times(frame, "duration_us", 0.0)
    known = _codes(frame, "category", lambda text: _CATEGORIES.get(text, Category.OTHER))
    category = np.where(known == NONE, Category.OTHER, known).astype(np.uint8)
    columns = {name: _integers(frame, name) for name in _INTEGERS}
    for name in TEXT_COLUMNS:
        columns[name] = _codes(frame, name, strings.intern, needed=name == "name")
    waves = _times(frame, "waves") if "waves" in frame else np.zeros(len(frame))
    for number, rows in rows_of.items():
        order = np.lexsort((columns["event_index"][rows], -duration_us[rows], start_us[rows]))
        rows = rows[order]
        own: dict[str, Any] = {
            name: narrow(each[rows], keep=name in WIDE_COLUMNS) for name, each in columns.items()
        }
        first_us = float(start_us[rows[0]])
        yield RankTrace(
            where=FRAME_NAME,
            rank=number,
            world_size=None,
            origin_ns=round(first_us * 1e3),
            strings=strings,
            devices=(),
            file_index=rows,
            category=category[rows],
            start_us=start_us[rows] - first_us,
            duration_us=duration_us[rows],
            waves=waves[rows],
            **own,
        )


def _wrong(frame: pd.DataFrame, name: str, row: int, expected: str) -> TraceError:
    found = str(frame[name].iloc[row])[:30]
    return TraceError(
        f"{FRAME_NAME}: column {name}: row {row}: expected {expected}, found {found!r}"
    )


def _numbers(frame: pd.DataFrame, name: str, expected: str, least: float = -_LIMIT) -> pd.Series:
    """A column of finite numbers; `NONE` where a whole one is missing."""
    import pandas as pd

    given = frame[name].fillna(NONE) if expected == _WHOLE else frame[name]
    values = pd.to_numeric(given, errors="coerce")
    size = values.to_numpy(np.float64, na_value=np.nan)
    wrong = ~(np.abs(size) < _LIMIT) | (size < least) | (given.dtype.kind in "mMb")
    if given.dtype == object:  # texts and truths are no numbers
        wrong |= np.array([isinstance(value, (str, bool)) for value in given])
    if expected == _WHOLE:
        wrong |= size % 1 != 0
    for row in np.flatnonzero(wrong)[:1].tolist():
        is_short = expected == _MICROSECONDS and -_LIMIT < size[row] < least
        raise _wrong(frame, name, row, "a duration of 0 us or more" if is_short else expected)
    return values


def _times(frame: pd.DataFrame, name: str, least: float = -_LIMIT) -> Floats:
    return np.asarray(_numbers(frame, name, _MICROSECONDS, least), np.float64)


def _integers(frame: pd.DataFrame, name: str) -> Ints:
    """Whole numbers, `NONE` where the frame says nothing."""
    if name not in frame:
        return np.full(len(frame), NONE)
    return np.asarray(_numbers(frame, name, _WHOLE), np.int64)


def _codes(
    frame: pd.DataFrame, name: str, code_of: Callable[[str], int], *, needed: bool = False
) -> Ints:
    """The texts of a column by `code_of`, each asked once; `NONE` where there is none, unless all
    rows need one."""
    if name not in frame:
        return np.full(len(frame), NONE)
    import pandas as pd

    try:
        codes, texts = pd.factorize(frame[name])
    except TypeError:  # a list or the like
        rows = enumerate(frame[name])
        no_text = (row for row, it in rows if not isinstance(it, str) and pd.isna(it) is not True)
        raise _wrong(frame, name, next(no_text), "a text") from None
    known = [code_of(text) if isinstance(text, str) else None for text in texts]
    wrong = np.array([*(each is None for each in known), needed])[codes]
    for row in np.flatnonzero(wrong)[:1]:
        raise _wrong(frame, name, int(row), "a text")
    result: Ints = np.array([*(each or 0 for each in known), NONE])[codes]
    return result
