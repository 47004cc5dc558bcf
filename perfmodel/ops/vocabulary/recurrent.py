"""Kernels of recurrent layers that are nothing but one step after another."""

from __future__ import annotations

from perfmodel.arrays import Floats
from perfmodel.ops.spec import OPS, Dims, OpSpec

RECURRENT = "recurrent"


def _gates(dims: Dims) -> Floats:
    """Values of the gates of all steps."""
    return dims["steps"] * dims["batch"] * dims["gates"] * dims["hidden"]


# All steps of a layer in one kernel, each sequence a block that keeps the weights; and the gradient
# of its biases, the sum of its gates' over all steps and sequences.
_DIMS = ("steps", "batch", "hidden", "gates")
OPS.register("persistent_rnn")(
    OpSpec(
        family=RECURRENT,
        dims=_DIMS,
        flop=lambda dims: 2.0 * _gates(dims) * dims["hidden"],
        read_bytes=lambda dims, item: item * (_gates(dims) + dims["gates"] * dims["hidden"] ** 2),
        written_bytes=lambda dims, item: item * _gates(dims) / dims["gates"],
    )
)
OPS.register("rnn_bias_gradient")(
    OpSpec(
        family=RECURRENT,
        kernels="reduction",
        dims=_DIMS,
        flop=_gates,
        read_bytes=lambda dims, item: item * _gates(dims),
        written_bytes=lambda dims, item: item * dims["gates"] * dims["hidden"],
    )
)
