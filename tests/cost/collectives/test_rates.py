"""Collectives over the rate of links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.arrays import Floats
from perfmodel.cost.collectives.calls import Calls, calls_of, fabric_of
from perfmodel.cost.collectives.learned import (
    RATES_GB_PER_S,
    collective_durations,
    interpolate_rates,
)
from perfmodel.hardware import cluster, node
from perfmodel.ops.rows import Rows

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def calls(rate: float) -> Calls:
    machine = cluster("dgx-a100-80gb", 1)
    rows = Rows.of([{"op": "all_reduce", "ranks": 8.0, "size_bytes": 1e6}])
    found = calls_of(rows, fabric_of(machine))
    return replace(found, link_gb_per_s=np.full(1, rate))


def test_between_two_rates_the_answer_is_straight_and_never_rises() -> None:
    def answer(each: Calls) -> tuple[Floats, Floats]:
        bump = np.where(each.link_gb_per_s == 450.0, 1.0, 0.0)
        return bump - np.log(each.link_gb_per_s), np.full(len(each), 0.2)

    def log_us(rate: float) -> float:
        return float(interpolate_rates(calls(rate), answer)[0][0])

    assert np.isclose(log_us(300.0), -np.log(300.0))
    assert np.isclose(log_us(np.sqrt(150.0 * 225.0)), -np.log(np.sqrt(150.0 * 225.0)))
    assert np.isclose(log_us(450.0), -np.log(300.0))
    assert np.isclose(log_us(1e9), -np.log(RATES_GB_PER_S[-1]))
    assert np.isclose(log_us(1e-9), -np.log(RATES_GB_PER_S[0]))


@settings(max_examples=25, deadline=None)
@given(
    op=st.sampled_from(OPS),
    nodes=st.sampled_from((1, 2, 16)),
    size=st.floats(1, 3e8),
    rate=st.floats(5, 1500),
    more=st.floats(1, 10),
)
def test_faster_links_are_never_slower(
    op: str, nodes: int, size: float, rate: float, more: float
) -> None:
    machine = cluster("dgx-a100-80gb", nodes)
    rows = Rows.of([{"op": op, "ranks": 8.0 * nodes, "size_bytes": size}])
    link = machine.node.link
    assert link is not None
    slow, fast = (
        collective_durations(
            rows, replace(machine, node=replace(machine.node, link=replace(link, gb_per_s=each)))
        ).duration_us[0]
        for each in (rate, rate * more)
    )
    assert fast <= slow * (1 + 1e-9)


@pytest.mark.parametrize(("gpus", "gb_per_s"), [(8, 50.0), (4, 63.0)])
def test_adapters_carry_no_more_than_the_buses_of_their_devices(gpus: int, gb_per_s: float) -> None:
    """Eight adapters of 50 GB/s beside four devices whose buses carry 63."""
    fabric = fabric_of(replace(node("dgx-h100"), gpus=gpus))
    assert fabric.node_nic_gb_per_s == pytest.approx(gpus * gb_per_s)
