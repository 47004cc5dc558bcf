"""Time on another device over time on one, by the class that a kernel's name tells: peak rate over
peak rate, bandwidth over bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.cost.learned.features import describe, distance, similarity
from perfmodel.errors import UsageError
from perfmodel.hardware import Device
from perfmodel.ops.families import (
    CLASS_OF_FAMILY,
    COMMUNICATION,
    COMPUTE_BOUND,
    HOST_COPY,
    MEMORY_BOUND,
)

_DEFAULT_DTYPE = {"attention": "fp16"}
"""The type of a kernel whose name tells none: fused attention has no fp32 in practice."""

_RATE: dict[str, Callable[[Device, str | None], float]] = {
    COMPUTE_BOUND: lambda device, dtype: device.matrix_tflop_per_s(dtype) * device.gemm_peak_frac,
    MEMORY_BOUND: lambda device, dtype: device.hbm_gb_per_s,
    COMMUNICATION: lambda device, dtype: device.peer_gb_per_s,
    HOST_COPY: lambda device, dtype: device.host_gb_per_s,
}
"""Per class, the rate of a device whose ratio is the ratio of times."""

_CARRIED_FRAC = 0.5
"""How much of what a kernel takes beyond its model on one device it also takes on an unrelated one,
as a power. Source: rows of the same shapes on pairs of devices, the target left out of the fits,
mean logarithmic error at 0, 0.25, 0.5, 0.75 and 1: 29, 29, 30, 32, 34 % between NVIDIA and AMD."""

RATIO_SPREAD: dict[str, float] = {
    COMPUTE_BOUND: 1.75,
    MEMORY_BOUND: 1.3,
    COMMUNICATION: 1.8,
    HOST_COPY: 1.2,
}
"""Per class, the factor within which the ratio of its time between two devices lies from the
modelled one in 90 % of pairs. Source: sums over equal rows of the measured tables against ratios
of the physics: 18 of 21 pairs of P100, V100, T4, P4, A100, H100, B200 and L40S (products and
convolutions; int8 1 of 3), 10 of 10 (elementwise). assumed: communication, copies to the host."""
HOST_SPREAD = 1.3
"""Likewise of host time. Source: three programs on two machines: 0.90, 0.93 and 1.25 times what
single-thread speed says."""


def transfer_ratio(
    families: Sequence[str],
    dtypes: Sequence[str | None],
    source: Device,
    target: Device,
    *,
    duration_us: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Time on `target` divided by time on `source`, per kernel.

    `families` and `dtypes` (None where unknown) are what `perfmodel.ops` reads from the kernels'
    names. `duration_us` (microseconds on `source`) keeps tiny kernels from scaling: only what is
    above the shortest kernel of the source scales with the rate, and what is left is the shortest
    kernel of the target,

        t_target = floor_target + (t_source - floor_source) x rate_source / rate_target,

    and in proportion to the floors below `floor_source`. Rates: peak of the type's units times the
    share that the best matrix product reaches (matmul, convolution, attention), memory bandwidth,
    links to the peers (communication, which still contains its waiting), PCIe (host copies).

    Raises `UsageError` between a GPU and a CPU, whose kernels have nothing in common.
    Source: roofline; floors and shares of peak are figures of the hardware catalogue.
    """
    if (source.target == "cpu") != (target.target == "cpu"):
        raise UsageError(
            f"kernels of {source.name} cannot be transferred to {target.name}: one is a GPU, the "
            "other a CPU, and their kernels have nothing in common"
        )
    pairs, of_pair = list(zip(families, dtypes, strict=True)), {}
    for family, dtype in set(pairs):
        rate, known = _RATE[CLASS_OF_FAMILY[family]], dtype or _DEFAULT_DTYPE.get(family)
        of_pair[family, dtype] = rate(source, known) / rate(target, known)
    ratio = np.fromiter((of_pair[pair] for pair in pairs), np.float64, len(pairs))
    if duration_us is None or source == target:
        return ratio
    measured = np.asarray(duration_us, np.float64)
    above_us = np.maximum(measured - source.kernel_floor_us, 0.0)
    above_frac = np.divide(above_us, measured, out=np.zeros_like(measured), where=measured > 0)
    floors = target.kernel_floor_us / source.kernel_floor_us
    return floors + above_frac * (ratio - floors)


def carried_frac(source: Device, target: Device) -> float:
    """How much of what is unexplained of a kernel on `source` holds on `target`, 0.5 to 1.

    1 for boards of one chip, with the same library, falling to a half.
    """
    near = similarity(distance(describe(source), describe(target)))
    return _CARRIED_FRAC + (1.0 - _CARRIED_FRAC) * near
