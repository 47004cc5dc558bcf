"""Against published reuse of production-like accesses (`data/locality`), on files not fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from slow import slow_but

from benchmarks.lookup_coverage import popularity_of_similar
from benchmarks.streams import draw_like, draw_lookups, last_lookups, read_histograms, replay
from perfmodel.embedding import ReuseHistogram, TableAccess, population, steady_use
from perfmodel.embedding import reuse_histogram as histogram_of
from perfmodel.errors import WorkloadError

HOT_FRAC = np.array([1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 0.6])


@pytest.fixture(scope="module")
def histograms(reference: Path) -> dict[str, ReuseHistogram]:
    return read_histograms(reference / "locality" / "locality.csv")


def halves(histograms: dict[str, ReuseHistogram]) -> list[tuple[str, str]]:
    """(fitted, held out): neighbouring files of one service, and the odd one by itself."""
    names = sorted(histograms, key=lambda name: (name.rpartition("_")[0], name))
    kinds = {name: name.split("_bs")[0] for name in names}
    pairs = []
    for kind in sorted(set(kinds.values())):
        of_kind = [name for name in names if kinds[name] == kind and name[-1].isdigit()]
        of_kind = [name for name in of_kind if name[-8:] != "_bs65536"]
        pairs += list(zip(of_kind[0::2], of_kind[1::2], strict=False))
    return pairs


def test_every_file_is_read_and_holds_its_rows(
    histograms: dict[str, ReuseHistogram], reference: Path
) -> None:
    with open(reference / "locality" / "locality_summary.csv", newline="") as file:
        for record in csv.DictReader(file):
            found = histograms[record["file"]]
            assert found.lookups == pytest.approx(float(record["avg_indices"]))
            assert found.distinct_rows == pytest.approx(float(record["avg_unique_rows"]), rel=0.01)


def test_distinct_rows_of_held_out_batches(histograms: dict[str, ReuseHistogram]) -> None:
    pairs = halves(histograms)
    assert len(pairs) == 16
    for fitted, held_out in pairs:
        other = histograms[held_out]
        told = float(population(histograms[fitted]).distinct_rows(other.lookups))
        assert told == pytest.approx(other.distinct_rows, rel=0.01)


def test_coverage_of_held_out_batches(histograms: dict[str, ReuseHistogram]) -> None:
    for fitted, held_out in halves(histograms):
        other = histograms[held_out]
        hot_rows = HOT_FRAC * other.distinct_rows
        covered = other.popularity().covered_frac(hot_rows)
        told = histograms[fitted].popularity().covered_frac(hot_rows)
        assert told == pytest.approx(covered, abs=0.005)


def orders(histograms: dict[str, ReuseHistogram]) -> list[list[ReuseHistogram]]:
    """As in the file, by name, and at random."""
    files = list(histograms.values())
    named = sorted(files, key=lambda each: each.name)
    drawn = (np.random.default_rng(seed).permutation(len(files)) for seed in range(6))
    return [files, named, *([files[place] for place in order] for order in drawn)]


def worst_coverage_error(fitted: list[ReuseHistogram], held_out: list[ReuseHistogram]) -> float:
    worst = 0.0
    for other in held_out:
        hot_rows = HOT_FRAC * other.distinct_rows
        told = popularity_of_similar(fitted, other.lookups, other.distinct_rows).covered_frac(
            hot_rows
        )
        covered = other.popularity().covered_frac(hot_rows)
        worst = max(worst, float(np.abs(told - covered).max()))
    return worst


def test_coverage_of_one_half_of_the_files_from_the_other(
    histograms: dict[str, ReuseHistogram],
) -> None:
    """The file of which there is no other included."""
    for listed in orders(histograms):
        assert worst_coverage_error(listed[0::2], listed[1::2]) < 0.02
        assert worst_coverage_error(listed[1::2], listed[0::2]) < 0.02


def test_coverage_of_another_year(histograms: dict[str, ReuseHistogram]) -> None:
    """Of 2021 from 2022 alone it is outside 0.02."""
    early = [each for name, each in histograms.items() if "_t856_" in name]
    late = [each for name, each in histograms.items() if "_t788_" in name]
    assert worst_coverage_error(early, late) < 0.02
    assert worst_coverage_error(late, early) < 0.035


def test_what_is_borrowed_has_the_rows_and_lookups_asked_for(
    histograms: dict[str, ReuseHistogram],
) -> None:
    known = histograms["fbgemm_t788_bs131072_0"]
    same = popularity_of_similar([known], known.lookups, known.distinct_rows)
    assert same.share == pytest.approx(known.popularity().share)
    other = popularity_of_similar([*histograms.values()], 4.0e8, 1.0e8)
    assert other.total_rows == pytest.approx(1.0e8)
    assert float((other.chance * 4.0e8).min()) >= 1.0 - 1e-9


@pytest.mark.parametrize(("lookups", "rows"), [(10.0, 20.0), (10.0, 0.0), (np.inf, 1.0)])
def test_what_cannot_be_borrowed(
    histograms: dict[str, ReuseHistogram], lookups: float, rows: float
) -> None:
    with pytest.raises(WorkloadError, match="borrowed"):
        popularity_of_similar([*histograms.values()], lookups, rows)
    with pytest.raises(WorkloadError, match="no reuse histogram"):
        popularity_of_similar([], lookups, rows)
    with pytest.raises(WorkloadError, match="no row comes twice"):
        popularity_of_similar([histogram_of(np.arange(9))], 10.0, 5.0)


def test_coverage_as_published(histograms: dict[str, ReuseHistogram], reference: Path) -> None:
    """The published curves begin after the rows beyond the last bin, and end without them."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(reference / "locality" / "locality_coverage.csv", newline="") as file:
        for record in csv.DictReader(file):
            point = float(record["hot_frac_unique"]), float(record["frac_accesses_covered"])
            curves.setdefault(record["file"], []).append(point)
    for fitted, held_out in halves(histograms):
        hot, covered = np.array(curves[held_out]).T
        popularity = histograms[fitted].popularity()
        beyond = 1.0 - covered[-1]
        rows = hot * histograms[held_out].distinct_rows + float(popularity.hot_rows(beyond))
        assert popularity.covered_frac(rows) == pytest.approx(covered + beyond, abs=0.02)


def test_streams_like_the_published_batches(histograms: dict[str, ReuseHistogram]) -> None:
    for name in ("fbgemm_t856_bs65536", "fbgemm_t788_bs131072_0"):
        wanted = histograms[name]
        made = histogram_of(draw_like(wanted, 2e-3, seed=1))
        assert made.lookups / made.distinct_rows == pytest.approx(
            wanted.lookups / wanted.distinct_rows, rel=0.02
        )
        low = slice(0, 8)
        assert made.rows[low] / made.distinct_rows == pytest.approx(
            wanted.rows[low] / wanted.distinct_rows, abs=0.002
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(1, ["fbgemm_t856_bs65536_3", "fbgemm_t788_bs131072_0"]))
def test_closed_forms_on_published_reuse(histograms: dict[str, ReuseHistogram], name: str) -> None:
    popularity = population(histograms[name]).part(5e-5)
    stream = draw_lookups(popularity, 120_000, seed=1)
    stream = np.concatenate([last_lookups(popularity, seed=2), stream])
    table = TableAccess(popularity=popularity, lookups=1, row_bytes=1)
    for cached_frac in (0.01, 0.1, 0.5):
        capacity = round(cached_frac * popularity.total_rows)
        found, _ = replay(stream, capacity, warm_up=len(stream) - 60_000)
        told = steady_use([table], capacity)
        assert told.hit_frac[0] == pytest.approx(found.mean(), abs=0.015)
