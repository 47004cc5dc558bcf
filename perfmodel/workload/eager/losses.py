"""Losses: binary cross-entropy of probabilities or of logits, and the mean squared error."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import track
from perfmodel.workload.eager.creation import copy, empty_like, fill, resize
from perfmodel.workload.eager.pointwise import mean
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import CONTIGUOUS, squeeze

MEAN = 1


def binary_cross_entropy(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """Of probabilities `x`."""
    r.begin("aten::binary_cross_entropy", x, target, None, MEAN)
    each = empty_like(r, x, None)
    for operand in (each, x, target):
        squeeze(r, operand)
    average = mean(r, each)
    r.begin("aten::resize_as_", each, average, None)
    out = resize(r, each, ())
    r.end(out)
    copy(r, out, average)
    r.end(out)
    track(r, "aten::binary_cross_entropy", (x,), out, x, target)
    return out


def binary_cross_entropy_with_logits(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """Of logits `x`."""
    r.begin("aten::binary_cross_entropy_with_logits", x, target, None, None, MEAN)
    log = r.tensor(x.shape, x.dtype)
    r.begin("aten::log_sigmoid", x)
    r.begin("aten::log_sigmoid_forward", x)
    for _ in range(2):
        empty_like(r, x, CONTIGUOUS)
    r.end(log, log)
    r.end(log)
    each = empty_like(r, target)
    fill(r, each, 1)
    r.leaf("aten::sub_", (each, target, 1), each)
    r.leaf("aten::mul_", (each, x), each)
    r.leaf("aten::sub_", (each, log, 1), each)
    out = mean(r, each)
    r.end(out)
    track(r, "aten::binary_cross_entropy_with_logits", (x,), out, x, target)
    return out


def mse_loss(r: Recorder, x: Tensor, target: Tensor) -> Tensor:
    """The mean of the squared differences."""
    r.leaf("aten::broadcast_tensors", ((x, target),), (x, target))
    r.begin("aten::mse_loss", x, target, MEAN)
    out = mean(r, empty_like(r, x, CONTIGUOUS))
    r.end(out)
    track(r, "aten::mse_loss", (x,), out, x, target)
    return out


LOSSES = {
    "bce": binary_cross_entropy,
    "bce_with_logits": binary_cross_entropy_with_logits,
    "mse": mse_loss,
}
"""By their name in a workload."""
