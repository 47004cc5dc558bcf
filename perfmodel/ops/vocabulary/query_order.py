"""The order of a batch's queries, found on the host: `pairs` of lookups are compared."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, OpSpec

QUERY_ORDER = "query_order"
PAIR_BYTES = 16.0
"""A pair's two queries, and what they have in common."""

OPS.register("query_order")(
    OpSpec(
        family=QUERY_ORDER,
        dims=("pairs",),
        flop=lambda d: d["pairs"],
        read_bytes=lambda d, item: PAIR_BYTES * d["pairs"],
        written_bytes=lambda d, item: PAIR_BYTES * d["pairs"],
    )
)
