"""Rows in host memory: what the host's threads and the device's kernels take for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.streams import draw_lookups, replay
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.cost.tiers.host_memory import _cached_bytes, cpu_share, rank_gb_per_s
from perfmodel.cost.tiers.host_memory import bus_read_gb_per_s as read_gb_per_s
from perfmodel.embedding import zipf
from perfmodel.hardware import Cluster, cluster, device
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.embedding import PART, WORKING_SETS

MEMORY = coefficients("tiers.host_memory")
MILLION = 1e6
POOL = {"op": "host_pool", "lookups": MILLION, "row_bytes": 256.0, "bags": 1e5, "dim": 64.0}
GATHER = {"op": "host_gather", "lookups": MILLION, "row_bytes": 256.0}
APPLY = {**POOL, "op": "host_apply"}
TBE = {
    "op": "tbe_host",
    "tables": 8,
    "batch": 4096,
    "lookups": MILLION,
    "dim": 64,
    "hash_size": 1e6,
}


def machine() -> Cluster:
    return cluster("dgx-a100-80gb")


def us(row: dict[str, object], on: Cluster | None = None) -> float:
    return float(durations_of(Rows.of([row]), on or machine()).duration_us[0])


def with_host(**changes: Any) -> Cluster:
    node = machine().node
    return replace(machine(), node=replace(node, host=replace(node.host, **changes)))


def test_a_rank_has_its_share_of_the_sockets() -> None:
    assert rank_gb_per_s(machine()) == pytest.approx(MEMORY.stream_frac * 2 * 204.8 / 8)


def test_gathering_takes_its_bytes() -> None:
    # Rows read at random (256 of 320 bytes fetched), keys read and rows written in order.
    moved = MILLION * (256 * 320 / 256 + 8 + 256)
    assert us(GATHER) == pytest.approx(MEMORY.call_us + moved / rank_gb_per_s(machine()) / 1e3)


@pytest.mark.parametrize("row", [POOL, GATHER, APPLY], ids=lambda row: str(row["op"]))
def test_half_the_memory_bandwidth_is_half_as_fast(row: dict[str, object]) -> None:
    whole, half = us(row) - MEMORY.call_us, us(row, with_host(dram_gb_per_s=102.4)) - MEMORY.call_us
    assert half == pytest.approx(2 * whole)


def test_few_cores_move_little() -> None:
    why = explanations_of(Rows.of([POOL]), with_host(cores=4))[0]
    assert why.bound_by == "cores"
    assert why.terms["cores_us"] == pytest.approx(MILLION * 256 / 25 / 1e3)
    assert explanations_of(Rows.of([POOL]), machine())[0].bound_by == "memory"


def test_short_rows_cost_a_core_as_much_as_longer_ones() -> None:
    one = with_host(cores=4)
    short, longer = us({**POOL, "row_bytes": 16.0}, one), us({**POOL, "row_bytes": 128.0}, one)
    assert short == pytest.approx(longer)
    assert short - MEMORY.call_us == pytest.approx(MILLION * MEMORY.row_us)


def test_repeated_rows_are_updated_once() -> None:
    few = us({**APPLY, "unique_rows": 1e5})
    assert few < us(APPLY)
    assert us({**APPLY, "unique_rows": 1e5, "state_bytes": 256.0}) > few


def test_rows_that_come_again_may_still_be_cached() -> None:
    few, many = us({**POOL, "unique_rows": 1e4}), us({**POOL, "unique_rows": 9e5})
    assert few < 0.5 * many < 0.6 * us(POOL)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.2])
@pytest.mark.parametrize("held_frac", [0.7, 0.3, 0.05])
def test_a_cache_keeps_popular_rows(alpha: float, held_frac: float) -> None:
    """50,000 lookups of 20,000 rows, and as many of 200 rows four times as long, in turn, against a
    simulated cache."""
    lookups, generator = 100_000, np.random.default_rng(1)
    drawn, shares = np.empty(lookups, np.int64), []
    for at, rows in enumerate((20_000, 200)):
        weights = np.arange(1.0, rows + 1.0) ** -alpha
        shares.append(weights / weights.sum())
        drawn[at::2] = generator.choice(rows, lookups // 2, p=shares[at]) + at * 20_000
    size = np.where(drawn < 20_000, 256.0, 1024.0)
    parts = lookups / 2 / float(PART) ** np.arange(len(WORKING_SETS))
    sets = [
        sum((1 - (1 - p) ** count).sum() * b for p, b in zip(shares, (256.0, 1024.0), strict=True))
        for count in parts.tolist()
    ]
    capacity = held_frac * sets[0]
    kept, used, hits = dict[int, float](), 0.0, 0.0
    for row, row_bytes in zip(drawn.tolist(), size.tolist(), strict=True):
        hits += row_bytes if row in kept else 0.0
        used += 0.0 if row in kept else row_bytes
        kept.pop(row, None)
        kept[row] = row_bytes
        while used > capacity:
            used -= kept.pop(next(iter(kept)))
    dims = {"lookups": lookups, "row_bytes": size.mean(), "unique_rows": 20_200.0}
    dims |= dict(zip(WORKING_SETS, sets, strict=True))
    found = float(_cached_bytes({name: np.array([it]) for name, it in dims.items()}, capacity)[0])
    assert found == pytest.approx(hits, abs=0.05 * size.sum())


def test_unknown_hosts_have_a_cache_by_their_cores() -> None:
    assert cpu_share(machine().node).llc_bytes == 2 * 256 * 2**20 / 8
    own = cpu_share(with_host(name="mine", cores=32).node).llc_bytes
    assert own == device("generic-cpu").llc_bytes * 2 / 8


def test_narrow_rows_waste_bandwidth() -> None:
    narrow = {**GATHER, "row_bytes": 32.0, "lookups": 8 * MILLION}
    assert us(narrow) > 1.3 * us(GATHER)


def test_the_device_reads_over_its_bus() -> None:
    rows = Rows.of([TBE, {**TBE, "direction": "bwd", "unique_rows": 1e5}])
    forward, backward = explanations_of(rows, machine())
    assert forward.bound_by == "bus"
    rate = float(read_gb_per_s(np.array([256.0]), machine().node.device)[0])
    assert forward.terms["bus_us"] == pytest.approx(MILLION * 256 / rate / 1e3, rel=1e-3)
    assert backward.duration_us < forward.duration_us


def test_popular_rows_pass_the_bus_once_in_backward_and_less_often_in_forward() -> None:
    """8.4 million rows of Zipf 1.05, 1,048,576 lookups: what 132 caches of 228 KB replay misses."""
    on = cluster("dgx-h100")
    row = {"op": "tbe_host", "tables": 1, "batch": 2**20, "lookups": 2**20, "dim": 128}
    row |= {"hash_size": 2**23, "zipf_alpha": 1.05, "timing": "event_loop_eager"}
    forward, backward = explanations_of(Rows.of([row, row | {"direction": "bwd"}]), on)
    popularity = zipf(2**23, 1.05)
    own = draw_lookups(popularity, 2**20 // 132, seed=1)
    found, _ = replay(own, 233_472 // 512)
    rate = float(read_gb_per_s(np.array([512.0]), on.node.device)[0])
    missed = 2**20 * (1.0 - found.mean()) * 512
    assert forward.terms["bus_us"] == pytest.approx(missed / rate / 1e3, rel=0.03)
    distinct = float(popularity.distinct_rows(2**20)) * 512
    assert backward.terms["bus_us"] == pytest.approx(
        distinct * (1 + 24 / 128) / (0.8 * 63) / 1e3, rel=0.01
    )


def test_a_bus_carries_both_ways_at_once() -> None:
    """As measured on H100 with Adam: 433,723 rows of 512 bytes, with both moments or these alone
    in host memory, in 15.9 and 10.8 ms."""
    on = cluster("dgx-h100")
    on = replace(on, node=replace(on.node, host=replace(on.node.host, dram_gb_per_s=2500.0)))
    update = {**TBE, "direction": "bwd", "dim": 128, "hash_size": 3e7, "unique_rows": 433_723}
    all_of_them, moments = [{**update, "state_bytes": size} for size in (1024, 512)]
    found = durations_of(Rows.of([all_of_them, moments]), on).duration_us
    assert found == pytest.approx([15_950, 10_830], rel=0.1)


@pytest.mark.parametrize(("name", "tags"), [("v100-sxm2-32gb", 256), ("a100-sxm-80gb", 768)])
def test_a_bus_has_so_many_requests_on_its_way(name: str, tags: int) -> None:
    wide, narrow = read_gb_per_s(np.array([512.0, 32.0]), device(name))
    assert narrow == pytest.approx(tags * 32 / 1.6 / 1e3)
    assert wide == pytest.approx(0.78 * device(name).host_gb_per_s)


def test_one_process_has_all_cores_of_its_node() -> None:
    """Or 16 of 128 cores, where each of eight devices has a process; a tenth of the work is one
    thread's."""
    row = {"op": "host_embedding_bag", "hash_size": 1e6, "dim": 16, "pooling": 1, "batch": 65_536}
    each, one = us(row), us({**row, "processes": 1.0})
    assert 0.5 * each < one < 0.9 * each
    both = durations_of(Rows.of([row, {**row, "processes": 1.0}]), machine()).duration_us
    assert both.tolist() == pytest.approx([each, one], rel=1e-9)
    told = explanations_of(Rows.of([{**row, "processes": 1.0}, row]), machine())
    assert [found.duration_us for found in told] == pytest.approx([one, each], rel=1e-9)
