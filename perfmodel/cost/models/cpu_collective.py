"""Collectives among processes of one CPU (Gloo over loopback): calls and socket copies."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.call import MEMORY_PARAMETERS, Call, parameters
from perfmodel.cost.cpu.carried import values_on
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.hardware import Device
from perfmodel.ops.spec import OPS

_C = coefficients("cpu.collective")
PARAMETERS = (*MEMORY_PARAMETERS, *parameters("cpu.collective"))


def _terms(call: Call) -> Mapping[str, Floats]:
    values, dims = call.values, call.dims
    exchanged = OPS[call.op].written_bytes(dims, call.item_bytes)
    held = _C.copies * dims["size_bytes"]
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
    values = values_on(MODEL.family, MODEL.family, MODEL.parameters, device)
    last = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    return values["skew_frac"] * last if ranks > 1 else 0.0
