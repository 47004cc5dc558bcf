"""Predictions under sweeps of random workloads and machines: `benchmarks/sense.py`, a few cases."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks import sense
from benchmarks.sense_cases import (
    DELAYS,
    NO_RESOURCE,
    RESOURCES,
    Case,
    cases,
    drawn_machine,
    more_of,
)
from perfmodel.hardware import KINDS, cluster, names
from perfmodel.hardware.schema import NAMING_FIELDS, fields_of

SEED = 7
LEFT = {("", "node.nics"), ("", "nic.")}
"""Violations that are left, below `LEFT_MOST`: of trees that correct exchanges among nodes, whose
answers jump with rates."""
LEFT_MOST = 1.02


def drawn(count: int) -> list[Case]:
    return list(islice(cases(SEED), count))


def unexplained(pairs: list[sense.Pair]) -> list[sense.Pair]:
    return [pair for pair in pairs if pair.breaks and not pair.told and not _is_left(pair)]


def _is_left(pair: sense.Pair) -> bool:
    known = any(design in ("", pair.design) and pair.change.startswith(at) for design, at in LEFT)
    return pair.check == "more" and known and pair.ratio <= LEFT_MOST


def lot(number: int) -> np.random.Generator:
    return np.random.default_rng([SEED, number])


def test_every_figure_is_a_resource_a_delay_or_neither() -> None:
    known = {
        f"{kind}.{name}"
        for kind in KINDS
        for name, entry in fields_of(kind).items()
        if name not in NAMING_FIELDS and not entry.is_part
    }
    sorted_ = [*RESOURCES, *DELAYS, *NO_RESOURCE]
    assert known == set(sorted_)
    assert len(set(sorted_)) == len(sorted_)


def test_a_machine_with_more_of_one_thing_differs_in_that() -> None:
    machine = cluster("dgx-a100-80gb", 2)
    changed = {name: more for name, _, more in more_of(machine, lot(0))}
    assert changed["device.hbm_gb_per_s"].node.device.hbm_gb_per_s > 2039 * 1.09
    assert changed["device.kernel_floor_us"].node.device.kernel_floor_us < 2.0
    assert changed["clock"].node.device.boost_mhz > machine.node.device.boost_mhz
    assert changed["clock"].node.device.hbm_gb_per_s == machine.node.device.hbm_gb_per_s
    assert "storage.read_iops" not in changed
    assert all(more != machine for more in changed.values())


def test_cases_are_of_many_kinds() -> None:
    machines = {drawn_machine(lot(number)).node.name for number in range(30)}
    assert machines <= set(names("node"))
    assert len(machines) > 10
    found = drawn(6)
    assert {case.start.train for case in found} == {True, False}
    assert {case.start.machine.nodes > 1 for case in found} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("check", sense.CHECKS)
def test_random_cases_make_sense(check: str) -> None:
    pairs = list(sense.found([check], 1, seed=1))
    assert len(pairs) > 10
    assert not unexplained(pairs), unexplained(pairs)


@pytest.mark.parametrize("case", drawn(4), ids=str)
def test_fewer_bits_and_graphs_are_never_slower(case: Case) -> None:
    plain = sense.us(sense.step("default", case.start))
    assert sense.us(sense.step("low_precision", case.start)) <= plain * sense.SLOWER
    eager, graphs = (
        sense.us(sense.step("default", case.start.with_(workload=workload)))
        for workload in (
            case.start.workload.with_(implementation__cuda_graphs=on) for on in (False, True)
        )
    )
    assert graphs <= eager * sense.SLOWER
