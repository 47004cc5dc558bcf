"""Collectives among `ranks` ranks; `size_bytes` as nccl-tests define it.

That is, for `all_reduce`, `broadcast` and `reduce` each rank's buffer, for `all_gather` the whole
output, for `reduce_scatter` the whole input, for `all_to_all` one rank's whole send buffer, for
`send_recv` the message. `in_network` = 1 lets switches of the network add up (SHARP), `custom` = 1
lets kernels of an inference framework (one-shot, two-shot) do so for an all-reduce. Bytes read and
written are those that leave and enter one rank, at least.
"""

from __future__ import annotations

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec

COLLECTIVE = "collective"


def _others(dims: Dims) -> Floats:
    """The share of `size_bytes` that concerns other ranks: (n - 1) / n."""
    return (dims["ranks"] - 1.0) / dims["ranks"]


def _collective(turns: float, additions: float, whole: bool = False) -> OpSpec:
    """`turns`: how often that share is sent and received; `whole`: all of it once instead."""

    def moved(dims: Dims, item_bytes: Floats) -> Floats:
        share = 1.0 if whole else turns * _others(dims)
        return dims["size_bytes"] * share + 0.0 * item_bytes

    return OpSpec(
        family=COLLECTIVE,
        dims=("size_bytes",),
        defaults={"ranks": 2.0, "nodes": 1.0, "in_network": 0.0, "custom": 0.0},
        flop=lambda dims: additions * _others(dims) * dims["size_bytes"],
        read_bytes=moved,
        written_bytes=moved,
    )


OPS.register("all_reduce")(_collective(2.0, 0.25))
OPS.register("all_gather", "all_to_all")(_collective(1.0, 0.0))
OPS.register("reduce_scatter")(_collective(1.0, 0.25))
OPS.register("broadcast", "send_recv")(_collective(1.0, 0.0, whole=True))
OPS.register("reduce")(_collective(1.0, 0.25, whole=True))
OPS.register("barrier")(_collective(0.0, 0.0))
