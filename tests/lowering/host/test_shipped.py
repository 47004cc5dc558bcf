"""The profiles that come with the package."""

from __future__ import annotations

import pytest

from perfmodel.hardware import host
from perfmodel.hardware.catalogue import PLAIN_HOST
from perfmodel.lowering.host import TYPES, load_profile
from perfmodel.lowering.host.measure import T2
from perfmodel.lowering.host.profile import CATALOGUE, MIN_SAMPLES, RECORDED_ON
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

THREADS = (MAIN_THREAD, AUTOGRAD_THREAD)


@pytest.mark.parametrize("name", sorted(file.stem for file in CATALOGUE.glob("*.json")))
def test_every_profile_times_whatever_a_host_does(name: str) -> None:
    profile = load_profile(name)
    assert all(profile.lookup(kind, "an unknown op", "an unknown thread") >= 0 for kind in TYPES)
    assert {(kind, None, thread) for kind in TYPES for thread in THREADS} <= profile.rows.keys()
    assert profile.provenance.traces
    assert 1 <= profile.provenance.profiler_us_per_event <= 2
    host(RECORDED_ON.get(name, PLAIN_HOST))


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
