"""Horovod: a thread looks, once in a cycle, for collectives that all ranks are ready for."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder

CYCLE_US = 1000.0
"""Default of `HOROVOD_CYCLE_TIME`. Source: release notes of Horovod 0.21."""


def negotiated(r: Recorder, given: Tensor, ready: Sequence[Tensor]) -> None:
    """`given`, made of `ready`, waits for the end of a cycle: half of one on average."""
    about = {"wait_us": str(CYCLE_US / 2), "stream": "horovod"}
    r.leaf("tier::pause", tuple(ready), given, about=about)
