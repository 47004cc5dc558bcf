"""Index streams from files, and drawn ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.streams import draw_lookups, last_lookups, scatter
from perfmodel.embedding import read_stream, zipf
from perfmodel.errors import WorkloadError

ROWS = np.array([3, 3, 5, 0])


def test_every_kind_of_file_reads_alike(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.savez(tmp_path / "a.npz", ads=ROWS, users=ROWS[:2])
    frame = pd.DataFrame({"table": ["ads"] * 4, "row": ROWS})
    frame.to_parquet(tmp_path / "a.parquet")
    frame[["row"]].to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "a.txt").write_text("3\n3\n5\n0\n")
    for name, table in (("npy", ""), ("npz", "ads"), ("parquet", "ads"), ("csv", ""), ("txt", "")):
        assert read_stream(tmp_path / f"a.{name}")[table].tolist() == ROWS.tolist()
    assert read_stream(tmp_path / "a.npz")["users"].tolist() == [3, 3]


def test_pairs_of_table_and_row(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 7], [0, 8], [1, 9]]))
    found = read_stream(tmp_path / "a.npy")
    assert {name: rows.tolist() for name, rows in found.items()} == {"0": [8], "1": [7, 9]}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.pt", b"", "ends in .npy"),
        ("a.npy", b"not numpy", "cannot be read"),
        ("a.txt", b"1\ntwo\n", "cannot be read"),
        ("a.txt", b"", "no lookups"),
        ("a.txt", b"4\n-1\n", "row -1 at lookup 1"),
        ("a.csv", b"t0,t1\n1,x\n", "t1: row numbers must be integers"),
        ("a.csv", b"row\n1.5\n", "must be integers"),
        ("none.npy", None, "cannot be read"),
    ],
)
def test_what_is_no_stream_is_named(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=says) as caught:
        read_stream(tmp_path / name)
    assert name in str(caught.value)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_stream(tmp_path / "a.npy")


def test_drawn_lookups_follow_their_popularity() -> None:
    popularity = zipf(30_000, 0.9)
    drawn = draw_lookups(popularity, 200_000, seed=1)
    assert drawn.max() < 30_000
    for hot in (1, 100, 5_000):
        found = np.isin(drawn, scatter(np.arange(hot), 30_000)).mean()
        assert found == pytest.approx(float(popularity.covered_frac(hot)), abs=5e-3)
    touched = float(popularity.distinct_rows(200_000))
    assert len(np.unique(drawn)) == pytest.approx(touched, rel=0.01)


def test_scattering_is_a_permutation() -> None:
    for rows in (1, 2, 10, 997, 1_000):
        assert sorted(scatter(np.arange(rows), rows).tolist()) == list(range(rows))


def test_every_row_was_looked_up_last_once() -> None:
    assert sorted(last_lookups(zipf(500, 0.8), seed=1).tolist()) == list(range(500))


def test_the_same_seed_draws_the_same_rows() -> None:
    one, two = (draw_lookups(zipf(500, 1.0), 100, seed=7) for _ in range(2))
    assert (one == two).all()
