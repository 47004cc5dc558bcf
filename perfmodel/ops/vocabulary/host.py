"""What a host thread spends around kernels, and work that no shape shows.

`count` of them at a time; there is no work to count.
"""

from __future__ import annotations

from perfmodel.ops.spec import OPS, OpSpec, elements, streaming

HOST = "host"
VIEW, CALL, NODE, UPDATE, BUCKET, STEP = HOST_OPS = (
    "host_view",
    "host_call",
    "host_node",
    "host_update",
    "host_bucket",
    "host_step",
)
"""An operator that makes a view or an empty tensor; a call from Python into an operator of the
forward pass; an autograd node; a parameter that an optimizer visits; a bucket of gradients that DDP
hands over; whatever else a step costs."""
OTHER_VIEWS = ("host_detach", "host_transpose", "host_select", "host_slice")
VIEWS = (VIEW, *OTHER_VIEWS)
"""Views by what they compute; `host_view` is any that has no name of its own."""


for _name in (*HOST_OPS, *OTHER_VIEWS):
    OPS.register(_name)(
        OpSpec(
            family=HOST,
            dims=(),
            defaults={"count": 1.0},
            flop=lambda d: 0.0 * d["count"],
            read_bytes=lambda dims, item_bytes: 0.0 * item_bytes,
            written_bytes=lambda dims, item_bytes: 0.0 * item_bytes,
        )
    )


PAUSE = "pause"

OPS.register(PAUSE)(
    OpSpec(
        family=PAUSE,
        dims=("wait_us",),
        flop=lambda dims: 0.0 * dims["wait_us"],
        read_bytes=lambda dims, item_bytes: 0.0 * dims["wait_us"] * item_bytes,
        written_bytes=lambda dims, item_bytes: 0.0 * dims["wait_us"] * item_bytes,
    )
)


UNKNOWN = "unknown"

OPS.register(UNKNOWN)(
    streaming(
        elements,
        ("elements",),
        reads=lambda dims: dims["reads"],
        writes=lambda dims: dims["writes"],
        kernels="other",
        defaults={"reads": 1.0, "writes": 1.0},
    )
)


RECORDED = "recorded"

OPS.register(RECORDED)(
    OpSpec(
        family=RECORDED,
        dims=("recorded_us",),
        means=("recorded_us",),
        defaults={"ratio": 1.0, "spread": 1.0},
        flop=lambda dims: 0.0 * dims["recorded_us"],
        read_bytes=lambda dims, item: 0.0 * dims["recorded_us"],
        written_bytes=lambda dims, item: 0.0 * dims["recorded_us"],
    )
)
