"""Dense optimizers on a CPU: a loop over tensors, a list of them all (`foreach`), or one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.kernels.cpu.call import MEMORY_PARAMETERS, Call, slower
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.spec import OPS, Floats

TEMPORARIES = {"optimizer_sgd": (0, 0), "optimizer_adagrad": (1, 2)}
USUAL_TEMPORARIES = (1, 1)
"""Tensors of the parameters' size that are held at once per parameter: loop, `foreach`.

Source: torch/optim/{sgd,adagrad,adam}.py (roots of the states; scaled gradients of Adagrad).
"""
PARAMETERS = (
    *MEMORY_PARAMETERS,
    Parameter("foreach_us", 5.0, 0.01, 100.0, "a step by foreach, beyond a loop's", per_op=True),
    Parameter("fused_us", 5.0, 0.01, 100.0, "a fused step, beyond a loop's", per_op=True),
    Parameter("tensor_us", 5.0, 0.1, 300.0, "each tensor, in a loop in Python", per_op=True),
    Parameter("foreach_ratio", 1.0, 0.05, 20.0, "of that, by foreach", per_op=True),
    Parameter("fused_ratio", 0.3, 0.01, 20.0, "of that, fused", per_op=True),
    Parameter("cold_loop_us", 5.0, 0.01, 200.0, "cold code of a loop, beyond fused", per_op=True),
    Parameter("cold_foreach_us", 5.0, 0.01, 200.0, "cold code of foreach beyond it", per_op=True),
    Parameter("cold_tensor_us", 1.0, 0.01, 50.0, "each tensor that is in no cache", per_op=True),
    Parameter("element_ns", 0.3, 1e-3, 50.0, "each element, one thread", per_op=True),
    Parameter("fused_element_ratio", 0.5, 0.02, 5.0, "of that, fused", per_op=True),
    Parameter(
        "passes_ratio", 2.0, 1.0, 20.0, "bytes moved over those needed, not fused", per_op=True
    ),
    Parameter("parallel_frac", 0.9, 0.01, 1.0, "of the work, split over threads", per_op=True),
)


def _terms(call: Call) -> Mapping[str, Floats]:
    """Later passes of a loop find a tensor where it fits by itself, of `foreach` where all do.

    A fused kernel passes once.
    """
    values, dims, spec = call.values, call.dims, OPS[call.op]
    fused, foreach = call.flag("fused") > 0, call.flag("foreach") > 0

    def by_kind(loop: float, foreach_: float, fused_: float) -> Floats:
        return np.where(fused, fused_, np.where(foreach, foreach_, loop))

    ratio = by_kind(1.0, values["foreach_ratio"], values["fused_ratio"])
    tensor_us = values["tensor_us"] * ratio + call.cold * values["cold_tensor_us"]
    passes = by_kind(values["passes_ratio"], values["passes_ratio"], 1.0)
    threads = call.threads(dims["elements"])
    share = values["parallel_frac"]
    speed_up = 1 / (1 - share + share / threads)
    element_ns = values["element_ns"] * by_kind(1.0, 1.0, values["fused_element_ratio"])
    compute_us = 1e-3 * dims["elements"] * dims["tensors"] * element_ns / speed_up

    moved = spec.read_bytes(dims, call.item_bytes) + spec.written_bytes(dims, call.item_bytes)
    again = np.where(foreach, moved, moved / dims["tensors"])
    memory_us = call.moving_us(moved, moved, speed_up)
    memory_us = memory_us + (passes - 1) * _warm_us(call, moved, again, speed_up)
    loop, together = TEMPORARIES.get(call.op, USUAL_TEMPORARIES)
    tensor_bytes = dims["elements"] * call.item_bytes
    faults_us = dims["tensors"] * loop * call.faults_us(tensor_bytes)
    listed_us = call.faults_us(together * dims["tensors"] * tensor_bytes)
    return {
        "tensors": dims["tensors"] * tensor_us
        + by_kind(0.0, values["foreach_us"], values["fused_us"])
        + call.cold * by_kind(values["cold_loop_us"], values["cold_foreach_us"], 0.0),
        "fork": dims["tensors"] * passes * call.fork_us(threads),
        "memory": slower(compute_us, np.maximum(memory_us, 0.0)),
        "faults": np.where(fused, 0.0, np.where(foreach, listed_us, faults_us)),
    }


def _warm_us(call: Call, moved: Floats, held: Floats, threads: Floats) -> Floats:
    """Moving what the same call moved before."""
    return replace(call, cold=np.zeros(len(call))).moving_us(moved, held, threads)


KERNELS.register("cpu/optimizer/heuristic")(CpuFamily("optimizer", PARAMETERS, _terms))
