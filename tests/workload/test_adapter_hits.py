"""What an adapter's cache finds: closed forms, the learned model, and exact replays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.nic_cache import replay_capacities
from benchmarks.streams import Topics, draw_queries
from perfmodel.embedding import Popularity, Queries, reordered, uniform, zipf
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.workload.adapter_caches import measured_reuse
from perfmodel.workload.adapter_hits import NicLoad, NicTable, bundled, fitted_hit_frac, nic_hits

MODELS = ("heuristic", "learned")


def hit_frac(given_load: NicLoad, by: str = "learned") -> float:
    """Of the lookups of all tables."""
    found = nic_hits(given_load, by)
    lookups = [each.table.lookups for each in found]
    return float(np.average([each.hit_frac for each in found], weights=lookups))


def load(alpha: float = 1.0, rows: int = 10_000, cached: float = 500.0, **more: object) -> NicLoad:
    table = NicTable(popularity=zipf(rows, alpha), lookups=4096 * 10.0, row_bytes=1.0, pooling=10.0)
    return replace(NicLoad((table,), cached, 4096.0), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", MODELS)
def test_a_uniform_table_hits_in_proportion_to_the_cache(model: str) -> None:
    table = NicTable(popularity=uniform(10_000), lookups=1e6, row_bytes=64.0)
    found = hit_frac(NicLoad((table,), 2_500 * 64.0, 1e5), model)
    assert found == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("topics", [None, Topics(16, 24, 0.6)])
@pytest.mark.parametrize("order", ["as_they_come", "walked"])
def test_the_learned_model_agrees_with_replays_of_a_skew_it_has_not_seen(
    topics: Topics | None, order: str
) -> None:
    features, hits, closed = replay_capacities(zipf(6_000, 0.75), 256, 12, topics, order, 77)
    learned = fitted_hit_frac(bundled(), features)
    assert np.median(np.abs(learned - hits)) < 0.04
    if topics is not None:
        assert np.abs(learned - hits).mean() < np.abs(closed - hits).mean()


def test_both_agree_where_queries_are_independent() -> None:
    found = [hit_frac(load(alpha), model) for alpha in (0.6, 1.2) for model in MODELS]
    assert found[0] == pytest.approx(found[1], abs=0.01)
    assert found[2] == pytest.approx(found[3], abs=0.01)


@given(st.sampled_from([0.5, 0.9, 1.3]), st.lists(st.integers(1, 9_000), min_size=2, max_size=4))
@settings(max_examples=15, deadline=None)
def test_more_memory_never_finds_less(alpha: float, sizes: list[int]) -> None:
    shared = ((1.0, 1.3), (16.0, 1.5), (64.0, 1.8), (4096.0, 1.8))
    for model, reuse in product(MODELS, ((), shared)):
        hits = [hit_frac(load(alpha, cached=size, reuse=reuse), model) for size in sorted(sizes)]
        assert all(more >= less - 1e-9 for less, more in pairwise(hits))


def test_repeats_within_a_query_are_found() -> None:
    """Topics of six rows of a uniform table: most lookups of a query repeat one of its own."""
    features, hits, closed = replay_capacities(
        uniform(20_000), 200, 60, Topics(4, 6, 0.7), "walked", 7
    )
    assert hits.min() > 0.6
    assert closed == pytest.approx(hits, abs=0.05)
    assert fitted_hit_frac(bundled(), features) == pytest.approx(hits, abs=0.15)


@given(st.floats(0.3, 1.5), st.integers(10, 9_000))
@settings(max_examples=15, deadline=None)
def test_what_is_found_and_what_goes_on_are_all_lookups(alpha: float, cached: int) -> None:
    given_load = load(alpha, cached=cached)
    (found,) = nic_hits(given_load)
    beyond = found.missed.lookups if found.missed is not None else 0.0
    table = given_load.tables[0]
    assert beyond + found.hit_frac * table.lookups == pytest.approx(table.lookups)
    assert found.bags_hit_frac <= found.hit_frac
    (whole,) = nic_hits(given_load, whole_bags=True)
    assert whole.hit_frac == found.bags_hit_frac


@pytest.mark.parametrize("model", MODELS)
def test_hits_rise_with_skew(model: str) -> None:
    hits = [hit_frac(load(alpha), model) for alpha in (0.4, 0.8, 1.0, 1.3)]
    assert hits == sorted(hits)


def test_rows_that_come_together_are_found_together() -> None:
    table = replace(load().tables[0], together=True)
    (together,), (apart,) = nic_hits(NicLoad((table,), 500.0, 4096.0)), nic_hits(load())
    assert together.bags_hit_frac == pytest.approx(together.hit_frac, rel=1e-9)
    assert together.hit_frac == pytest.approx(apart.hit_frac, rel=1e-9)
    assert apart.bags_hit_frac == pytest.approx(apart.hit_frac**10)


def test_what_misses_is_less_popular() -> None:
    given_load = load()
    missed = nic_hits(given_load)[0].missed
    assert missed is not None
    before = float(given_load.tables[0].popularity.covered_frac(100))
    assert float(missed.popularity.covered_frac(100)) < before


def test_measured_reuse_raises_what_is_found() -> None:
    reuse = ((1.0, 1.0), (16.0, 1.5), (64.0, 1.8), (4096.0, 1.8))
    for model in MODELS:
        assert hit_frac(load(reuse=reuse), model) > hit_frac(load(), model) + 0.05
    static = load(reuse=reuse, policy="static")
    assert hit_frac(static) == pytest.approx(hit_frac(load(policy="static")), rel=1e-9)


def test_an_order_gathers_queries_with_topics_in_common() -> None:
    popularity = zipf(20_000, 0.8)
    drawn = [draw_queries(popularity, 256, 10, topics=Topics(16, 12, 0.6), seed=3)]
    before = dict(measured_reuse(drawn, popularity))
    order, pairs = reordered(drawn[0])
    after = dict(measured_reuse([drawn[0].in_order(order)], popularity))
    assert after[16.0] > 1.2 * before[16.0]
    assert after[256.0] == pytest.approx(before[256.0])
    assert pairs > 0


def test_measured_reuse_of_what_is_looked_up_over_and_over() -> None:
    queries = Queries(np.arange(0, 9, 2), np.array([0, 1] * 4))
    found = measured_reuse([queries], uniform(1_000_000))
    assert [window for window, _ in found] == [1.0, 4.0]
    assert found[0][1] == pytest.approx(1.0, abs=1e-5)
    assert found[1][1] == pytest.approx(4.0, abs=1e-4)


def test_zero_popularity_and_unknown_names_are_refused() -> None:
    with pytest.raises(WorkloadError, match="sum to 0"):
        Popularity(np.array([10.0]), np.array([0.0]))
    with pytest.raises(PerfmodelError, match="cache policy"):
        nic_hits(load(policy="psychic"))
