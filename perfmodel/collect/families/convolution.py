"""Two-dimensional convolutions, forward and both backward directions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import (
    DTYPE_BYTES,
    FAMILIES,
    Case,
    Family,
    Prepared,
    Scope,
    torch_dtype,
)
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.shapes import log_points

POINTS = 60
RANGES = {"batch": (1, 256), "in_channels": (3, 512), "out_channels": (16, 512)}
GEOMETRIES = ((3, 56, 1), (1, 28, 1), (3, 28, 2), (7, 224, 2), (1, 14, 1), (3, 14, 1), (5, 27, 1))
"""Kernel size, input size, stride; padding is half the kernel."""
DTYPES = ("fp32", "tf32", "bf16", "fp16")
NEEDS = {"fwd": None, "bwd_data": 0, "bwd_weight": 1}


def convolution_cases(scope: Scope) -> Iterator[Case]:
    """Points in batch and channels, the geometry of a residual network in turn."""
    for number, point in enumerate(islice(log_points(RANGES), POINTS)):
        kernel, side, stride = GEOMETRIES[number % len(GEOMETRIES)]
        out_side = -(-side // stride)
        per_sample = point["in_channels"] * side**2 + point["out_channels"] * out_side**2
        pairs = point["in_channels"] * point["out_channels"] * kernel**2
        flop = 2.0 * point["batch"] * pairs * out_side**2
        geometry = {"kernel_size": kernel, "input_size": side, "stride": stride}
        dims: dict[str, float | str] = {**point, **geometry, "padding": kernel // 2}
        for dtype in scope.among(DTYPES):
            size = DTYPE_BYTES[dtype] * (point["batch"] * per_sample + pairs)
            if flop <= scope.max_flop and size <= scope.max_bytes:
                for direction in NEEDS:
                    yield Case("conv2d", dtype, dims, direction, size_bytes=size)


def prepare_convolution(backend: Backend, case: Case) -> Prepared:
    """The convolution of `case`, or one of its gradients."""
    torch, side = backend.torch, case.dim("input_size")
    inputs = random(backend, (case.dim("batch"), case.dim("in_channels"), side, side), case.dtype)
    kernel = (case.dim("kernel_size"),) * 2
    shape = (case.dim("out_channels"), case.dim("in_channels"), *kernel)
    weight = random(backend, shape, case.dtype)
    stride, padding = case.dim("stride"), case.dim("padding")
    operands = (inputs, weight)
    needed = NEEDS[case.direction]

    cudnn, allow_tf32 = torch.backends.cudnn, case.dtype == "tf32"

    def forward() -> Any:
        cudnn.allow_tf32 = allow_tf32
        return torch.nn.functional.conv2d(inputs, weight, stride=stride, padding=padding)

    if needed is None:
        return Prepared(forward)
    operands[needed].requires_grad_()
    output = forward()
    gradient = torch.randn(output.shape, device=backend.device).to(torch_dtype(backend, case.dtype))
    grad = torch.autograd.grad

    def backward() -> None:
        cudnn.allow_tf32 = allow_tf32
        grad(output, [operands[needed]], gradient, retain_graph=True)

    return Prepared(backward)


FAMILIES.register("convolution")(Family(convolution_cases, prepare_convolution))
