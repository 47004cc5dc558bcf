"""What the host spends around kernels: so many microseconds each."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.cpu.call import Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import Floats

PARAMETERS = (Parameter("each_us", 1.0, 1e-3, 5000.0, "one of them", per_op=True),)


def _terms(call: Call) -> Mapping[str, Floats]:
    return {"host": call.dims["count"] * call.values["each_us"]}


KERNELS.register("cpu/host/heuristic")(CpuFamily("host", PARAMETERS, _terms, called=False))
