"""Collectives: continuous, monotone, near what is known by hand, one-line errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.cost.collectives.learned import collective_durations, explain_collectives
from perfmodel.cost.durations import durations_of
from perfmodel.errors import ModelError
from perfmodel.hardware import cluster, load, node
from perfmodel.ops.rows import Rows

OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)
MACHINES = ("dgx-h100", "hgx-mi300x", "polaris-node", "gb200-nvl72", "dgx-1")
SIZES = np.geomspace(8, 16e9, 200)


def rows(op: str, sizes: np.ndarray, ranks: float, nodes: float) -> Rows:
    n = len(sizes)
    dims = {"size_bytes": sizes, "ranks": np.full(n, ranks), "nodes": np.full(n, nodes)}
    return Rows((op,) * n, ("fp32",) * n, ("fwd",) * n, ("profiler_kernel",) * n, dims)


@pytest.mark.slow
@given(
    st.sampled_from(OPS),
    st.sampled_from(MACHINES),
    st.sampled_from((1, 2, 3, 16)),
    st.booleans(),
)
def test_monotone_and_continuous_in_size(op: str, machine: str, nodes: int, full: bool) -> None:
    there = node(machine)
    ranks = nodes * (there.gpus if full else 2)
    found = collective_durations(rows(op, SIZES, ranks, nodes), there)
    assert (np.diff(found.duration_us) >= 0).all()
    assert (np.diff(np.log(found.duration_us)) < 0.25).all()
    assert (found.low_us < found.duration_us).all()
    assert (found.high_us > found.duration_us).all()


@pytest.mark.parametrize(
    ("op", "is_free"), [("all_reduce", True), ("broadcast", True), ("all_gather", False)]
)
def test_one_rank_has_its_result_already(op: str, is_free: bool) -> None:
    """Unless that is to be another tensor than its input: a copy."""
    asked, there = rows(op, np.array([109e6]), 1, 1), node("hgx-h100")
    found, (why,) = collective_durations(asked, there), explain_collectives(asked, there)
    times = (found.duration_us[0], found.low_us[0], found.high_us[0], why.duration_us)
    assert all((us < 1e-9) == is_free for us in times)


@pytest.mark.parametrize("machine", ["hgx-h100", "generic-cpu"])
def test_no_ranks_count_as_one(machine: str) -> None:
    found = [durations_of(rows("all_reduce", SIZES, n, 1), load(machine)) for n in (0, 1)]
    assert found[0].duration_us.tolist() == found[1].duration_us.tolist()


@pytest.mark.parametrize("machine", ["hgx-h100", "t4"])
def test_one_rank_alone_copies_at_the_rate_of_its_memory(machine: str) -> None:
    """Not of links to others, which may be a bus."""
    asked, there = rows("all_gather", np.array([1e9]), 1, 1), node(machine)
    copy_us = 2e9 / (there.device.stream_gb_per_s * 1e3)
    assert collective_durations(asked, there).duration_us[0] == pytest.approx(copy_us, rel=0.02)
    assert explain_collectives(asked, there)[0].bound_by.startswith("memory")


def test_a_measured_share_of_the_adapters_rate_is_that_of_exchanges_alone() -> None:
    """Of 25 GB/s per rank 0.28 are reached: 7 GB/s."""
    measured = cluster("zionex-16")
    nic = replace(measured.node.nic, exchange_frac=None)
    usual = replace(measured, node=replace(measured.node, nic=nic))
    size = np.array([2.0**28])
    for op, is_exchange in (("all_to_all", True), ("all_reduce", False)):
        there, elsewhere = (
            collective_durations(rows(op, size, 128, 16), machine).duration_us[0]
            for machine in (measured, usual)
        )
        if not is_exchange:
            assert there == pytest.approx(elsewhere, rel=1e-9)
        else:
            assert there > 2 * elsewhere
            assert size[0] / there / 1e3 == pytest.approx(7.0, rel=0.15)


def test_all_gather_in_one_node_is_near_the_rate_of_the_links() -> None:
    there = node("dgx-h100")
    found = collective_durations(rows("all_gather", np.array([8e9]), 8, 1), there)
    busbw_gb_per_s = 8e9 * 7 / 8 / found.duration_us[0] / 1e3
    assert 0.7 * there.peer_gb_per_s < busbw_gb_per_s < there.peer_gb_per_s


def test_a_rack_of_one_link_domain_needs_no_network() -> None:
    tray = node("gb200-nvl72")
    [inside] = explain_collectives(rows("all_to_all", np.array([1e8]), 72, 18), tray)
    [outside] = explain_collectives(rows("all_to_all", np.array([1e8]), 144, 36), tray)
    assert inside.terms["network_us"] == 0
    assert outside.terms["network_us"] > inside.terms["links_us"]


def test_impossible_rows_are_one_line() -> None:
    with pytest.raises(ModelError, match=r"row 0.*2 ranks do not fit on 4 nodes"):
        collective_durations(rows("all_reduce", np.array([1e6]), 2, 4), node("dgx-h100"))
    with pytest.raises(ModelError, match="need a network adapter"):
        collective_durations(rows("all_reduce", np.array([1e6]), 8, 2), node("dgx-station-v100"))
    with pytest.raises(ModelError, match="size_bytes"):
        collective_durations(rows("all_reduce", np.array([np.nan]), 8, 1), node("dgx-h100"))
