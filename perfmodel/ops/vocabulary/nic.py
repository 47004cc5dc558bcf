"""Rows of embedding tables in the memory of a network adapter, as it reads and updates them.

`probes` keys are looked for in its cache, `lookups` of them find their row of `row_bytes`; rows of
one bag are added up, to `bags` vectors of `dim`. `messages` go out or come in meanwhile, and
`delivered_bytes` go to the device over its bus.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, OpSpec

NIC = "nic"
TAG_BYTES = 16.0
"""A key and where its row lies, beside its neighbours in a set. assumed"""

OPS.register("nic_lookup")(
    OpSpec(
        family=NIC,
        dims=("probes",),
        defaults={"lookups": 0.0, "row_bytes": 0.0, "bags": 0.0, "dim": 0.0}
        | {"messages": 0.0, "delivered_bytes": 0.0},
        flop=lambda d: d["lookups"] * d["dim"],
        read_bytes=lambda d, item: d["probes"] * TAG_BYTES + d["lookups"] * d["row_bytes"],
        written_bytes=lambda d, item: d["bags"] * d["dim"] * item,
    )
)

# Rows into the cache: fetched ones after a miss, or changed ones as they are written through.
OPS.register("nic_write")(
    OpSpec(
        family=NIC,
        dims=("lookups", "row_bytes"),
        defaults={"messages": 0.0, "delivered_bytes": 0.0},
        flop=lambda d: 0.0 * d["lookups"],
        read_bytes=lambda d, item: d["lookups"] * TAG_BYTES + 0.0 * item,
        written_bytes=lambda d, item: d["lookups"] * (d["row_bytes"] + TAG_BYTES) + 0.0 * item,
    )
)
