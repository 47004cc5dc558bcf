"""What autograd runs for one op by itself, by the rules of recorded workloads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import BACKWARD, NO_OP, Op, Tensor, tensors_in
from perfmodel.workload.eager import dense
from perfmodel.workload.eager.calls import contiguous
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.training import backward

FORWARD: dict[str, Callable[..., Tensor]] = {
    "aten::linear": dense.linear,
    "aten::addmm": dense.addmm,
    "aten::mm": dense.mm,
    "aten::bmm": dense.bmm,
    "aten::relu": dense.relu,
    "aten::sigmoid": dense.sigmoid,
    "aten::add": dense.add,
    "aten::mul": dense.mul,
    "aten::cat": Recorder.cat,
    "aten::stack": Recorder.stack,
    "aten::t": Recorder.t,
    "aten::transpose": Recorder.transpose,
    "aten::reshape": Recorder.reshape,
    "aten::unsqueeze": Recorder.unsqueeze,
    "aten::binary_cross_entropy": dense.binary_cross_entropy,
    "aten::binary_cross_entropy_with_logits": dense.binary_cross_entropy_with_logits,
    "aten::mse_loss": dense.mse_loss,
}
"""Ops that can be run again from their arguments alone, and what runs them."""
_SCALING = {"aten::addmm": 3, "aten::add": 2}
_LOSSES = ("aten::binary_cross_entropy", "aten::binary_cross_entropy_with_logits", "aten::mse_loss")
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")


def backward_ops(op: Op, *, target: str = "cuda") -> tuple[Op, ...]:
    """What autograd runs for `op` where every real input needs a gradient; parents count from 0.

    Raises `WorkloadError` for an op that has no rule here.
    """
    if op.name not in FORWARD:
        raise WorkloadError(f"no autograd rule for {op.name}; there are {', '.join(FORWARD)}")
    r = Recorder("cpu" if target == "cpu" else "cuda")
    r.tape = {}
    arguments = [_fresh(r, argument) for argument in op.inputs[: _SCALING.get(op.name)]]
    wanted = arguments[:1] if op.name in _LOSSES else arguments
    for tensor in tensors_in(tuple(wanted)):
        if tensor.dtype not in _INTEGERS:
            r.parameter(tensor)
    given = arguments[:2] if op.name in _LOSSES else arguments
    backward(r, FORWARD[op.name](r, *given))
    return _only(r.ops())


def _fresh(r: Recorder, argument: Any) -> Any:
    """The argument with an identity of its own."""
    if isinstance(argument, tuple) and any(isinstance(item, Tensor) for item in argument):
        return tuple(_fresh(r, item) for item in argument)
    if not isinstance(argument, Tensor):
        return argument
    made = r.tensor(argument.shape, argument.dtype)
    strides = argument.strides or contiguous(argument.shape)
    return made if strides == made.strides else r.view(made, made.shape, strides)


def _only(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The ops of the backward phase, parents counted among them."""
    kept = [index for index, op in enumerate(ops) if op.phase == BACKWARD]
    place = {index: number for number, index in enumerate(kept)}
    return tuple(
        Op(
            op.name,
            op.inputs,
            op.outputs,
            place.get(op.parent, NO_OP),
            op.thread,
            op.phase,
            attributes=op.attributes,
        )
        for op in (ops[index] for index in kept)
    )
