"""Elementwise ops, reductions along the columns, and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random

ELEMENTWISE_POINTS = 150
ELEMENTWISE_DTYPES = ("fp32", "bf16", "fp16")
ELEMENTWISE_RANGES = {"rows": (1, 1_000_000), "cols": (1, 16_384)}
ELEMENTWISE_DLRM_SHAPES = ((2048, 1024), (512, 512), (4096, 128), (2048, 1))

Maker = Callable[[Any, Any, Any], Callable[[], Any]]
ELEMENTWISE_OPS: dict[str, tuple[int, Maker]] = {
    "add": (3, lambda torch, x, y: lambda: torch.add(x, y)),
    "add_scalar": (2, lambda torch, x, y: lambda: torch.add(x, 1.5)),
    "mul": (3, lambda torch, x, y: lambda: torch.mul(x, y)),
    "mul_scalar": (2, lambda torch, x, y: lambda: torch.mul(x, 1.5)),
    "div": (3, lambda torch, x, y: lambda: torch.div(x, y)),
    "pow_scalar": (2, lambda torch, x, y: lambda: torch.pow(x, 2.5)),
    "add_inplace": (3, lambda torch, x, y: lambda: x.add_(y, alpha=0.0)),
    "fill": (1, lambda torch, x, y: lambda: x.fill_(0.5)),
    "relu": (2, lambda torch, x, y: lambda: torch.relu(x)),
    "gelu": (2, lambda torch, x, y: lambda: torch.nn.functional.gelu(x)),
    "tanh": (2, lambda torch, x, y: lambda: torch.tanh(x)),
    "sigmoid": (2, lambda torch, x, y: lambda: torch.sigmoid(x)),
    "sigmoid_backward": (3, lambda torch, x, y: lambda: torch.ops.aten.sigmoid_backward(x, y)),
    "threshold_backward": (
        3,
        lambda torch, x, y: lambda: torch.ops.aten.threshold_backward(x, y, 0),
    ),
}
"""Per op: tensors read and written, and what makes the call."""


def elementwise_cases(scope: Scope) -> Iterator[Case]:
    """DLRM-like shapes first, then points that fill the ranges."""
    for dims in shapes(ELEMENTWISE_RANGES, ELEMENTWISE_POINTS, ELEMENTWISE_DLRM_SHAPES):
        for dtype in scope.among(ELEMENTWISE_DTYPES):
            for op, (tensors, _) in ELEMENTWISE_OPS.items():
                size = tensors * DTYPE_BYTES[dtype] * dims["rows"] * dims["cols"]
                if size <= scope.max_bytes:
                    yield Case(op, dtype, dict(dims), size_bytes=size)


def prepare_elementwise(backend: Backend, case: Case) -> Prepared:
    """The op of `case` on random operands."""
    shape = (case.dim("rows"), case.dim("cols"))
    tensors, make = ELEMENTWISE_OPS[case.op]
    first = random(backend, shape, case.dtype)
    second = random(backend, shape, case.dtype) if tensors > 2 else None
    return Prepared(make(backend.torch, first, second))


FAMILIES.register("elementwise")(Family(elementwise_cases, prepare_elementwise))


REDUCTION_POINTS = 150
REDUCTION_DTYPES = ("fp32", "bf16", "fp16")
REDUCTION_RANGES = {"rows": (1, 200_000), "cols": (8, 16_384)}
REDUCTION_DLRM_SHAPES = ((2048, 1024), (512, 512), (8192, 768), (16_384, 64))

REDUCTION_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda torch, x: torch.sum(x, dim=1),
    "sum_rows": lambda torch, x: torch.sum(x, dim=0),
    "mean": lambda torch, x: torch.mean(x, dim=1),
    "amax": lambda torch, x: torch.amax(x, dim=1),
    "softmax": lambda torch, x: torch.softmax(x, dim=1),
    "layer_norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda torch, x: torch.nn.functional.batch_norm(x, None, None, training=True),
}
DIFFERENTIATED = ("softmax", "layer_norm", "batch_norm")
REDUCTION_TENSORS = {"fwd": 2, "bwd": 4}


def reduction_cases(scope: Scope) -> Iterator[Case]:
    """DLRM-like shapes first, then points that fill the ranges."""
    kinds = [(op, "fwd") for op in REDUCTION_OPS] + [(op, "bwd") for op in DIFFERENTIATED]
    for dims in shapes(REDUCTION_RANGES, REDUCTION_POINTS, REDUCTION_DLRM_SHAPES):
        for dtype in scope.among(REDUCTION_DTYPES):
            for op, direction in kinds:
                elements = dims["rows"] * dims["cols"]
                size = REDUCTION_TENSORS[direction] * DTYPE_BYTES[dtype] * elements
                if size <= scope.max_bytes and dims["rows"] > 1:
                    yield Case(op, dtype, dict(dims), direction, size_bytes=size)


def prepare_reduction(backend: Backend, case: Case) -> Prepared:
    """The op of `case`, or its backward, on random operands."""
    values = random(backend, (case.dim("rows"), case.dim("cols")), case.dtype)
    function = REDUCTION_OPS[case.op]
    if case.direction == "fwd":
        return Prepared(lambda: function(backend.torch, values))
    values.requires_grad_()
    output = function(backend.torch, values)
    gradient, grad = backend.torch.randn_like(output), backend.torch.autograd.grad
    return Prepared(lambda: grad(output, [values], gradient, retain_graph=True))


FAMILIES.register("reduction")(Family(reduction_cases, prepare_reduction))


OPTIMIZER_POINTS = 60
OPTIMIZER_RANGES = {"tensors": (1, 200), "elements": (16, 50_000_000)}
OPTIMIZER_DLRM_SHAPES = ((16, 500_000), (12, 100_000), (148, 600_000))
OPTIMIZER_VARIANTS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
OPTIMIZER_STATES = {"SGD": 0, "Adagrad": 1, "Adam": 2, "AdamW": 2}
"""Per optimizer of `torch.optim`: state tensors per parameter."""


def optimizer_cases(scope: Scope) -> Iterator[Case]:
    """Every optimizer in every variant; one that this PyTorch lacks is skipped when it is made."""
    for dims in shapes(OPTIMIZER_RANGES, OPTIMIZER_POINTS, OPTIMIZER_DLRM_SHAPES):
        for name, states in OPTIMIZER_STATES.items():
            for variant in OPTIMIZER_VARIANTS:
                parameters = dims["tensors"] * dims["elements"]
                size = DTYPE_BYTES["fp32"] * parameters * (2 + states)
                if size <= scope.max_bytes:
                    op = f"optimizer_{name.lower()}"
                    yield Case(op, "fp32", dict(dims), "update", variant, size)


def prepare_optimizer(backend: Backend, case: Case) -> Prepared:
    """One step of the optimizer of `case`; its states exist already."""
    name = next(name for name in OPTIMIZER_STATES if case.op == f"optimizer_{name.lower()}")
    parameters = []
    for _ in range(case.dim("tensors")):
        parameter = random(backend, (case.dim("elements"),), case.dtype).requires_grad_()
        parameter.grad = random(backend, (case.dim("elements"),), case.dtype)
        parameters.append(parameter)
    optimizer = getattr(backend.torch.optim, name)(
        parameters, lr=1e-6, **OPTIMIZER_VARIANTS[case.variant]
    )
    optimizer.step()
    return Prepared(optimizer.step)


FAMILIES.register("optimizers")(Family(optimizer_cases, prepare_optimizer))
