"""Pauses of software: what comes at any time waits for the next tick of a clock.

The wait is uniform between nothing and a whole period, whose half is the mean.
"""

from __future__ import annotations

from perfmodel.hardware import Cluster
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.pause import PAUSE
from perfmodel.tiers.model import TIERS

LOW_FRAC, HIGH_FRAC = 0.1, 1.9
"""Of the mean, where 90 % of a uniform wait lies."""


class Pause:
    """See the module; no machine has a part in it."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        wait_us = _wait_us(rows)
        source = "the software's period"
        return Estimate(wait_us, LOW_FRAC * wait_us, HIGH_FRAC * wait_us, PAUSE, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        return [
            Explanation(
                duration_us=us,
                bound_by="latency",
                flop=0.0,
                read_bytes=0.0,
                written_bytes=0.0,
                utilisation_frac=0.0,
                terms={"wait_us": us},
                formula="half the period of the software's clock, the mean of a uniform wait",
            )
            for us in _wait_us(rows).tolist()
        ]


def _wait_us(rows: Rows) -> Floats:
    """The mean wait of each row."""
    ((op, index),) = rows.groups()
    return rows.dims_of(op, index)["wait_us"]


TIERS.register(PAUSE)(Pause())
