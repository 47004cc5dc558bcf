"""What the host spends around kernels: so many microseconds each."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.kernels.cpu.call import Call
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.host import BUCKET, VIEWS

BUCKET_US = 29.0
"""What `DistributedDataParallel` adds to a step per module of one bucket, beside the ops that move
gradients: hooks before and after the forward pass, the work of an all-reduce and its end.

Source: `benchmarks/ddp.py`, AMD EPYC, PyTorch 2.13, 2026-11-20: one rank's CPU time with DDP less
that without, modules of 1 to 16 narrow layers: 9 us, 25 us a module, and 2.6 us a parameter, which
the ops of its gradient hold; of two modules, 29 us each.
"""
PARAMETERS = (
    Parameter("each_us", 1.0, 1e-3, 5000.0, "one of them", per_op=True),
    Parameter("bucket_us", BUCKET_US, 1e-3, 5000.0, "a bucket of gradients"),
    Parameter("first_us", 1.0, 0.01, 200.0, "the first view of its kind in a step", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    host_us = call.dims["count"] * call.values["bucket_us" if call.op == BUCKET else "each_us"]
    first_us = call.first_us() if call.op in VIEWS else 0.0
    return {"host": host_us * call.crowding() + first_us}


KERNELS.register("cpu/host/heuristic")(CpuFamily("host", PARAMETERS, _terms, called=False))
