"""CSV and Parquet: what they hold, or one line."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.frames import frame_of, read_frame
from perfmodel.errors import ModelError

CSV = b"a,b\n1,x\n2,y\n"


def parquet(tmp_path: Path) -> bytes:
    path = tmp_path / "t.parquet"
    frame_of(CSV).to_parquet(path)
    return path.read_bytes()


def test_content_decides_what_a_table_is(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    for content in (CSV, gzip.compress(CSV), parquet(tmp_path)):
        path.write_bytes(content)
        assert read_frame(path).to_dict("list") == {"a": [1, 2], "b": ["x", "y"]}


def test_the_error_is_the_one_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,2,3,4\n")
    with pytest.raises(ModelError, match=r"t\.csv: cannot be read as a table: its rows have more"):
        read_frame(path, error=ModelError)
    with pytest.raises(ModelError, match="No such file"):
        read_frame(tmp_path / "none.csv", error=ModelError)


def test_tables_that_are_not_what_a_reader_would_take_them_for() -> None:
    with pytest.raises(ValueError, match="column 'a' is there twice"):
        frame_of(b"a,b,a\n1,2,3\n")
    with pytest.raises(ValueError, match="it has 1,001 columns; at most 1,000"):
        frame_of(",".join(f"c{n}" for n in range(1001)).encode() + b"\n")
    held = io.BytesIO()
    pd.DataFrame({"op": [b"\xff"]}).to_parquet(held)
    with pytest.raises(ValueError, match="column 'op' holds bytes"):
        frame_of(held.getvalue())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_one_line_or_a_frame(data: st.DataObject) -> None:
    whole = io.BytesIO()
    frame_of(CSV).to_parquet(whole)
    content = bytearray(data.draw(st.sampled_from([CSV, whole.getvalue()])))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    message = ""
    try:
        assert isinstance(frame_of(bytes(content)), pd.DataFrame)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
