"""Reuse histograms: what streams give and files hold, and streams that have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.streams import draw_like, draw_lookups, read_histograms
from perfmodel.embedding import ReuseHistogram, population, reuse_histogram, zipf
from perfmodel.errors import WorkloadError

HEADER = "file,avg_indices,avg_unique_rows,bin_lo_excl,bin_hi_incl,frac_unique_rows,frac_accesses\n"


def test_a_stream_by_hand() -> None:
    found = reuse_histogram(np.array([4, 4, 4, 9, 1, 1]))
    assert found.most.tolist() == [1, 2, 4]
    assert found.rows.tolist() == [1, 1, 1]
    assert found.bin_lookups.tolist() == [1, 2, 3]
    assert (found.lookups, found.distinct_rows) == (6, 3)
    assert found.popularity().chance == pytest.approx([1 / 2, 1 / 3, 1 / 6])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(0, 5))
def test_drawn_like_a_histogram_has_that_histogram(stream: list[int], seed: int) -> None:
    wanted = reuse_histogram(np.array(stream))
    again = reuse_histogram(draw_like(wanted, seed=seed))
    assert again.rows.tolist() == wanted.rows.tolist()
    assert again.bin_lookups == pytest.approx(wanted.bin_lookups, abs=1.0)


def test_the_same_seed_gives_the_same_stream() -> None:
    wanted = reuse_histogram(draw_lookups(zipf(500, 1.0), 2_000, seed=1))
    assert (draw_like(wanted, seed=3) == draw_like(wanted, seed=3)).all()
    assert (draw_like(wanted, seed=3) != draw_like(wanted, seed=4)).any()


def test_part_of_the_rows_keeps_the_reuse() -> None:
    wanted = reuse_histogram(draw_lookups(zipf(200_000, 0.6), 400_000, seed=1))
    part = reuse_histogram(draw_like(wanted, 0.1))
    assert part.distinct_rows == pytest.approx(0.1 * wanted.distinct_rows, rel=1e-3)
    assert part.lookups / part.distinct_rows == pytest.approx(
        wanted.lookups / wanted.distinct_rows, rel=0.01
    )


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "reuse.csv"
    path.write_text(HEADER + "mine,100,50,0,1,0.5,0.25\nmine,100,50,1,2,0.4,0.40\n")
    found = read_histograms(path)["mine"]
    assert found.most.tolist() == [1, 2, 4]
    assert found.bin_lookups == pytest.approx([25, 40, 35])
    assert found.rows[:2] == pytest.approx([25, 20], abs=0.1)
    assert 35 / 4 <= found.rows[2] <= 35 / 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No columns"),
        ("file,bin_lo_excl\n", "avg_indices"),
        (HEADER, "no histogram"),
        (HEADER + "mine,100,50,0,1,half,0.25\n", "row 1: a number"),
        (HEADER + "mine,nan,50,0,1,0.5,0.25\n", "finite"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "reuse.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=says) as caught:
        read_histograms(path)
    assert "reuse.csv" in str(caught.value)


def test_bins_hold_what_their_counts_allow() -> None:
    with pytest.raises(WorkloadError, match="9 lookups cannot go to 2 rows at 1 to 2"):
        ReuseHistogram(np.array([1.0, 2.0]), np.array([0.0, 2.0]), np.array([0.0, 9.0]))
    with pytest.raises(WorkloadError, match="ascend"):
        ReuseHistogram(np.array([2.0, 1.0]), np.ones(2), np.ones(2))


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.3])
def test_one_batch_tells_of_batches_of_other_sizes(alpha: float) -> None:
    """Rows that the batch did not see included: a closed world would be 26 % short at its size."""
    truth, lookups = zipf(1_000_000, alpha), 500_000
    found = population(reuse_histogram(draw_lookups(truth, lookups, seed=1)))
    for other in (lookups / 64, lookups / 4, lookups, 2 * lookups):
        assert float(found.distinct_rows(other)) == pytest.approx(
            float(truth.distinct_rows(other)), rel=0.02
        )
    for hot in (1_000, 10_000, 100_000):
        assert float(found.covered_frac(hot)) == pytest.approx(
            float(truth.covered_frac(hot)), abs=0.03
        )


def test_no_more_rows_than_the_table_has() -> None:
    batch = reuse_histogram(draw_lookups(zipf(20_000, 0.5), 20_000, seed=1))
    bounded = population(batch, table_rows=20_000)
    assert bounded.total_rows <= 20_000 * (1 + 1e-9)
    with pytest.raises(WorkloadError, match="of a table of 10"):
        population(batch, table_rows=10)
