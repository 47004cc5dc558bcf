"""Frames of events where a path goes: both kinds of columns, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import COMMS, NCCL, STREAM, Tiny, trace_of

import perfmodel
from perfmodel.errors import TraceError
from perfmodel.trace import RankTrace, read
from perfmodel.trace.categories import Category
from perfmodel.trace.frame import frame_of_rank

Change = Callable[[pd.DataFrame], pd.DataFrame]


def one_step(rank: int | None = None, late_us: float = 0.0) -> Tiny:
    """A step of 100 us: an operator launches a kernel of 50, which a collective of 20 follows."""
    t = Tiny(rank, None if rank is None else 2, clock_ns=1_000_000)
    t.step(1, 0, 100)
    shapes = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
    t.op("aten::mm", 10, 30, **shapes, **{"Ev Idx": 3})
    t.launch(15, 20, kernel=(25, 75), waves=2.0)
    t.launch(32, 34, kernel=(75 + late_us, 95), name=NCCL, stream=COMMS)
    wait = {"stream": COMMS, "wait_on_stream": STREAM, "wait_on_cuda_event_record_corr_id": 101}
    t.event("cuda_sync", "Stream Wait Event", (31, 31), COMMS, **wait)
    return t


def columns_of(rank: RankTrace) -> dict[str, Any]:
    """All that lies in columns, texts as texts."""
    found = frame_of_rank(rank)
    texts = {
        name: found[name].astype(object).where(found[name].notna(), "").to_list() for name in found
    }
    return {  # lists as JSON writes them, with or without spaces
        name: [each.replace(" ", "") if name.startswith("input") else each for each in values]
        for name, values in texts.items()
    }


def test_events_of_a_trace_read_back_are_the_trace() -> None:
    trace = trace_of(one_step(0), one_step(1, late_us=5.0))
    again = read(trace.events)
    for before, after in zip(trace.ranks, again.ranks, strict=True):
        assert columns_of(after) == columns_of(before)
        assert (after.origin_ns, after.world_size) == (before.origin_ns, 2)
    assert [rank.where for rank in again.ranks] == ["DataFrame: rank 0", "DataFrame: rank 1"]
    before, after = (perfmodel.breakdown(each).to_dict() for each in (trace, trace.events))
    assert before.pop("warnings") == after.pop("warnings") == []
    assert before == after


def test_no_column_is_lost() -> None:
    """All of a rank that has a row per event, but the place in the file."""
    arrays = {each.name for each in fields(RankTrace) if each.type in ("Ints", "Floats")}
    assert arrays - {"file_index"} <= set(frame_of_rank(one_step().rank_trace()))


def test_a_step_by_hand_in_four_columns() -> None:
    """One operator of 60 us in a step of 100: nothing else is on the path but T1."""
    events = pd.DataFrame(
        {
            "name": ["ProfilerStep#1", "aten::add"],
            "category": ["annotation", "cpu_op"],
            "start_us": [5.0, 25.0],
            "duration_us": [100, 60],
        }
    )
    (step,) = perfmodel.breakdown(events).ranks[0].steps
    assert step.accounting.step_us == pytest.approx(100.0)
    assert step.critical_path_by_kind == pytest.approx(
        {"host_t1": 40.0, "host_op_without_launch": 60.0}
    )


def test_the_order_of_rows_means_nothing() -> None:
    frame = trace_of(one_step()).events
    mixed = frame.sample(frac=1.0, random_state=1)
    assert perfmodel.breakdown(mixed).to_dict() == perfmodel.breakdown(frame).to_dict()
    assert columns_of(read(mixed).ranks[0]) == columns_of(read(frame).ranks[0])


def test_events_may_be_changed_and_left_out() -> None:
    """Without its first rank, and on a clock that begins later."""
    events = trace_of(one_step(0), one_step(1)).events
    left = events[(events["rank"] == 1) & (events["name"] != "ProfilerStep#1")]
    (rank,) = read(left).ranks
    assert (rank.rank, rank.start_us[0], rank.origin_ns) == (1, 0.0, 1_000_000 + 10_000)


def test_functions_take_frames(tmp_path: Path) -> None:
    frame = trace_of(one_step()).events
    assert perfmodel.predict(frame).results[0].step_us == pytest.approx(100.0)
    assert perfmodel.diff(frame, frame).a.source == "DataFrame"
    assert perfmodel.report(frame, tmp_path / "page.html").is_file()
    assert perfmodel.export(frame, tmp_path / "linked.et") == [tmp_path / "linked.et"]


def test_nullable_and_categorical_columns_are_columns() -> None:
    frame = trace_of(one_step()).events
    other = frame.astype({"stream": "Int64", "name": "category", "start_us": "Float64"})
    other.loc[other["stream"] < 0, "stream"] = pd.NA
    assert columns_of(read(other).ranks[0]) == columns_of(read(frame).ranks[0])


def put(column: str, value: object) -> Change:
    """`value` in row 2 of a column, or all of it where it is a list."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        values = frame[column].to_list()
        values[2] = value
        return frame.assign(**{column: pd.Series(values, index=frame.index)})

    return change


def without(column: str) -> Change:
    return lambda frame: frame.drop(columns=column)


OWN: list[tuple[Change, str]] = [
    (without("category"), "no column category"),
    (
        without("start_us"),
        "no column start_us: expected the columns of Trace.events; events of",
    ),
    (lambda frame: frame.iloc[:0], "holds no events"),
    (lambda frame: pd.concat([frame, frame["name"]], axis=1), "column 'name' comes twice"),
    (lambda frame: frame.assign(x=1).rename(columns={"x": 7}), "column 7 has a name that"),
    (put("start_us", np.nan), "column start_us: row 2: expected microseconds, found 'nan'"),
    (put("start_us", "soon"), "column start_us: row 2: expected microseconds, found 'soon'"),
    (put("start_us", True), "column start_us: row 2: expected microseconds, found 'True'"),
    (put("start_us", 1e300), "column start_us: row 2: expected microseconds, found '1e+300'"),
    (put("duration_us", -1.0), "column duration_us: row 2: expected a duration of 0 us or more"),
    (put("duration_us", np.inf), "column duration_us: row 2: expected microseconds, found 'inf'"),
    (put("waves", np.nan), "column waves: row 2: expected microseconds, found 'nan'"),
    (put("name", None), "column name: row 2: expected a text, found '"),
    (put("name", 12), "column name: row 2: expected a text, found '12'"),
    (put("category", 5), "column category: row 2: expected a text, found '5'"),
    (put("category", ["cpu_op"]), "column category: row 2: expected a text, found \"['cpu_op']\""),
    (put("stream", 1.5), "column stream: row 2: expected a whole number, found '1.5'"),
    (put("stream", "7"), "column stream: row 2: expected a whole number, found '7'"),
    (put("stream", 2**70), "column stream: row 2: expected a whole number, found '11805916"),
    (put("rank", -4), "column rank: row 2: expected a rank, found '-4'"),
    (put("rank", np.nan), "column rank: row 2: expected a rank, found 'nan'"),
    (
        lambda frame: frame.assign(start_us=pd.to_datetime(frame["start_us"])),
        "column start_us: row 0: expected microseconds, found '1970-01-01",
    ),
]


@pytest.mark.parametrize(("change", "message"), OWN)
def test_a_frame_that_is_none_is_one_line(change: Change, message: str) -> None:
    frame = trace_of(one_step()).events
    read(frame)
    with pytest.raises(TraceError) as caught:
        read(change(frame))
    assert str(caught.value).startswith("DataFrame: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_event_without_a_category_is_another() -> None:
    rank = read(put("category", None)(trace_of(one_step()).events)).ranks[0]
    assert (rank.category == Category.OTHER).sum() == 1
