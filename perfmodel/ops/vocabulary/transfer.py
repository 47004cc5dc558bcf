"""Copies that leave the device: from and to the host, to another device."""

from __future__ import annotations

from perfmodel.ops.spec import OPS
from perfmodel.ops.streaming import elements, streaming

TRANSFER = "transfer"

# `pinned` = 0: host memory that may be paged out, which the driver copies through a buffer.
for _name in ("copy_h2d", "copy_d2h", "copy_p2p"):
    OPS.register(_name)(
        streaming(elements, ("elements",), flop=0.0, family=TRANSFER, defaults={"pinned": 0.0})
    )
