"""Collectives among processes of one CPU (Gloo over loopback): calls and socket copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

COPIES = 4.0
"""Buffers of a message on its way: both ranks' own, and what the sockets hold."""
PARAMETERS = (
    *MEMORY_PARAMETERS,
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


KERNELS.register("cpu/collective/heuristic")(CpuFamily("collective", PARAMETERS, _terms))
