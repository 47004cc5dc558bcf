"""PyTorch's operators on the host: on every machine, and for bags that may be empty."""

from __future__ import annotations

import pytest

from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, ModelError
from perfmodel.hardware import device, names, node
from perfmodel.ops.rows import Rows

BAG = {"op": "host_embedding_bag", "hash_size": 1e6, "dim": 64, "batch": 2048}


def _us(pooling: float, machine: str = "dgx-a100-80gb", direction: str = "fwd") -> float:
    rows = Rows.of([{**BAG, "pooling": pooling, "direction": direction}])
    return float(durations_of(rows, node(machine)).duration_us[0])


@pytest.mark.parametrize("direction", ["fwd", "bwd", "update"])
def test_fewer_lookups_than_samples_take_less(direction: str) -> None:
    steps = [_us(pooling, direction=direction) for pooling in (0.03, 0.3, 1.0, 3.0)]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_a_bag_of_no_lookups_is_refused() -> None:
    with pytest.raises(ModelError, match="pooling is 0; expected at least 1e-15"):
        _us(0.0)


def test_hosts_that_are_no_device_of_the_catalogue_are_generic_ones() -> None:
    plain = [name for name in names("node") if not _is_device(node(name).host.name)]
    assert plain
    assert all(_us(1.0, name) > 0 for name in plain)


def _is_device(host: str) -> bool:
    try:
        device(host)
    except HardwareError:
        return False
    return True
