"""Optimizer steps of dense parameters: one parameter at a time, all at once, or in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder

LEARNING_RATE = 0.01
EPSILON = 1e-8
STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "rowwise_adagrad": 0}
"""Tensors of a parameter's own shape that each optimizer keeps of it."""

Step = Callable[[Recorder, Sequence[Tensor], Sequence[Tensor]], None]


def optimizer_step(
    r: Recorder, optimizer: str, style: str, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """One step of `optimizer` (`sgd adagrad adam`) in `style` (`loop foreach fused`)."""
    if weights:
        _STEPS[style](r, optimizer, tuple(weights), tuple(gradients))


def _loop(
    r: Recorder, optimizer: str, weights: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        _ONE[optimizer](r, weight, gradient)


def _foreach(
    r: Recorder, optimizer: str, weights: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> None:
    states = [tuple(map(_alike(r), weights)) for _ in range(STATES[optimizer])]
    if optimizer == "sgd":
        r.leaf("aten::_foreach_add_", (weights, gradients, -LEARNING_RATE))
        return
    if optimizer == "adagrad":
        (squares,) = states
        r.leaf("aten::_foreach_addcmul_", (squares, gradients, gradients, 1))
        scaled = squares
    else:
        averages, squares = states
        r.leaf("aten::_foreach_lerp_", (averages, gradients, 0.1))
        r.leaf("aten::_foreach_mul_", (squares, 0.999))
        r.leaf("aten::_foreach_addcmul_", (squares, gradients, gradients, 0.001))
        scaled, gradients = squares, averages
    roots = tuple(map(_alike(r), weights))
    r.leaf("aten::_foreach_sqrt", (scaled,), roots)
    r.leaf("aten::_foreach_add_", (roots, EPSILON))
    r.leaf("aten::_foreach_addcdiv_", (weights, gradients, roots, -LEARNING_RATE))


def _fused(
    r: Recorder, optimizer: str, weights: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
) -> None:
    states = [tuple(map(_alike(r), weights)) for _ in range(STATES[optimizer])]
    r.leaf(f"aten::_fused_{optimizer}_", (weights, gradients, *states))


def _sgd(r: Recorder, weight: Tensor, gradient: Tensor) -> None:
    r.leaf("aten::add_", (weight, gradient, -LEARNING_RATE), weight)


def _adagrad(r: Recorder, weight: Tensor, gradient: Tensor) -> None:
    squares, root = _alike(r)(weight), _alike(r)(weight)
    r.leaf("aten::addcmul_", (squares, gradient, gradient, 1), squares)
    r.leaf("aten::sqrt", (squares,), root)
    r.leaf("aten::add_", (root, EPSILON, 1), root)
    r.leaf("aten::addcdiv_", (weight, gradient, root, -LEARNING_RATE), weight)


def _adam(r: Recorder, weight: Tensor, gradient: Tensor) -> None:
    average, squares, root = (_alike(r)(weight) for _ in range(3))
    r.leaf("aten::lerp_", (average, gradient, 0.1), average)
    r.leaf("aten::mul_", (squares, 0.999), squares)
    r.leaf("aten::addcmul_", (squares, gradient, gradient, 0.001), squares)
    r.leaf("aten::sqrt", (squares,), root)
    r.leaf("aten::div_", (root, 1.0), root)
    r.leaf("aten::add_", (root, EPSILON, 1), root)
    r.leaf("aten::addcdiv_", (weight, average, root, -LEARNING_RATE), weight)


def _alike(r: Recorder) -> Callable[[Tensor], Tensor]:
    return lambda x: r.tensor(x.shape, x.dtype)


_STEPS = {"loop": _loop, "foreach": _foreach, "fused": _fused}
_ONE = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}
