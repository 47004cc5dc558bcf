"""The baseline file: what is written is read; what is no baseline is refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from validate.evaluate.handmade import row

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.validate.evaluate.baseline import key_of, read_baseline, write_baseline
from perfmodel.validate.evaluate.results import Kind

ROWS = [
    row("b"),
    row("a", Kind.SHAPES, "T1", mape_pct=0.0),
    row("a", Kind.STEP_REPLAY),
    row("a", Kind.SHAPES, "gemm"),
]


def test_sorted_one_line_a_row_and_floats(tmp_path: Path) -> None:
    path, again = tmp_path / "b.json", tmp_path / "again.json"
    write_baseline(path, ROWS)
    write_baseline(again, reversed(ROWS))
    assert path.read_bytes() == again.read_bytes()
    assert list(map(key_of, read_baseline(path))) == [
        ("a", "step_replay", "step"),
        ("a", "shapes", "T1"),
        ("a", "shapes", "gemm"),
        ("b", "step_left_out", "step"),
    ]
    assert sum("trace" in line for line in path.read_text().splitlines()) == len(ROWS)
    figures = [v for r in json.loads(path.read_text())["rows"] for k, v in r.items() if "_pct" in k]
    assert len(figures) == 4 * len(ROWS)
    assert all(isinstance(value, float) for value in figures)


def test_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "b.json"
    write_baseline(path, ROWS)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(PerfmodelError, match="No space left"):
        write_baseline(path, ROWS[:1])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]


@pytest.mark.parametrize(
    "text", ['{"a": 1}', "[]", "no JSON", "", '{"schema": "perfmodel.check/1"}']
)
def test_what_is_no_baseline_is_neither_read_nor_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.json: not a baseline"):
        read_baseline(path)
    with pytest.raises(UsageError, match=r"mine\.json: not a baseline"):
        write_baseline(path, ROWS)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b'{"schema": "perfmodel.baseline/2\xe9"}', b"[" * 9999]
)
def test_bytes_that_are_no_text_are_no_baseline(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"mine\.json: not a baseline"):
        read_baseline(path)


def test_another_version_is_refused_and_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"schema": "perfmodel.baseline/1", "figures": []}')
    with pytest.raises(UsageError, match=r"baseline/1.*baseline/2.*--update"):
        read_baseline(path)
    write_baseline(path, ROWS)
    assert len(read_baseline(path)) == len(ROWS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mape_pct": "2"}, "mape_pct"),
        ({"mape_pct": -2.0}, "mape_pct"),
        ({"mape_pct": None}, "mape_pct"),
        ({"more_pct": 1.0}, "more_pct"),
        ({"kind": "guess"}, "guess"),
        ({"n": 0}, r"\.n"),
        ({}, "twice"),
    ],
)
def test_damaged_rows(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "b.json"
    good = row()
    content = {"schema": "perfmodel.baseline/2", "rows": [good, good | change]}
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=rf"b\.json: not a valid baseline: .*{said}"):
        read_baseline(path)


@pytest.mark.parametrize("rest", [{"rows": []}, {}, {"rows": [{}]}, {"rows": [], "more": 1}])
def test_damaged_files(tmp_path: Path, rest: dict[str, Any]) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({"schema": "perfmodel.baseline/2"} | rest))
    with pytest.raises(UsageError, match="not a valid baseline"):
        read_baseline(path)
