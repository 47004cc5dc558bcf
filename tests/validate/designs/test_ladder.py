"""The start-up epoch in published means."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.validate.designs.cache_box import (
    LADDER_EPOCHS,
    LADDER_S,
    LADDER_SPREAD_S,
    steady_s,
)
from perfmodel.validate.designs.lab import Lab
from perfmodel.validate.designs.v06_uvm_ladder import _filled_s, _tables


@pytest.mark.parametrize("rung", LADDER_SPREAD_S)
def test_one_longer_epoch_gives_mean_and_spread(rung: str) -> None:
    steady = steady_s(rung)
    first = steady + LADDER_EPOCHS * (LADDER_S[rung] - steady)
    epochs = np.array([first, *[steady] * (LADDER_EPOCHS - 1)])
    assert epochs.mean() == pytest.approx(LADDER_S[rung])
    assert epochs.std() == pytest.approx(LADDER_SPREAD_S[rung])


@pytest.mark.parametrize("rung", LADDER_SPREAD_S)
def test_two_longer_epochs_would_leave_less_than_the_rung_before(rung: str) -> None:
    two, n = 2, LADDER_EPOCHS
    steady = LADDER_S[rung] - LADDER_SPREAD_S[rung] * (two / (n - two)) ** 0.5
    assert steady < LADDER_S["hbm"] < steady_s(rung)


def test_tables_are_filled_over_the_bus() -> None:
    found = _tables(Lab(), "uvm")
    size_gb = sum(table.rows for table in found.workload.tables) * 512 / 1e9
    assert size_gb == pytest.approx(91.1, abs=0.1)
    rate = 2 * size_gb / _filled_s(found, 2)
    assert 0.5 < rate / found.machine.node.device.host_gb_per_s < 1.0
