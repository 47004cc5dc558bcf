"""What no rule knows: taken to stream its operands once."""

from __future__ import annotations

from perfmodel.ops.spec import OPS
from perfmodel.ops.streaming import elements, streaming

UNKNOWN = "unknown"

OPS.register(UNKNOWN)(
    streaming(
        elements,
        ("elements",),
        reads=lambda dims: dims["reads"],
        writes=lambda dims: dims["writes"],
        defaults={"reads": 1.0, "writes": 1.0},
    )
)
