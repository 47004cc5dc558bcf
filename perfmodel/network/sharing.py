"""Several collectives at once on the same wires, and what a collective takes from compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.network.calls import Calls
from perfmodel.ops.spec import Floats

CHANNELS_PER_GB_PER_S = 24.0 / 450.0
"""Assumed: thread blocks that a library uses, in proportion to the links' rate."""
_LEAST_CHANNELS, _MOST_CHANNELS = 2.0, 32.0
_PASSES = {"all_reduce": 3.0, "reduce_scatter": 3.0, "reduce": 3.0}
"""Passes over device memory per byte moved: read, and write; where values are added, one more."""


def shared(calls: Calls, at_once: Floats | float) -> Calls:
    """`calls` with the rates that remain when `at_once` of them share links and adapters evenly.

    Latencies stay. Raises `ModelError` for fewer than one.
    """
    count = np.broadcast_to(np.asarray(at_once, np.float64), (len(calls),))
    if not (np.isfinite(count) & (count >= 1)).all():
        raise ModelError("shared: expected at least one collective at a time")
    return replace(
        calls,
        link_gb_per_s=calls.link_gb_per_s / count,
        nic_gb_per_s=calls.nic_gb_per_s / count,
        rank_nic_gb_per_s=calls.rank_nic_gb_per_s / count,
    )


@dataclass(frozen=True)
class Taken:
    """What a running collective takes from kernels beside it, per call."""

    sms: Floats
    """Multiprocessors that its thread blocks hold."""
    hbm_gb_per_s: Floats


def taken(calls: Calls, duration_us: Floats, device: Device) -> Taken:
    """Multiprocessors and memory bandwidth that `calls` of `duration_us` take on `device`."""
    channels = np.clip(
        np.ceil(calls.link_gb_per_s * CHANNELS_PER_GB_PER_S), _LEAST_CHANNELS, _MOST_CHANNELS
    )
    passes = np.array([_PASSES.get(op, 2.0) for op in calls.op.tolist()])
    moved = calls.size_bytes * (calls.ranks - 1) / calls.ranks * passes
    rate = moved / np.maximum(duration_us, 1e-9) / 1e3
    return Taken(np.minimum(channels, device.sm_count), np.minimum(rate, device.hbm_gb_per_s))
