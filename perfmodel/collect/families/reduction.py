"""Reductions along the columns: sums, softmax, norms, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    backward_of,
)
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.shapes import log_points

POINTS = 150
DTYPES = ("fp32", "bf16", "fp16")
RANGES = {"rows": (1, 200_000), "cols": (8, 16_384)}
DLRM_LIKE = ((2048, 1024), (512, 512), (8192, 768), (16_384, 64))

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda torch, x: torch.sum(x, dim=1),
    "sum_rows": lambda torch, x: torch.sum(x, dim=0),
    "mean": lambda torch, x: torch.mean(x, dim=1),
    "amax": lambda torch, x: torch.amax(x, dim=1),
    "softmax": lambda torch, x: torch.softmax(x, dim=1),
    "layer_norm": lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda torch, x: torch.nn.functional.batch_norm(x, None, None, training=True),
}
DIFFERENTIATED = ("softmax", "layer_norm", "batch_norm")
TENSORS = {"fwd": 2, "bwd": 4}


def reduction_cases(scope: Scope) -> Iterator[Case]:
    """DLRM-like shapes first, then points that fill the ranges."""
    anchors = [dict(zip(("rows", "cols"), shape, strict=False)) for shape in DLRM_LIKE]
    kinds = [(op, "fwd") for op in OPS] + [(op, "bwd") for op in DIFFERENTIATED]
    for dims in [*anchors, *islice(log_points(RANGES), POINTS)]:
        for dtype in scope.among(DTYPES):
            for op, direction in kinds:
                elements = dims["rows"] * dims["cols"]
                size = TENSORS[direction] * DTYPE_BYTES[dtype] * elements
                if size <= scope.max_bytes and dims["rows"] > 1:
                    yield Case(op, dtype, dict(dims), direction, size_bytes=size)


def prepare_reduction(backend: Backend, case: Case) -> Prepared:
    """The op of `case`, or its backward, on random operands."""
    values = random(backend, (case.dim("rows"), case.dim("cols")), case.dtype)
    function = OPS[case.op]
    if case.direction == "fwd":
        return Prepared(lambda: function(backend.torch, values))
    values.requires_grad_()
    return backward_of(backend, function(backend.torch, values), [values])


FAMILIES.register("reduction")(Family(reduction_cases, prepare_reduction))
