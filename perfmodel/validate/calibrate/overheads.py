"""Profiles of host overheads from traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.errors import TraceError
from perfmodel.hardware import load
from perfmodel.lowering.host import Profile, Provenance
from perfmodel.lowering.host.measure import measure
from perfmodel.trace import read


def fit_overheads(
    traces: Sequence[str | Path],
    *,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Profile:
    """One profile of the host overheads of all `traces` (files, archives or folders of ranks).

    `profiler_us_per_event` is taken off each sample per event that the profiler recorded in it.
    `hosts` (of the catalogue, or TOML files) and `torch_versions` are what the traces do not say of
    themselves. Raises `TraceError` for a trace without times, `ModelError` where no overhead is
    found, `HardwareError` for an unknown host.
    """
    for host in hosts:
        load(host, "host")
    samples = []
    for path in begun(traces, begin):
        trace = read(path, max_bytes=max_bytes)
        if not trace.ranks:
            raise TraceError(f"{path}: has no times, so no overheads; give a Kineto trace")
        samples += [
            measure(rank, links, profiler_us_per_event=profiler_us_per_event)
            for rank, links in zip(trace.ranks, trace.links, strict=True)
        ]
    stated = Provenance(hosts=tuple(hosts), torch_versions=tuple(torch_versions))
    return Profile.from_samples(*samples, provenance=stated)
