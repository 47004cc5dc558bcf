"""The profiles that come with the package."""

from __future__ import annotations

import pytest

from perfmodel.cost.host import TYPES, load_profile
from perfmodel.cost.host.profile import MIN_SAMPLES, SHIPPED, Shipped, shipped_for
from perfmodel.cost.host.samples import T2
from perfmodel.hardware import device, devices, host
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

THREADS = (MAIN_THREAD, AUTOGRAD_THREAD)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.name)
def test_every_profile_times_whatever_a_host_does(shipped: Shipped) -> None:
    profile = load_profile(shipped.name)
    assert all(profile.lookup(kind, "an unknown op", "an unknown thread") >= 0 for kind in TYPES)
    assert {(kind, None, thread) for kind in TYPES for thread in THREADS} <= profile.rows.keys()
    assert profile.provenance.traces
    assert 1 <= profile.provenance.profiler_us_per_event <= 2
    if shipped.host is not None:
        host(shipped.host)


def test_an_operator_of_one_or_two_samples_costs_what_its_thread_does() -> None:
    whole = load_profile("h100-inference")
    repeated = whole.of_repeated()
    once = {op for (_, op, _), row in whole.rows.items() if op and row.count < MIN_SAMPLES}
    assert "aten::embedding" in once  # the first operator of a program
    usual = repeated.lookup(T2, thread="main")
    assert repeated.lookup(T2, "aten::embedding", "main") == usual
    assert whole.lookup(T2, "aten::embedding", "main") > 3 * usual
    often = ("aten::linear", "main")
    assert repeated.lookup(T2, *often) == whole.lookup(T2, *often) != usual


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("titan-xp", "lin2022-v100"),
        ("a100-sxm-80gb", "a100-dlrm"),
        ("h200-sxm", "h100-inference"),
        ("mi100", "mi300x"),
    ],
)
def test_a_profile_of_the_devices_years_is_chosen(name: str, expected: str) -> None:
    assert shipped_for(device(name)).name == expected


def test_every_gpu_has_a_profile_of_its_maker() -> None:
    for each in devices():
        if each.target != "cpu":
            assert shipped_for(each).target == each.target
