"""Work of one thread of the host, however many there are: `measured_us` where it was timed."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

ONE_THREAD = "one_thread"


def _none(dims: Dims) -> Floats:
    return 0.0 * dims["measured_us"]


OPS.register(ONE_THREAD)(
    OpSpec(
        family=ONE_THREAD,
        dims=("measured_us",),
        flop=_none,
        read_bytes=lambda dims, item_bytes: 0.0 * dims["measured_us"] * item_bytes,
        written_bytes=lambda dims, item_bytes: 0.0 * dims["measured_us"] * item_bytes,
    )
)
