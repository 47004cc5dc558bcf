"""What finding an order of queries takes on a node's CPUs: pairs of lookups, one core per rank."""

from __future__ import annotations

from perfmodel.hardware import Cluster
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.vocabulary.query_order import QUERY_ORDER
from perfmodel.tiers.model import TIERS
from perfmodel.tiers.nic.order import PAIR_US

HALF_FACTOR = 6.0
"""The 90 % interval reaches so many times up and down: 0.02 to 0.7 us per pair were seen."""
NAME = f"{QUERY_ORDER}/heuristic"
FORMULA = "pairs of lookups x a pair's time / host.single_thread_ratio"


class QueryOrder:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken = _taken_us(rows, machine)
        source = "timed where this project was made, one core"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, NAME, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        spec = OPS["query_order"]
        found = []
        for _, index in rows.groups():
            dims, item = rows.dims_of("query_order", index), rows.item_bytes(index)
            read, flop = spec.read_bytes(dims, item), spec.flop(dims)
            for at, us in enumerate(_taken_us(rows, machine).tolist()):
                moved = float(read[at])
                work = float(flop[at])
                why = Explanation(us, "compute", work, moved, moved, 1.0, {"pairs_us": us}, FORMULA)
                found.append(why)
        return found


def _taken_us(rows: Rows, machine: Cluster) -> Floats:
    pairs = rows.dims["pairs"]
    return pairs * PAIR_US / machine.node.host.single_thread_ratio


TIERS.register(QUERY_ORDER)(QueryOrder())
