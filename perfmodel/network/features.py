"""What the learned model sees of a call: sizes, and what the heuristic's time is made of.

No rates and no generations: leaving repositories out, trees that saw them did worse on the rest.
"""

from __future__ import annotations

import numpy as np

from perfmodel.network.calls import Calls
from perfmodel.network.heuristic import Costs
from perfmodel.ops.spec import Floats

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_LINKS = ("switch", "mesh")


def features_of(calls: Calls, costs: Costs) -> dict[str, Floats]:
    """Column to values, one per call; logarithms to base 2."""
    total = costs.total_us
    found = {
        "log_size": _log2(calls.size_bytes),
        "log_piece": _log2(calls.size_bytes / calls.ranks),
        "log_ranks": _log2(calls.ranks),
        "log_domains": _log2(calls.domains),
        "log_local": _log2(calls.local),
        "hops_frac": costs.hop_us / total,
        "links_frac": costs.link_us / total,
        "network_frac": costs.net_us / total,
        "filling_frac": costs.fill_us / total,
    }
    for op in _OPS:
        found[f"is_{op}"] = (calls.op == op).astype(np.float64)
    for link in _LINKS:
        found[f"by_{link}"] = (calls.link == link).astype(np.float64)
    return found


def _log2(values: Floats) -> Floats:
    return np.asarray(np.log2(np.maximum(values, 1e-6)), np.float64)
