"""What a host thread spends around kernels, and work that no shape shows.

`count` of them at a time; there is no work to count.
"""

from __future__ import annotations

from perfmodel.ops.spec import VECTOR, op, streaming

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
PAUSE, UNKNOWN, RECORDED = "pause", "unknown", "recorded"

op(" ".join((*HOST_OPS, *OTHER_VIEWS)), HOST, "", defaults={"count": 1})
op(PAUSE, PAUSE, "wait_us")
_STREAMED = streaming("elements", "reads", "writes")
op(UNKNOWN, VECTOR, "elements", kernels="other", **_STREAMED, defaults={"reads": 1, "writes": 1})
op(RECORDED, RECORDED, "recorded_us", means=("recorded_us",), defaults={"ratio": 1, "spread": 1})
