"""What a rank looks up of tables in row-wise parts, beside rows that are drawn and cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.streams import replay
from perfmodel.embedding import Placement, TablePlacement, steady_use
from perfmodel.workload import Table, Workload, load_workload, op_graph
from perfmodel.workload.settings import Implementation, Model
from perfmodel.workload.sharding import Plan, plan, plan_of_placement
from perfmodel.workload.step import rank_classes

ROWS, DRAWS = 20_000, 150
WITHIN = 0.02


def workload(*tables: Table, software: str = "torchrec", batch: int = 1024) -> Workload:
    about = Implementation(software, sharding="row_wise")
    return Workload("skewed", Model(4, (8,), (1,)), tables, batch, implementation=about)


def chances(table: Table) -> NDArray[np.float64]:
    """Of each row, the most popular first, `[rows]`."""
    use = table.popularity()
    at = np.searchsorted(np.cumsum(use.rows), np.arange(table.rows) + 0.5)
    chance = use.chance[np.minimum(at, len(use.rows) - 1)]
    return np.asarray(chance / chance.sum())


def held(layout: Plan, rank: int, tables: tuple[Table, ...]) -> list[Table]:
    return [shard.of(tables) for shard in layout.shards[rank]]


def load(tables: list[Table]) -> float:
    return sum(table.pooling * table.dim for table in tables)


@pytest.mark.parametrize("ranks", [4, 8, 32])
@pytest.mark.parametrize(
    "alphas", [(0.0,), (0.5,), (1.05,), (1.5,), (1.05,) * 3, (0.0, 0.6, 1.2, 1.5)]
)
def test_the_busiest_of_ranks_to_which_rows_fall_by_chance(
    alphas: tuple[float, ...], ranks: int
) -> None:
    """Its lookups and distinct rows, and those of the mean rank, against rows dealt out by chance,
    equally many to each; of the truth an error of 1 % is left."""
    tables = tuple(Table(ROWS, 16, 10.0 + 5 * n, alpha) for n, alpha in enumerate(alphas))
    batch, generator = 2048, np.random.default_rng(3)
    loads, distinct = np.zeros((2, DRAWS, ranks))
    for table in tables:
        chance = chances(table)
        touched = -np.expm1(table.lookups(batch) * np.log1p(-chance))
        for draw in range(DRAWS):
            rank_of = generator.permutation(np.arange(ROWS) % ranks)
            loads[draw] += np.bincount(rank_of, chance * table.pooling * table.dim, ranks)
            distinct[draw] += np.bincount(rank_of, touched, ranks)
    layout = plan(workload(*tables), ranks)
    first, other = held(layout, 0, tables), held(layout, ranks - 1, tables)
    busiest = loads.argmax(axis=1)
    noise = 3 * loads.max(axis=1).std() / np.sqrt(DRAWS) / loads.max(axis=1).mean()
    assert load(first) == pytest.approx(loads.max(axis=1).mean(), rel=WITHIN / 2 + noise)
    assert load(first) + (ranks - 1) * load(other) == pytest.approx(loads.sum(axis=1).mean())
    unique = [sum(table.unique_rows(batch) for table in own) for own in (first, other)]
    of_busiest = distinct[range(DRAWS), busiest]
    noise = of_busiest.std() / np.sqrt(DRAWS)
    assert unique[0] == pytest.approx(of_busiest.mean(), rel=WITHIN, abs=3 * noise)
    mean = (unique[0] + (ranks - 1) * unique[1]) / ranks
    assert mean == pytest.approx(distinct.mean(), rel=WITHIN / 2)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.05, 1.5])
@pytest.mark.parametrize("ranks", [2, 8, 30])
def test_blocks_of_rows_in_the_order_of_popularity(alpha: float, ranks: int) -> None:
    """Every rank's lookups and distinct rows against sums over its rows."""
    table = Table(ROWS, 16, 20.0, alpha, ids="by_popularity")
    layout, batch = plan(workload(table), ranks), 512
    chance = chances(table)
    touched = -np.expm1(table.lookups(batch) * np.log1p(-chance))
    size = -(-ROWS // ranks)
    for rank in range(ranks):
        (part,) = held(layout, rank, (table,))
        own = slice(rank * size, (rank + 1) * size)
        assert part.pooling == pytest.approx(20.0 * chance[own].sum(), rel=WITHIN / 4)
        rounded = 0.5  # lookups are whole
        assert part.unique_rows(batch) == pytest.approx(touched[own].sum(), rel=0.005, abs=rounded)


def test_fewer_rows_than_blocks_have_room_for() -> None:
    """Nine rows in eight blocks of two: five blocks have rows, three are taken to have the last."""
    table = Table(9, 8, 9.0, ids="by_popularity", histogram=((0.2, 1 / 9), (0.8, 8 / 9)))
    layout = plan(workload(table), 8)
    pooling = [held(layout, rank, (table,))[0].pooling for rank in range(8)]
    assert pooling == pytest.approx([9 * 0.3, *[9 * 0.2] * 3, *[9 * 0.1] * 4])


def test_hand_made_blocks() -> None:
    """Four of 100 rows get 60 % of the lookups. Of four blocks of 25 the first has these, and 21 of
    the 96 others: 0.6 + 0.4 x 21 / 96; the others have 0.4 x 25 / 96 each."""
    table = Table(100, 8, 10.0, histogram=((0.6, 0.04), (0.4, 0.96)), ids="by_popularity")
    layout = plan(workload(table), 4)
    pooling = [held(layout, rank, (table,))[0].pooling for rank in range(4)]
    assert pooling == pytest.approx([10 * (0.6 + 0.4 * 21 / 96), *[10 * 0.4 * 25 / 96] * 3])
    hashed = plan(workload(table, software="hugectr"), 4)
    assert held(hashed, 0, (table,))[0].pooling < pooling[0]


def test_one_row_that_has_half_of_all_lookups_is_on_one_rank() -> None:
    """The busiest has it, and of the rest, even, a quarter: 0.5 + 0.5 / 4."""
    table = Table(1_000_001, 8, 8.0, histogram=((0.5, 1e-6), (0.5, 1 - 1e-6)))
    layout = plan(workload(table), 4)
    pooling = [held(layout, rank, (table,))[0].pooling for rank in range(4)]
    assert pooling == pytest.approx([8 * 0.625, *[8 * 0.125] * 3], rel=0.01)


def test_ranks_stand_for_classes() -> None:
    """The busiest and the others; even rows make one class; in blocks each rank is its own."""
    table = Table(ROWS, 16, 20.0, 1.05)
    counts = [
        [len(each.ranks) for each in rank_classes(workload(replace(table, **about)), 8)]
        for about in ({}, {"alpha": 0.0}, {"ids": "by_popularity"})
    ]
    assert counts == [[1, 7], [8], [1] * 8]


@pytest.mark.parametrize("ids", ["scattered", "by_popularity"])
def test_ranks_get_the_keys_that_they_hold(ids: str) -> None:
    """What ranks send one another of the keys: uneven, in all as many as there are."""
    model, ranks = workload(Table(ROWS, 16, 20.0, 1.2, ids=ids)), 8  # type: ignore[arg-type]
    layout, got = plan(model, ranks), []
    for rank in (0, ranks - 1):
        graph = op_graph(model, 1024, ranks=ranks, rank=rank)
        (keys,) = [
            op.attributes
            for op in graph.ops
            if op.name == "c10d::alltoall_base_"
            and op.phase == "input"
            and len(set(op.attributes["in_split"].split(","))) > 1
        ]
        assert sum(map(int, keys["in_split"].split(","))) == pytest.approx(128 * 20, abs=ranks)
        got.append(int(keys["out_elements"]))
    for rank, count in zip((0, ranks - 1), got, strict=True):
        assert count == pytest.approx(1024 * held(layout, rank, model.tables)[0].pooling, abs=ranks)
    assert got[0] > 1.5 * got[1]


def test_blocks_are_in_the_order_of_a_placements_ranks() -> None:
    model = workload(Table(ROWS, 16, 20.0, 1.2, ids="by_popularity"))
    layout = plan_of_placement(model, Placement((TablePlacement("row_wise", (2, 0, 1)),)), 3)
    pooling = [held(layout, rank, model.tables)[0].pooling for rank in range(3)]
    assert pooling[2] > pooling[0] > pooling[1]


@pytest.mark.parametrize(("pooling", "is_certain"), [(1.0, False), (90.0, True)])
def test_a_whole_table_beside_a_part_makes_its_rank_the_busiest(
    pooling: float, is_certain: bool
) -> None:
    """A little one: it is first among ranks any of which may have the popular rows. A large one: it
    is the busiest in any case, with a part as everywhere."""
    model = workload(Table(ROWS, 16, 20.0, 1.2), Table(ROWS, 16, pooling), Table(ROWS, 16, 1.0))
    tables = (
        TablePlacement("row_wise", (0, 1, 2)),
        TablePlacement("table_wise", (1,)),
        TablePlacement("table_wise", (3,)),
    )
    layout = plan_of_placement(model, Placement(tables), 4)
    own = [held(layout, rank, model.tables) for rank in range(4)]
    share = own[1][0].pooling / (20 / 3)
    assert share == pytest.approx(1.0) if is_certain else share > 1.1
    assert own[0][0].pooling == own[2][0].pooling
    assert load(own[3]) == 16.0


def test_parts_within_a_node_are_the_busiest_of_those_ranks() -> None:
    """Of two nodes of four each has a table: one rank of the first has more, and its peers less."""
    model = workload(*[Table(ROWS, 16, 20.0, 1.2)] * 2)
    tables = tuple(TablePlacement("table_row_wise", (n, n + 1, n + 2, n + 3)) for n in (0, 4))
    layout = plan_of_placement(model, Placement(tables), 8, 4)
    loads = [load(held(layout, rank, model.tables)) / (16 * 20 / 4) for rank in range(8)]
    assert loads[0] > 1.4
    assert loads[1:4] == pytest.approx([(4 - loads[0]) / 3] * 3)
    assert loads[4:] == pytest.approx([1.0] * 4)
    alone = plan_of_placement(workload(model.tables[0]), Placement(tables[:1]), 4, 4)
    assert loads[0] > load(held(alone, 0, model.tables)) / (16 * 20 / 4)


@pytest.mark.parametrize("ids", ["scattered", "by_popularity"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.05, 1.5])
def test_lookups_and_distinct_rows_of_each_rank_against_replayed_ids(
    ids: str, alpha: float
) -> None:
    """Batches of 4,000 ids, cut as the ranks have them: within 2 % and three standard errors. Of
    rows anywhere 40 tables are drawn, their ranks in the order of their load: the busiest and the
    others together."""
    ranks, samples, batches = 4, 200, 8
    tables = 1 if ids == "by_popularity" else 40
    table = Table(ROWS, 16, 20.0, alpha, ids=ids)  # type: ignore[arg-type]
    generator, drawn = np.random.default_rng(4), []
    for _ in range(tables):
        place = np.arange(ROWS) if ids == "by_popularity" else generator.permutation(ROWS)
        rank_of = place // (ROWS // ranks)
        stream = generator.choice(ROWS, (batches, samples * 20), p=chances(table))
        lookups = np.bincount(rank_of[stream].ravel(), minlength=ranks)
        distinct = sum(np.bincount(rank_of[np.unique(each)], minlength=ranks) for each in stream)
        order = np.arange(ranks) if ids == "by_popularity" else np.argsort(-lookups)
        drawn.append(np.array([lookups[order], distinct[order]]) / batches)
    layout = plan(workload(table), ranks)
    parts = [held(layout, rank, (table,))[0] for rank in range(ranks)]
    expected = np.array([[samples * x.pooling, x.unique_rows(samples)] for x in parts]).T
    found, spread = np.mean(drawn, axis=0), np.std(drawn, axis=0) + np.sqrt(expected / batches)
    error = expected - found
    if ids == "scattered":
        error = np.stack([error[:, 0], error[:, 1:].mean(axis=1)], axis=1)
        found, spread = found[:, :2], spread[:, :2]
    assert (np.abs(error) <= WITHIN * found + 3 * spread / np.sqrt(tables)).all()


@pytest.mark.parametrize("ids", ["scattered", "by_popularity"])
@pytest.mark.parametrize("alpha", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_hits_of_each_ranks_cache_against_replayed_ids(ids: str, alpha: float, policy: str) -> None:
    """A stream of ids, cut as the ranks have it; LRU replayed lookup by lookup, LFU the rank's most
    popular rows. Of rows anywhere all ranks together are met."""
    ranks, rows, lookups, kept = 4, 4_000, 160_000, 300
    table = Table(rows, 16, 20.0, alpha, ids=ids)  # type: ignore[arg-type]
    generator = np.random.default_rng(2)
    popular = generator.choice(rows, lookups, p=chances(table))  # numbered by popularity
    place = np.arange(rows) if ids == "by_popularity" else generator.permutation(rows)
    layout, found, expected = plan(workload(table), ranks), [], []
    for rank in range(ranks):
        own = popular[place[popular] // (rows // ranks) == rank]
        (part,) = held(layout, rank, (table,))
        use = steady_use([part.access(len(own), 64.0)], kept * 64.0, policy)
        expected.append(use.overall_hit_frac * len(own))
        if policy == "lru":
            hits = replay(own, kept, warm_up=len(own) // 4)[0].mean()
        else:
            best = np.sort(np.flatnonzero(place // (rows // ranks) == rank))[:kept]
            hits = np.isin(own, best).mean()
        found.append(hits * len(own))
    if ids == "scattered":
        found, expected = [sum(found)], [sum(expected)]
    assert np.array(expected) / lookups == pytest.approx(np.array(found) / lookups, abs=WITHIN / 2)


@pytest.mark.parametrize("dedup", [False, True])
def test_skewed_ids_of_sequences_go_to_the_ranks_with_their_rows(dedup: bool) -> None:
    """Of Zipf 1.2 over blocks by popularity the first of 8 ranks is asked for most; of distinct
    rows for less of it; without skew all for the same."""
    equal = load_workload("dlrm-v4-hstu").with_(
        sequence__length_std=0.0, sequence__unique_frac=[0.2 if dedup else 1.0] * 11
    )
    asked = {}
    for alpha in (0.0, 1.2):
        model = equal.with_(
            table__alpha=alpha, table__ids="by_popularity", sequence__index_dedup=dedup
        )
        ops = op_graph(model, 256, ranks=8, rank=0).ops
        ids = max(
            (op.attributes for op in ops if op.attributes.get("dtype") == "int64"),
            key=lambda about: int(about.get("in_elements", 0)),
        )
        split = [int(each) for each in ids["in_split"].split(",")]
        assert sum(split) == pytest.approx(int(ids["in_elements"]), rel=1e-3)
        asked[alpha] = split[0] / np.mean(split)
    assert asked[0.0] == pytest.approx(1.0)
    assert (1.05 < asked[1.2] < 7.0) if dedup else (asked[1.2] > 7.0)


def test_ranks_beside_the_busiest_always_have_some_lookups() -> None:
    """Of parts on different pairs of ranks, what the busiest has more is bounded by its tables."""
    sizes = ((5.0, 0.6), (25.0, 10.0), (12.0, 0.0), (12.0, 0.0))
    model = workload(*(Table(ROWS, 128, pooling, alpha) for pooling, alpha in sizes))
    tables = (
        TablePlacement("row_wise", (0, 1)),
        TablePlacement("row_wise", (2, 3)),
        TablePlacement("table_wise", (0,)),
        TablePlacement("table_wise", (1,)),
    )
    layout = plan_of_placement(model, Placement(tables), 4)
    for rank in range(4):
        for part in held(layout, rank, model.tables):
            assert part.pooling > 0
            assert part.unique_rows(4096) >= 1
