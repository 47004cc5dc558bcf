"""Collectives among processes of one CPU (Gloo over loopback): calls and socket copies."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import MEMORY_PARAMETERS, Call, Parameter, values_of
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS

COPIES = 4.0
"""Buffers of a message on its way: both ranks' own, and what the sockets hold."""
SKEW_FRAC = 0.097
"""Standard deviation of a rank's time between two meetings, as a share of that time.

Source: `traces/cpu_dlrm_2rank` (two Gloo ranks, 6 steps of 6 collectives): half the time between
the arrivals of the ranks, summed over a step, is 4.4 to 10.5 % of the step, 5.4 % at the 10th
percentile, the quantile of all CPU times; two normal variables lie 1.13 deviations apart.
"""
PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("skew_frac", SKEW_FRAC, 1e-4, 2.0, "scatter of a rank's time between meetings"),
    Parameter("rank_us", 50.0, 0.1, 5000.0, "each further rank that takes part", per_op=True),
    Parameter("copies_ratio", 4.0, 0.1, 100.0, "bytes moved over those exchanged", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims = call.values, call.dims
    exchanged = OPS[call.op].written_bytes(dims, call.item_bytes)
    held = COPIES * dims["size_bytes"]
    one = np.full(len(call), float(call.device.sm_count))
    return {
        "ranks": (dims["ranks"] - 1) * values["rank_us"],
        "memory": values["copies_ratio"] * call.moving_us(exchanged, held, one),
    }


MODEL = CpuFamily("collective", PARAMETERS, _terms)
KERNELS.register("cpu/collective/heuristic")(MODEL)


def waiting_frac(device: Device, ranks: int) -> float:
    """What ranks of equal work wait for the last of them, as a share of their own work.

    The largest of so many normal variables, by the median rank of Blom, 1958.
    """
    values = values_of(MODEL.family, MODEL.family, MODEL.parameters, device)
    last = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return values["skew_frac"] * last if ranks > 1 else 0.0
