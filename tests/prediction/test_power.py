"""Power limits and clocks: what they do to a step and to its energy."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import pytest

import perfmodel
from perfmodel.cost.gpu.rates import idle_w, working_w
from perfmodel.errors import UsageError
from perfmodel.hardware import cluster, device, node_of, with_settings
from perfmodel.hardware.settings import at_clock
from perfmodel.prediction.running_cost import Activity, operating_costs, within_limit

A100 = "a100-sxm-40gb"  # 400 W, of which 52 idle, 1,410 MHz
BUSY = {"batch": 65536, "train": False}
"""What criteo-kaggle's forward pass does then is the device's work."""


@lru_cache
def compared(*settings: str, **about: Any) -> Any:
    found = perfmodel.compare(
        "criteo-kaggle", A100, "default", settings=settings, **(about or BUSY)
    )
    return found.rows[0]


def energy_j(row: Any) -> float:
    return float(row.economics.energy_j_per_sample)


def devices_w(row: Any) -> float:
    """Of the machine's draw what follows its only device, without fans and losses."""
    other = operating_costs(row.deployment.machine).power_w(Activity(0.0, 0.5, 0.0, 0.0))
    idle = operating_costs(row.deployment.machine)
    return 52 + 348 * (row.economics.power_w - other) / idle.busy_w["device_frac"]


def test_watts_by_hand() -> None:
    """Idle 13 % of 400 W; working 348 W more, at half the clock a quarter of that."""
    board = device(A100)
    assert idle_w(board) == pytest.approx(52)
    assert working_w(board) == pytest.approx(348)
    assert working_w(at_clock(board, 0.5)) == pytest.approx(87)
    assert working_w(with_settings(board, ["device.tdp_w=100"])) == pytest.approx(348)


def test_rates_follow_the_clock_but_for_those_that_are_set() -> None:
    board = device(A100)
    slow = with_settings(board, ["device.boost_mhz=705", "device.fp16_tflop_per_s=200"])
    assert slow.fp32_tflop_per_s == board.fp32_tflop_per_s / 2
    assert slow.bf16_tflop_per_s == (board.bf16_tflop_per_s or 0.0) / 2
    assert slow.fp16_tflop_per_s == 200
    same = ("hbm_gb_per_s", "link_gb_per_s", "pcie_gb_per_s", "kernel_floor_us", "tdp_w")
    assert [getattr(slow, name) for name in same] == [getattr(board, name) for name in same]
    node = with_settings(node_of(board), ["device.boost_mhz=705"])
    assert node.device.fp32_tflop_per_s == slow.fp32_tflop_per_s
    xeon = with_settings(device("xeon-4116"), ["device.boost_mhz=2900"])
    assert xeon.fp32_tflop_per_s == device("xeon-4116").fp32_tflop_per_s


def test_boards_as_they_are_sold_and_limits_above_what_is_drawn_change_nothing() -> None:
    plain = compared()
    for limit_w in ("400", "500", "399.9"):
        row = compared(f"device.tdp_w={limit_w}")
        assert row.result.step_us == plain.result.step_us
        assert (row.result.low_us, row.result.high_us) == (
            plain.result.low_us,
            plain.result.high_us,
        )
        assert row.economics.power_w == plain.economics.power_w
    (told,) = [note for note in row.notes if "limit" in note]
    assert "a limit of 400 W changes nothing: 3" in told


@pytest.mark.slow
def test_lower_limits_take_longer_draw_the_limit_and_have_a_best_energy() -> None:
    limits_w = (400, 300, 200, 140, 100, 70, 60)
    rows = [compared(f"device.tdp_w={limit_w}") for limit_w in limits_w]
    steps = [row.result.step_us for row in rows]
    assert all(before < after for before, after in pairwise(steps))
    for row, limit_w in zip(rows[1:], limits_w[1:], strict=True):
        assert devices_w(row) == pytest.approx(limit_w, rel=1e-3)
    energies = [energy_j(row) for row in rows]
    best = energies.index(min(energies))
    assert limits_w[best] in (200, 140, 100)  # beyond it, the rest of the machine waits too long


def test_a_host_bound_step_waits_for_the_host_at_any_clock() -> None:
    row = compared("device.boost_mhz=1000", batch=256, train=True)
    plain = compared(batch=256, train=True)
    assert row.result.step_us == pytest.approx(plain.result.step_us, rel=0.01)
    assert row.economics.power_w < plain.economics.power_w
    assert any(
        "1,000 in the place of 1,410 MHz" in it and "waits for the host" in it for it in row.notes
    )


def test_lower_clocks_take_longer_but_for_memory() -> None:
    """Bytes move at the memory's rate; a product's time goes with the clock's inverse."""
    rows = [
        {"op": "mm", "m": 8192, "n": 8192, "k": 8192},
        {"op": "add", "rows": 2**16, "cols": 8192},
    ]
    frame = perfmodel.durations
    import pandas as pd

    sizes = pd.DataFrame(rows)
    half = frame(sizes, with_settings(device(A100), ["device.boost_mhz=705"]))["duration_us"]
    ratio = (half / frame(sizes, A100)["duration_us"]).tolist()
    assert ratio == [pytest.approx(2.0, rel=0.05), pytest.approx(1.0, rel=0.02)]


def test_the_search_for_a_clock_by_hand() -> None:
    """A device that always works draws 52 + 348 f^2: 139 W at half the clock."""
    (result,) = perfmodel.predict("criteo-kaggle", hardware=A100, **BUSY).results
    ranks = [replace(rank, gpu_active_us=result.step_us) for rank in result.ranks]
    always = replace(result, ranks=ranks)
    machine = cluster(replace(node_of(with_settings(device(A100), ["device.tdp_w=139"])), gpus=1))
    asked = []

    def answer(one: Any) -> Any:
        asked.append(one.node.device.boost_mhz)
        return replace(always, notes=())

    (remark,) = within_limit(machine, answer).notes
    assert asked[-1] == pytest.approx(705, rel=1e-4)
    assert "a limit of 139 W: the clock falls to 705 of 1,410 MHz" in remark
    low = replace(
        machine, node=replace(machine.node, device=with_settings(device(A100), ["device.tdp_w=50"]))
    )
    with pytest.raises(UsageError, match=r"tdp_w 50: 55 W drawn at 10 % of its clock"):
        within_limit(low, answer)
