"""A stretch in which software waits for its own clock: `wait_us` on average."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, OpSpec

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
