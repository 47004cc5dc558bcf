"""A framework's runtime on one thread of the host: so long as measured, by how fast the host is."""

from __future__ import annotations

from perfmodel.hardware import Cluster
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.runtime import RUNTIME
from perfmodel.tiers.model import TIERS

CALL_US = 190.0
"""From Python into a `tf.function` that runs one node, and back. Source: `traces/tensorflow_cpu`,
TensorFlow 2.12.1, least CPU time of 25 rounds."""
MEASURED_RATIO = 1.45
"""`single_thread_ratio` of the machine that was measured, an EPYC of the 9004 series: taken from
the catalogue's `epyc-9654`."""
HALF_FACTOR = 1.6
"""Assumed: the 90 % interval reaches so many times up and down; rounds of one machine differ by
1.3."""
FORMULA = "calls x a call's time x the measured host's single_thread_ratio / the host's"


class Runtime:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken = _taken_us(rows, machine)
        source = "measured on one machine; scaled by single-thread speed"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, RUNTIME, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        return [
            Explanation(us, "latency", 0.0, 0.0, 0.0, 0.0, {"calls_us": us}, FORMULA)
            for us in _taken_us(rows, machine).tolist()
        ]


def _taken_us(rows: Rows, machine: Cluster) -> Floats:
    slower = MEASURED_RATIO / machine.node.host.single_thread_ratio
    return rows.dims["calls"] * CALL_US * slower


TIERS.register(RUNTIME)(Runtime())
