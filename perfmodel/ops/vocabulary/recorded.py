"""What no shape tells: work on a device that takes as long as it was recorded to take."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, OpSpec

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
