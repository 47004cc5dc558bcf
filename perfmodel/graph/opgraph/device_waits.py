"""Behind which ops of a profile the host waits for the whole device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.graph.ops import NO_OP
from perfmodel.trace.categories import DEVICE_WAIT_CALL, Category
from perfmodel.trace.columns import RankTrace


def waited_behind(rank: RankTrace, events: Sequence[int], parents: Sequence[int]) -> set[int]:
    """Of `events` (rows of ops, with the `parents` of each), the outermost that are the last on
    their thread before a call waits for the device. Calls within an op are the op's own."""
    outermost = np.array([e for e, p in zip(events, parents, strict=True) if p == NO_OP], np.int64)
    calls = rank.of(Category.RUNTIME)
    found = set()
    for call in calls[rank.name_matches(DEVICE_WAIT_CALL)[calls]].tolist():
        own = outermost[rank.thread[outermost] == rank.thread[call]]
        before = own[rank.start_us[own] <= rank.start_us[call]]
        if len(before):
            last = int(before[np.argmax(rank.start_us[before])])
            if rank.end_us[last] <= rank.start_us[call]:
                found.add(last)
    return found
