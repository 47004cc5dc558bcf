"""Energy and money of machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UsageError
from perfmodel.hardware import (
    Cluster,
    Node,
    cluster,
    device,
    host,
    names,
    node,
    node_of,
    with_settings,
)
from perfmodel.prediction.running_cost import (
    IDLE_FRAC,
    REST_FRAC,
    Activity,
    Prices,
    copies_of,
    operating_costs,
)

BUSY = Activity(1.0, 1.0, 1.0, 1.0)


def machine(**changes: object) -> Cluster:
    """One V100 on one EPYC 7742: 300 W and 225 W."""
    node = Node(
        name="box", device=device("v100-sxm2-16gb"), gpus=1, host=host("epyc-7742"), sockets=1
    )
    return Cluster(name="box", node=replace(node, **changes), nodes=1)  # type: ignore[arg-type]


def test_a_busy_node_draws_what_its_file_says() -> None:
    assert operating_costs(machine(power_w=1000.0)).power_w(BUSY) == pytest.approx(1000.0)
    assert operating_costs(cluster("dgx-a100-80gb", 4)).power_w(BUSY) == pytest.approx(4 * 6500)


@pytest.mark.parametrize("setting", ["device.boost_mhz=1900", "host.single_thread_ratio=1.5"])
def test_a_board_alone_has_its_share_of_its_server_whatever_is_set(setting: str) -> None:
    alone, whole = replace(node("h100-sxm"), gpus=1), node("h100-sxm")
    changed = with_settings(alone, [setting])
    eighth = (operating_costs(cluster(whole)).held_usd_per_hour or 0.0) / 8
    for each in (alone, changed):
        assert operating_costs(cluster(each)).held_usd_per_hour == pytest.approx(eighth)


def test_parts_and_the_rest_where_it_says_nothing() -> None:
    box = machine()
    assert box.node.device.tdp_w == 300
    assert box.node.host.tdp_w == 225
    assert operating_costs(box).power_w(BUSY) == pytest.approx(1.32 * 525)
    idle = 300 * IDLE_FRAC["device"] + 225 * IDLE_FRAC["host"]
    assert operating_costs(box).power_w(Activity(0, 0, 0, 0)) == pytest.approx(1.32 * idle)


def test_the_rest_is_what_whole_machines_of_the_catalogue_draw_beyond_their_parts() -> None:
    """Of those that say; trays of a rack share its fans and conversion."""
    known = [node(name) for name in names("node")]
    known = [each for each in known if each.power_w and not each.name.endswith("nvl72")]
    silent = [cluster(replace(each, power_w=None)) for each in known]
    parts_w = [operating_costs(each).power_w(BUSY) / (1 + REST_FRAC) for each in silent]
    rest = [each.power_w / watts - 1 for each, watts in zip(known, parts_w, strict=True)]
    assert len(rest) == 8
    assert np.mean(rest) == pytest.approx(REST_FRAC, abs=0.005)


def test_equal_parts_draw_alike_whether_or_not_a_data_sheet_says() -> None:
    board, whole = (operating_costs(cluster(each)) for each in ("hgx-h100", "dgx-h100"))
    assert board.power_w(BUSY) == pytest.approx(whole.power_w(BUSY), rel=0.1)


def test_money_by_hand() -> None:
    box = machine(power_w=1000.0, price_usd=35_064.0)
    bought = operating_costs(box, Prices(usd_per_kwh=0.1))
    found = bought.economics(1000.0, BUSY)
    assert found.energy_j_per_sample == pytest.approx(1.0)
    assert found.kwh_per_million_samples == pytest.approx(1 / 3.6)
    assert found.usd_per_hour == pytest.approx(1.0 + 0.11)
    assert found.usd_per_million_samples == pytest.approx(1.11 / 3.6)
    rented = operating_costs(box, Prices(usd_per_hour=7.2)).economics(1000.0)
    assert rented.usd_per_million_samples == pytest.approx(2.0)


def test_without_a_price_money_is_not_known() -> None:
    box = machine(device=replace(device("v100-sxm2-16gb"), price_usd=None))
    found = operating_costs(box).economics(1.0)
    assert found.usd_per_million_samples is None


def test_a_device_alone_takes_its_share_of_the_node() -> None:
    alone = replace(node_of(device("a100-sxm-80gb")), gpus=1)
    one = operating_costs(Cluster(name="one", node=alone, nodes=1)).power_w(BUSY)
    assert one == pytest.approx(6500 / 8)


def test_a_cpu_is_not_also_its_host() -> None:
    cpu = node_of(device("epyc-7742"))
    found = operating_costs(Cluster(name="cpu", node=replace(cpu, power_w=None), nodes=1))
    assert "device_frac" in found.busy_w
    assert "host_frac" not in found.busy_w


def test_many_rates_at_once() -> None:
    rates, busy = np.array([1e3, 2e3]), Activity(device_frac=np.array([0.1, 1.0]))
    found = operating_costs(machine()).economics(rates, busy)
    one = operating_costs(machine()).economics(2e3, Activity(device_frac=1.0))
    assert np.asarray(found.power_w)[1] == pytest.approx(one.power_w)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 1e9))
@settings(max_examples=20)
def test_more_work_never_draws_less(low: float, high: float, rate: float) -> None:
    low, high = sorted((low, high))
    found = operating_costs(machine())
    assert found.power_w(Activity(low)) <= found.power_w(Activity(high))
    faster = found.economics(2 * rate).usd_per_million_samples
    assert faster is None or faster <= found.economics(rate).usd_per_million_samples  # type: ignore[operator]


@pytest.mark.parametrize(
    ("settings_", "word"),
    [
        ({"usd_per_kwh": -0.1}, "usd_per_kwh"),
        ({"usd_per_hour": float("nan")}, "usd_per_hour"),
        ({"usd_per_hour": 7.2, "usd_per_kwh": 0.2}, "usd_per_kwh beside usd_per_hour"),
    ],
)
def test_impossible_prices(settings_: dict[str, float], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        Prices(**settings_)


def test_impossible_rates_and_shares() -> None:
    with pytest.raises(UsageError, match="samples per second"):
        operating_costs(machine()).economics(0.0)
    with pytest.raises(UsageError, match="device_frac"):
        Activity(device_frac=1.5)


def test_a_job_of_more_ranks_than_devices_is_a_share_of_one() -> None:
    assert copies_of(np.array([1.0, 3.0, 8.0, 16.0]), 8).tolist() == [8, 2, 1, 0.5]
