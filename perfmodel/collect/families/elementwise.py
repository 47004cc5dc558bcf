"""Elementwise ops: one or two tensors in, one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.shapes import log_points

POINTS = 150
DTYPES = ("fp32", "bf16", "fp16")
RANGES = {"rows": (1, 1_000_000), "cols": (1, 16_384)}
DLRM_LIKE = ((2048, 1024), (512, 512), (4096, 128), (2048, 1))

Maker = Callable[[Any, Any, Any], Callable[[], Any]]
OPS: dict[str, tuple[int, Maker]] = {
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
    anchors = [dict(zip(("rows", "cols"), shape, strict=False)) for shape in DLRM_LIKE]
    for dims in [*anchors, *islice(log_points(RANGES), POINTS)]:
        for dtype in scope.among(DTYPES):
            for op, (tensors, _) in OPS.items():
                size = tensors * DTYPE_BYTES[dtype] * dims["rows"] * dims["cols"]
                if size <= scope.max_bytes:
                    yield Case(op, dtype, dict(dims), size_bytes=size)


def prepare_elementwise(backend: Backend, case: Case) -> Prepared:
    """The op of `case` on random operands."""
    shape = (case.dim("rows"), case.dim("cols"))
    tensors, make = OPS[case.op]
    first = random(backend, shape, case.dtype)
    second = random(backend, shape, case.dtype) if tensors > 2 else None
    return Prepared(make(backend.torch, first, second))


FAMILIES.register("elementwise")(Family(elementwise_cases, prepare_elementwise))
