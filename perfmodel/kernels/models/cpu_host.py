"""What the host spends around kernels: so many microseconds each."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.cpu.call import Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.host import VIEWS

PARAMETERS = (
    Parameter("each_us", 1.0, 1e-3, 5000.0, "one of them", per_op=True),
    Parameter("first_us", 1.0, 0.01, 200.0, "the first view of its kind in a step", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["each_us"]
    if call.op in VIEWS:
        host_us = host_us + call.flag("first_frac") * call.values["first_us"]
    return {"host": host_us * call.crowding()}


KERNELS.register("cpu/host/heuristic")(CpuFamily("host", PARAMETERS, _terms, called=False))
