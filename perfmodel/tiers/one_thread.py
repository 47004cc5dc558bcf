"""Work of one thread of the host: as long as it was measured, by how fast the host is."""

from __future__ import annotations

from perfmodel.hardware import Cluster
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.one_thread import ONE_THREAD
from perfmodel.tiers.model import TIERS

MEASURED_RATIO = 1.45
"""`single_thread_ratio` of the machine that was measured (`traces/tensorflow_cpu`), an EPYC of the
9004 series: taken from the catalogue's `epyc-9654`."""
HALF_FACTOR = 1.6
"""Assumed: the 90 % interval reaches so many times up and down; rounds on one machine differ by
1.3."""
FORMULA = "measured_us x the measured host's single_thread_ratio / the host's"


class OneThread:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken = _taken_us(rows, machine)
        source = "measured on one machine; scaled by single-thread speed"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, ONE_THREAD, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        return [
            Explanation(us, "latency", 0.0, 0.0, 0.0, 0.0, {"one_thread_us": us}, FORMULA)
            for us in _taken_us(rows, machine).tolist()
        ]


def _taken_us(rows: Rows, machine: Cluster) -> Floats:
    return rows.dims["measured_us"] * MEASURED_RATIO / machine.node.host.single_thread_ratio


TIERS.register(ONE_THREAD)(OneThread())
