"""What network an adapter speaks, and what that does to collectives."""

from __future__ import annotations

import pytest

from perfmodel.cost.collectives.algorithms import costs_of
from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.collectives.learned import collective_durations, shipped
from perfmodel.errors import HardwareError
from perfmodel.hardware import node, with_settings
from perfmodel.ops.rows import Rows


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("dgx-h100", "infiniband"),
        ("zionex", "roce"),
        ("p4d", "efa"),
        ("polaris-node", "slingshot"),
    ],
)
def test_nodes_name_their_network(name: str, network: str) -> None:
    assert fabric_of(node(name)).network == network


def test_tcp_takes_longer_than_rdma() -> None:
    rows = Rows.of([{"op": "all_reduce", "size_bytes": 1e8, "ranks": 16, "nodes": 2}])
    taken = [
        collective_durations(rows, with_settings(node("dgx-h100"), [f"nic.network={kind}"]))
        for kind in ("infiniband", "roce", "tcp")
    ]
    fast, near, slow = (float(each.duration_us[0]) for each in taken)
    assert slow > 1.5 * near
    assert near == pytest.approx(fast, rel=0.5)


def test_sums_in_the_network_need_infiniband() -> None:
    """Switches that add up shorten a small sum over many nodes, and do nothing on Ethernet."""
    record = {"op": "all_reduce", "size_bytes": 1e6, "ranks": 64, "nodes": 8}
    rows = Rows.of([record, record | {"in_network": 1.0}])
    for kind, shorter in (("infiniband", True), ("roce", False)):
        machine = with_settings(node("dgx-h100"), [f"nic.network={kind}"])
        calls = calls_of(rows, fabric_of(machine))
        plain, summed = costs_of(calls, shipped().constants).total_us
        assert (summed < 0.8 * plain) == shorter


def test_another_network_is_an_error_that_names_them() -> None:
    with pytest.raises(HardwareError, match=r'network: expected one of "infiniband", "roce"'):
        with_settings(node("dgx-h100"), ["nic.network=token-ring"])
