"""Matrix products in every precision of the machine, and two-dimensional convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import log
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import (
    DTYPE_BYTES,
    FAMILIES,
    Case,
    Family,
    Prepared,
    Scope,
    shapes,
    torch_dtype,
)
from perfmodel.collect.families import random_tensor as random

MATMUL_POINTS = 400
ROUND_SIDES = sorted(factor << power for factor in (1, 3) for power in range(17))
LAYOUTS = ("nn", "nt", "tn")
"""Row-major operands as stored: n as they are, t transposed. Of a linear layer, nt is the forward
product, nn the gradient of its input and tn the gradient of its weight."""

MATMUL_DLRM_SHAPES = {
    "linear": (
        *((1, 2048, 512, 512), (1, 2048, 1024, 1024), (1, 512, 1024, 1024)),
        *((1, 4096, 1024, 479), (1, 4096, 512, 13), (1, 2048, 1, 256)),
    ),
    "mm": ((1, 2048, 1024, 1024), (1, 1024, 1024, 2048), (1, 1024, 479, 4096)),
    "bmm": ((512, 27, 27, 128), (4096, 27, 27, 128), (2048, 9, 9, 64), (2048, 27, 128, 27)),
}
MATMUL_RANGES = {
    "linear": {"m": (1, 65_536), "n": (1, 16_384), "k": (1, 16_384)},
    "mm": {"m": (1, 65_536), "n": (1, 16_384), "k": (1, 65_536)},
    "bmm": {"b": (2, 8_192), "m": (1, 2_048), "n": (1, 2_048), "k": (1, 2_048)},
}
MATMUL_VARIANTS = {"linear": ("",), "mm": LAYOUTS, "bmm": ("",)}
QUANTISED = ("fp8", "int8")
QUANTISED_OPS = {"linear"}
QUANTISED_ALIGNMENT, QUANTISED_LEAST = 16, 32
"""The products of narrow types that PyTorch offers take multiples of 16, and more than 16 rows."""


def matmul_cases(scope: Scope) -> Iterator[Case]:
    """DLRM-like shapes first, then points that fill the ranges, every second with sides as models
    have them; each in every dtype."""
    for op, ranges in MATMUL_RANGES.items():
        known = [dict(zip("bmnk", shape, strict=True)) for shape in MATMUL_DLRM_SHAPES[op]]
        points = list(shapes(ranges, MATMUL_POINTS))
        for dims in points[::2]:  # most sides of layers are a power of two, or three times one
            for name, n in dims.items():
                dims[name] = min((abs(log(side / n)), side) for side in ROUND_SIDES)[1]
        for dims in [*known, *points]:
            for dtype in scope.dtypes:
                for layout in MATMUL_VARIANTS[op]:
                    case = _case(op, dtype, {"b": 1, **dims}, layout)
                    if case is not None:
                        flop = 2.0 * case.dim("b") * case.dim("m") * case.dim("n") * case.dim("k")
                        if flop <= scope.max_flop and case.size_bytes <= scope.max_bytes:
                            yield case


def _case(op: str, dtype: str, dims: dict[str, int], layout: str) -> Case | None:
    if dtype in QUANTISED:
        if op not in QUANTISED_OPS:
            return None
        blocks = {name: round(dims[name] / QUANTISED_ALIGNMENT) for name in "mnk"}
        dims = {name: max(n * QUANTISED_ALIGNMENT, QUANTISED_LEAST) for name, n in blocks.items()}
        dims["b"] = 1
    b, m, n, k = (dims[name] for name in ("b", "m", "n", "k"))
    size = DTYPE_BYTES[dtype] * b * (m * k + k * n + m * n)
    table: dict[str, float | str] = {"b": b, "m": m, "n": n, "k": k}
    if op == "linear":
        table["bias"] = 0 if dtype in QUANTISED else 1
    if layout:
        table["layout"] = layout
    return Case(op, dtype, table, size_bytes=size)


def _linear(backend: Backend, case: Case) -> Callable[[], Any]:
    m, n, k = map(case.dim, "mnk")
    inputs, weight = random(backend, (m, k), case.dtype), random(backend, (n, k), case.dtype)
    if case.dtype == "fp8":
        one = backend.torch.ones((), device=backend.device)
        scaled, out = backend.torch._scaled_mm, backend.torch.bfloat16
        return lambda: scaled(inputs, weight.t(), scale_a=one, scale_b=one, out_dtype=out)
    if case.dtype == "int8":
        return lambda: backend.torch._int_mm(inputs, weight.t())
    bias = random(backend, (n,), case.dtype)
    return partial(backend.torch.nn.functional.linear, inputs, weight, bias)


def _mm(backend: Backend, case: Case) -> Callable[[], Any]:
    m, n, k = map(case.dim, "mnk")
    left, right = (
        random(backend, shape, case.dtype)
        if stored == "n"
        else random(backend, shape[::-1], case.dtype).t()
        for shape, stored in zip(((m, k), (k, n)), str(case.dims["layout"]), strict=True)
    )
    return partial(backend.torch.mm, left, right)


def _bmm(backend: Backend, case: Case) -> Callable[[], Any]:
    b, m, n, k = map(case.dim, "bmnk")
    left, right = random(backend, (b, m, k), case.dtype), random(backend, (b, k, n), case.dtype)
    return partial(backend.torch.bmm, left, right)


RUNNERS = {"linear": _linear, "mm": _mm, "bmm": _bmm}
PRECISION = {"fp32": "highest", "tf32": "high"}


def prepare_matmul(backend: Backend, case: Case) -> Prepared:
    run = RUNNERS[case.op](backend, case)
    precision = PRECISION.get(case.dtype) if backend.is_gpu else None
    if precision is None:
        return Prepared(run)
    choose = backend.torch.set_float32_matmul_precision

    def run_at_precision() -> None:
        choose(precision)
        run()

    return Prepared(run_at_precision)


FAMILIES.register("matmul")(Family(matmul_cases, prepare_matmul))


CONVOLUTION_POINTS = 60
CONVOLUTION_RANGES = {"batch": (1, 256), "in_channels": (3, 512), "out_channels": (16, 512)}
GEOMETRIES = ((3, 56, 1), (1, 28, 1), (3, 28, 2), (7, 224, 2), (1, 14, 1), (3, 14, 1), (5, 27, 1))
"""Kernel size, input size, stride; padding is half the kernel."""
CONVOLUTION_DTYPES = ("fp32", "tf32", "bf16", "fp16")
CONVOLUTION_GRADIENTS = {"fwd": None, "bwd_data": 0, "bwd_weight": 1}


def convolution_cases(scope: Scope) -> Iterator[Case]:
    """Points in batch and channels, the geometry of a residual network in turn."""
    for number, point in enumerate(shapes(CONVOLUTION_RANGES, CONVOLUTION_POINTS)):
        kernel, side, stride = GEOMETRIES[number % len(GEOMETRIES)]
        out_side = -(-side // stride)
        per_sample = point["in_channels"] * side**2 + point["out_channels"] * out_side**2
        pairs = point["in_channels"] * point["out_channels"] * kernel**2
        flop = 2.0 * point["batch"] * pairs * out_side**2
        geometry = {"kernel_size": kernel, "input_size": side, "stride": stride}
        dims: dict[str, float | str] = {**point, **geometry, "padding": kernel // 2}
        for dtype in scope.among(CONVOLUTION_DTYPES):
            size = DTYPE_BYTES[dtype] * (point["batch"] * per_sample + pairs)
            if flop <= scope.max_flop and size <= scope.max_bytes:
                for direction in CONVOLUTION_GRADIENTS:
                    yield Case("conv2d", dtype, dims, direction, size_bytes=size)


def prepare_convolution(backend: Backend, case: Case) -> Prepared:
    torch, side = backend.torch, case.dim("input_size")
    inputs = random(backend, (case.dim("batch"), case.dim("in_channels"), side, side), case.dtype)
    kernel = (case.dim("kernel_size"),) * 2
    shape = (case.dim("out_channels"), case.dim("in_channels"), *kernel)
    weight = random(backend, shape, case.dtype)
    stride, padding = case.dim("stride"), case.dim("padding")
    operands = (inputs, weight)
    needed = CONVOLUTION_GRADIENTS[case.direction]

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
