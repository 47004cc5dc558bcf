"""Tables in host memory behind a cache of rows on the device, kept by kernels or by operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.tiered.cache_use import use_of
from perfmodel.workload.tiered.kept_by_kernels import KeptByKernels
from perfmodel.workload.tiered.kept_by_operators import KeptByOperators
from perfmodel.workload.tiered.source import TIERED, Group, Source

KEEPERS: Mapping[str, Callable[[Recorder, Group], Source]] = {
    "kernels": KeptByKernels.of,
    "operators": KeptByOperators.of,
}
"""By `RowCache.kept_by`."""


@TIERED.register("host/hbm")
def cached(r: Recorder, group: Group) -> Source:
    """Weights in host memory, the cache's part of them in the device's."""
    (name,) = group.placed.caches
    return KEEPERS[use_of(group, name).cache.kept_by](r, group)
