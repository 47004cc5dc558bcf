"""Overhead profiles from traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import TraceError
from perfmodel.files import DEFAULT_MAX_BYTES
from perfmodel.overheads import Profile, Provenance, measure
from perfmodel.trace import read


def fit_overheads(
    traces: Sequence[str | Path],
    *,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Profile:
    """One profile of the host overheads of all `traces` (files, archives or folders of ranks).

    `profiler_us_per_event` is taken off each sample per event that the profiler recorded in it.
    `hosts` and `torch_versions` are what the traces do not say of themselves. Raises `TraceError`
    for a trace without times, `ModelError` where no overhead is found.
    """
    samples = []
    for path in traces:
        trace = read(path, max_bytes=max_bytes)
        if not trace.ranks:
            raise TraceError(f"{path}: has no times, so no overheads; give a Kineto trace")
        samples += [
            measure(rank, links, profiler_us_per_event=profiler_us_per_event)
            for rank, links in zip(trace.ranks, trace.links, strict=True)
        ]
    stated = Provenance(hosts=tuple(hosts), torch_versions=tuple(torch_versions))
    return Profile.from_samples(*samples, provenance=stated)
