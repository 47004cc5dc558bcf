"""Physics of recurrent layers' kernels whose steps follow one another."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.gpu.analysis import Analysis, Group, analyse_by_group
from perfmodel.cost.gpu.rates import bound_us
from perfmodel.hardware import Device
from perfmodel.ops.spec import Dims

_C = coefficients("gpu.recurrent")


@analyse_by_group
def analyse(group: Group, device: Device) -> Analysis:
    """Turns of a chain, each as many clocks, however much the device could move or compute."""
    chain = _CLOCKS[group.op](group.dims, device) / device.boost_mhz
    bound = bound_us(group.moved_bytes, device)
    return Analysis(
        bound_us=bound,
        kernel_us=np.maximum(chain, bound),
        shares={"memory": bound, "latency": chain},
        flop=group.flop,
        read_bytes=group.read_bytes,
        written_bytes=group.written_bytes,
    )


def _persistent_clocks(dims: Dims, device: Device) -> Floats:
    """A block per sequence has a thread per gate, which keeps a row of the weights in registers;
    each step goes over the state, value after value. As many blocks run at a time as registers
    hold."""
    registers = dims["gates"] * dims["hidden"] * (dims["hidden"] + _C.own_registers)
    at_once = np.maximum(np.floor(_C.registers / registers), 1.0)
    waves = np.ceil(dims["batch"] / (device.sm_count * at_once))
    return np.asarray(waves * dims["steps"] * dims["hidden"] * _C.value_clocks)


def _bias_clocks(dims: Dims, device: Device) -> Floats:
    """A block of 32 x 32 threads per 32 units goes over all steps and sequences, 32 at a time."""
    turns = np.ceil(dims["steps"] * dims["batch"] / _C.bias_rows)
    return np.asarray(turns * _C.bias_clocks)


_CLOCKS = {"persistent_rnn": _persistent_clocks, "rnn_bias_gradient": _bias_clocks}
"""Of all turns of an op's chain."""
