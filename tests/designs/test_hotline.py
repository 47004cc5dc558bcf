"""Hot rows on every device: what is gathered, where that gains, where not, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from designs.hot_rows import BASE, BATCH, ROWS, pieces, predicted, start
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.cost.durations import explanations_of
from perfmodel.designs import DESIGNS, Design, deployment_of
from perfmodel.designs.baselines import Hybrid
from perfmodel.designs.composed import composed
from perfmodel.designs.popular_samples import MIB, Fae, Hotline, choose_hot_rows
from perfmodel.embedding import MicroBatch, Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, Nic, cluster
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict
from perfmodel.prediction.compare import fastest
from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.workload import load_workload
from perfmodel.workload.memory_tiers import tier_use

UNPARTED = partial(Hotline, launches="as_they_come", learning_frac=0.0)
KNOWN = partial(Hotline, learning_frac=0.0)


def test_what_is_not_hot_is_gathered_once_and_comes_back() -> None:
    found = UNPARTED(hot_mib=100).apply(start())
    per_rank = BATCH // 4
    gathers = [piece for piece in pieces(found) if piece.op == "rows_to_device"]
    applied = [piece for piece in pieces(found) if piece.op == "rows_to_host"]
    assert len(gathers) == len(applied) == 1
    assert gathers[0].dims["lookups"] == applied[0].dims["lookups"]
    cold = 0.0
    for table, placed in zip(found.workload.tables, found.placement.tables, strict=True):
        cold += per_rank * (1 - float(table.popularity().covered_frac(placed.hot_rows)))
    assert 0.5 * cold < gathers[0].dims["lookups"] <= cold
    looked_up = [piece for piece in pieces(found) if piece.op == "tbe" and piece.direction == "fwd"]
    assert [piece.dims["batch"] for piece in looked_up] == [per_rank]


def test_popular_samples_alone_leave_host_memory_alone() -> None:
    found = choose_hot_rows(start(), 100 * MIB)
    hot = start().with_(
        placement=found.placement, pipeline=Pipeline((MicroBatch(1.0, popular=True),))
    )
    assert not [piece for piece in pieces(hot) if piece.op.startswith(("host_", "rows_to"))]


def test_gathering_is_beside_the_step_and_no_work_of_the_device() -> None:
    found = UNPARTED(hot_mib=100).apply(start())
    alone = replace(found.pipeline, rows_beside=False, writes_behind=False)
    waits = predict(found.with_(pipeline=alone)).results[0]
    beside = predict(found).results[0]
    assert beside.step_us < waits.step_us
    graph = beside.timeline.graph
    offloads = graph.nodes_.kind == NodeKind.OFFLOAD
    names = {graph.resources[at] for at in graph.nodes_.resource[offloads].tolist()}
    assert offloads.any()
    assert all(name.endswith("accelerator") for name in names)


def test_without_reuse_nothing_is_gained() -> None:
    """Hotline gains by its pipeline alone then, and by adding up gradients on GPUs."""
    plain = start(0.0)
    hybrid = predicted(Hybrid(), plain)
    assert predicted(Fae(hot_mib=10), plain).step_us == pytest.approx(hybrid.step_us, rel=1e-3)
    found = UNPARTED(hot_mib=10, accelerator="none").apply(plain)
    in_turn = replace(found.pipeline, input_ahead=False, rows_beside=False, writes_behind=False)
    alone = predict(found.with_(pipeline=in_turn)).results[0]
    assert alone.step_us > 0.8 * hybrid.step_us
    assert choose_hot_rows(plain, 10 * MIB).popular_frac < 1e-6


GAINING = [Hotline(hot_mib=20), Fae(hot_mib=20, inputs=1e9, pooled_on="operators")]


@pytest.mark.parametrize("design", GAINING)
def test_the_gain_rises_with_skew(design: Design) -> None:
    gains = [
        predicted(BASE, start(alpha)).step_us / predicted(design, start(alpha)).step_us
        for alpha in (0.0, 0.6, 0.9)
    ]
    assert gains[0] < gains[1] < gains[2]


@pytest.mark.parametrize("design", GAINING)
def test_the_gain_fades_where_dense_work_dominates(design: Design) -> None:
    gains = [
        predicted(BASE, start(top=width)).step_us / predicted(design, start(top=width)).step_us
        for width in (4_096, 16_384, 32_768)
    ]
    assert gains[0] > gains[1] > gains[2] > 1
    assert gains[2] - 1 < (gains[0] - 1) / 3, gains


@settings(max_examples=15, deadline=None)
@given(st.floats(0.5, 500), st.floats(0.0, 1.3))
def test_the_budget_is_kept(hot_mib: float, alpha: float) -> None:
    found = Hotline(hot_mib=hot_mib).apply(start(round(alpha, 2)))
    device, host = tier_use(found.workload, found.placement, found.machine)
    assert device.caches_bytes <= hot_mib * MIB + 4 * 4 * 64
    assert host.tables_bytes == 4 * ROWS * 64 * 4
    shares = [part.samples_frac for part in found.pipeline.micro_batches]
    assert sum(shares) == pytest.approx(1)


def test_a_measured_share_of_popular_samples_counts() -> None:
    least, most = (
        KNOWN(hot_mib=20, popular_frac=share).apply(start()).phases[0] for share in (0.2, 0.6)
    )
    assert (least.steps_frac, most.steps_frac) == pytest.approx((0.2, 0.6), abs=1e-3)


def test_inference_gathers_and_writes_nothing_back() -> None:
    found = Hotline(hot_mib=100).apply(replace(start(), train=False))
    assert predict(found).results[0].step_us < predicted(Hotline(100), start()).step_us


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("hotline", {"hot_mib": 1e-9}, "at least a row of each"),
        ("hotline", {"hot_mib": float("nan")}, "got nan"),
        ("hotline", {"hot_mib": float("inf")}, "got inf"),
        ("hotline", {"popular_frac": 1.5}, "hotline.popular_frac: expected a number from 0 to 1"),
        ("hotline", {"popular_frac": -0.5}, "got -0.5"),
        ("fae", {"hot_mib": -1.0}, "fae.hot_mib: expected a number from 0 to 1e"),
        ("fae", {"popular_frac": float("nan")}, "got nan"),
        ("fae", {"sampled_frac": 0.0}, "got 0.0"),
        ("fae", {"inputs": -1.0}, "got -1.0"),
        ("fae", {"inputs": 1e308}, "inputs"),
        ("fae", {"switch_every_steps": 0.0}, "got 0.0"),
        ("hotline", {"launches": "twice"}, 'expected one of "whole_batches"'),
        ("hotline", {"learning_frac": 1.0}, "got 1.0"),
        ("hybrid", {"device_table_bytes": -1.0}, "got -1.0"),
        ("hybrid", {"pooled_on": "nobody"}, 'expected one of "one_process"'),
    ],
)
def test_settings_that_cannot_be(name: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(WorkloadError, match=word.replace(".", r"\.")):
        DESIGNS[name](**changes).apply(start())


def test_on_several_nodes_each_host_has_a_part_of_the_rows() -> None:
    nodes = [replace(node_with_nic(), nodes=count) for count in (1, 4)]
    one, four = (KNOWN(hot_mib=20).apply(start().with_(machine=each)) for each in nodes)
    held = [
        tier_use(each.workload, each.placement, each.machine)[1].tables_bytes
        for each in (one, four)
    ]
    assert held == [4 * ROWS * 64 * 4, ROWS * 64 * 4]
    assert [phase.name for phase in four.phases] == ["popular", "other"]
    rows = Rows.of([{"op": "rows_to_device", "lookups": 1e5, "row_bytes": 256.0}])
    terms = [explanations_of(rows, each)[0].terms for each in nodes]
    assert terms[0]["network_us"] == 0.0
    assert terms[1]["network_us"] == pytest.approx(0.75 * 1e5 * (256 + 8) / (12.5e3 / 4))
    for design in (KNOWN(hot_mib=20), Fae(hot_mib=20)):
        assert predicted(design, start().with_(machine=nodes[1])).step_us > 0
    several = Hybrid().apply(start().with_(machine=nodes[1]))
    assert {table.sharding for table in several.placement.tables} == {"table_wise"}


def node_with_nic() -> Cluster:
    server = cluster("hotline-server")
    nic = Nic(name="wire", gb_per_s=12.5, latency_us=1.0)
    return replace(server, node=replace(server.node, nic=nic, nics=1))


def test_an_accelerator_by_hand() -> None:
    """64 engines with 4 rows each, a row every 1.2 us, for four GPUs; 15.75 GB/s to all of them."""
    machine = cluster("hotline-server")
    asked = {"lookups": 1e5, "row_bytes": 64.0}
    ops = [{"op": name, **asked} for name in ("rows_to_device", "rows_to_host")]
    ops += [{"op": "rows_to_device", **asked, "keys": 1e6, "waiting_bytes": 1e6}]
    there, back, parted = (each.terms for each in explanations_of(Rows.of(ops), machine))
    assert there["engines_us"] == pytest.approx(1e5 * 1.2 / (64 * 4 / 4))
    assert back["engines_us"] == pytest.approx(2 * there["engines_us"])
    assert there["bus_us"] == back["bus_us"] == pytest.approx(1e5 * 64 / (15.75e3 / 4))
    assert there["memory_us"] == pytest.approx(1e5 * 128 / (0.8 * 76.8e3 / 4))
    assert back["memory_us"] == pytest.approx(2 * there["memory_us"])
    assert parted["keys_us"] == pytest.approx(1e6 * 4 / 350)
    waiting = 2 * (1e6 - 2.5 * 2**20 / 4) / (0.8 * 76.8e3 / 4)
    assert parted["memory_us"] == pytest.approx(there["memory_us"] + waiting)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"engines": 1}, "engines"),
        ({"pcie_gb_per_s": 0.5}, "bus"),
        ({"memory_gb_per_s": 1}, "memory"),
    ],
)
def test_less_of_the_accelerator_is_slower_and_says_what_binds(
    changes: dict[str, float], bound: str
) -> None:
    machine = cluster("hotline-server")
    part = machine.node.accelerator
    assert part is not None
    less = replace(machine, node=replace(machine.node, accelerator=replace(part, **changes)))
    rows = Rows.of([{"op": "rows_to_device", "lookups": 1e5, "row_bytes": 64.0}])
    assert explanations_of(rows, less)[0].bound_by == bound
    steps = [
        predicted(KNOWN(hot_mib=5), start().with_(machine=each)).step_us for each in (machine, less)
    ]
    assert steps[0] < 0.95 * steps[1]


def test_of_whole_batches_popularity_pays() -> None:
    share = choose_hot_rows(start(), 20 * MIB).popular_frac
    steps = [
        predicted(KNOWN(hot_mib=20, popular_frac=frac), start()).step_us
        for frac in (share / 8, share / 2, share)
    ]
    assert steps[0] > steps[1] > steps[2]


def test_rows_of_the_others_come_while_popular_batches_run() -> None:
    """Popular steps, one for each `p`, carry a batch's rows of the others' `1 - p`."""
    found = KNOWN(hot_mib=20, popular_frac=0.25).apply(start())
    popular, other = (
        pieces(found.with_(placement=each.placement, pipeline=each.pipeline))
        for each in found.phases
    )
    moved = [piece for piece in popular if piece.op.startswith("rows_to")]
    assert [piece.op for piece in moved] == ["rows_to_device", "rows_to_host"]
    assert not [piece for piece in other if piece.op.startswith("rows_to")]
    whole = replace(found.phases[0].pipeline, popular_frac=0.5)
    even = pieces(found.with_(placement=found.placement, pipeline=whole))
    rows = [piece.dims["lookups"] for piece in even if piece.op == "rows_to_device"]
    assert moved[0].dims["lookups"] > rows[0]


def test_learning_costs_steps_of_hybrid_and_rows_by_chance() -> None:
    known, learned = (
        Hotline(hot_mib=20, learning_frac=frac, inputs=1e6).apply(start()) for frac in (0.0, 0.1)
    )
    assert [phase.name for phase in learned.phases] == ["popular", "other", "learning"]
    assert learned.phases[-1].steps_frac == pytest.approx(0.1)
    shares = [each.phases[0].steps_frac for each in (known, learned)]
    assert shares[1] < 0.9 * shares[0]


@pytest.mark.parametrize("design", [Fae, Hotline])
def test_samples_with_many_lookups_are_said_not_to_be_popular(
    design: Callable[..., Design],
) -> None:
    many = start().workload.with_(table__pooling=40)
    found = design(hot_mib=20).apply(replace(start(), workload=many))
    assert any("160 rows of one must be hot" in note for note in found.notes)
    assert [text.split(": ")[0] for text in found.without_gain] == (
        ["no sample is popular"] if design is Fae else []
    )
    assert not any("must be hot" in note for note in design(hot_mib=20).apply(start()).notes)


def test_hot_rows_beyond_device_memory_are_refused() -> None:
    whole = load_workload("hotline-rm3")
    large = deployment_of(whole, cluster("hotline-server"), 4096)
    with pytest.raises(WorkloadError, match="hot rows"):
        predict(KNOWN(hot_mib=40_000).apply(large))


@pytest.mark.slow
@pytest.mark.parametrize("design", [Hybrid(), Fae(), Hotline()], ids=lambda each: each.__class__)
def test_on_two_nodes_what_every_rank_has_stays_on_devices(design: Design) -> None:
    """In training: no gradient goes from host to host."""
    nodes = cluster("dgx-a100-80gb", 2)
    begun = deployment_of(load_workload("dlrm-dcnv2"), nodes, 16 * 64)
    copied = [at for at, it in enumerate(begun.placement.tables) if it.sharding == "data_parallel"]
    assert copied
    found = design.apply(begun)
    last = found.phases[-1].placement if found.phases else found.placement
    assert {last.tables[at].tier for at in copied} == {"hbm"}
    assert predict(found).results[0].step_us > 0


@pytest.mark.slow
def test_where_the_accelerator_is_slower_the_host_looks_rows_up() -> None:
    """214 rows of a sample, eight devices on the accelerator's one bus: no sample is popular, and
    `hybrid` is faster. Set by itself, the accelerator is taken."""
    begun = deployment_of(load_workload("dlrm-dcnv2"), cluster("dgx-a100-80gb"))
    deployed, found = fastest(composed("hotline"), begun)
    host = predict(Hybrid().apply(begun)).results[0]
    assert found.results[0].step_us == pytest.approx(host.step_us, rel=1e-9)
    assert any("hot_mib 0 in the place of 512" in note for note in deployed.notes)
    assert predict(Hotline().apply(begun)).results[0].step_us > 2 * host.step_us
