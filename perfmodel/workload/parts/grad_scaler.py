"""PyTorch's `GradScaler`: gradients unscaled and checked, a flag that the host reads, a new scale.

Source: torch/cuda/amp/grad_scaler.py of PyTorch 1.10 (`unscale_`, `_maybe_opt_step`, `update`).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import fill, to_dtype
from perfmodel.workload.eager.pointwise import mul
from perfmodel.workload.eager.recorder import Recorder


def scaled(r: Recorder, loss: Tensor) -> Tensor:
    """The loss times the scale; differentiable."""
    return mul(r, loss, r.tensor(()))


def unscaled(r: Recorder, gradients: Sequence[Tensor]) -> Tensor:
    """All gradients times the inverse of the scale, in place; the flag `[1]`: one is not finite."""
    double, inverse = to_dtype(r, r.tensor((1,)), "fp64"), r.tensor((1,), "fp64")
    r.leaf("aten::reciprocal", (double,), inverse)
    factor, flag = to_dtype(r, inverse, "fp32"), r.tensor((1,))
    fill(r, flag, 0.0)
    name = "aten::_amp_foreach_non_finite_check_and_unscale_"
    r.leaf(name, (tuple(gradients), flag, factor), flag)
    return flag


def is_read(r: Recorder, flag: Tensor) -> None:
    """The host waits for the flag before it launches the optimizer's step."""
    r.begin("aten::item", flag)
    r.leaf("aten::_local_scalar_dense", (flag,))
    r.end()


def updated(r: Recorder, flags: Sequence[Tensor]) -> None:
    """The next scale, from the flags of all optimizers."""
    found, *others = flags
    for other in others:
        r.leaf("aten::add_", (found, other, 1), found)
    scale, growth = r.tensor((1,)), r.tensor((1,), "int32")
    r.leaf("aten::_amp_update_scale_", (scale, growth, found), scale)
