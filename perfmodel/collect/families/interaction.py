"""What a DLRM does between its lookups and its MLPs, and its loss: forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random

POINTS = 100
PAIR_RANGES = {"batch": (32, 16_384), "tensors": (2, 64)}
STACK_RANGES = {"rows": (32, 16_384), "tensors": (1, 32), "cols": (4, 512)}
LOSS_RANGES = {"elements": (16, 100_000)}

Maker = Callable[[Backend, Case], Callable[[], Any]]


def interaction_cases(scope: Scope) -> Iterator[Case]:
    """Points that fill the ranges of each op, `tensors` the number of vectors that interact."""
    for op, (ranges, directions, _) in OPS.items():
        for dims in shapes(ranges, POINTS):
            size = DTYPE_BYTES["fp32"] * _elements(dims)
            for direction in directions:
                if size <= scope.max_bytes:
                    yield Case(op, "fp32", dict(dims), direction, size_bytes=size)


def _elements(dims: dict[str, int]) -> int:
    """About how many values the op reads and writes."""
    if "elements" in dims:
        return 4 * dims["elements"]
    if "batch" in dims:
        return 2 * dims["batch"] * dims["tensors"] ** 2
    return 2 * dims["rows"] * dims["tensors"] * dims["cols"]


def _index_pairs(backend: Backend, case: Case) -> Callable[[], Any]:
    """The lower triangle of a batch of square matrices, as one row each, and its gradient."""
    torch, batch, count = backend.torch, case.dim("batch"), case.dim("tensors")
    pairs = torch.tril_indices(count, count, -1, device=backend.device)
    products = random(backend, (batch, count, count), case.dtype)
    if case.direction == "fwd":
        return lambda: products[:, pairs[0], pairs[1]]
    gradient = random(backend, (batch, pairs.shape[1]), case.dtype)
    every = (None, pairs[0], pairs[1])
    put = torch.ops.aten.index_put
    return lambda: put(torch.zeros_like(products), every, gradient, True)


def _stack(backend: Backend, case: Case) -> Callable[[], Any]:
    shape = (case.dim("rows"), case.dim("cols"))
    parts = [random(backend, shape, case.dtype) for _ in range(case.dim("tensors"))]
    return lambda: backend.torch.stack(parts, dim=1)


def _cat_stacked(backend: Backend, case: Case) -> Callable[[], Any]:
    """One vector per sample in front of those stacked."""
    rows, cols = case.dim("rows"), case.dim("cols")
    first = random(backend, (rows, 1, cols), case.dtype)
    stacked = random(backend, (rows, case.dim("tensors"), cols), case.dtype)
    return lambda: backend.torch.cat([first, stacked], dim=1)


def _zeros(backend: Backend, case: Case) -> Callable[[], Any]:
    """Fresh zeros in the shape of a batch of square matrices."""
    shape = (case.dim("batch"), case.dim("tensors"), case.dim("tensors"))
    return lambda: backend.torch.zeros(shape, device=backend.device)


def _bce(backend: Backend, case: Case) -> Callable[[], Any]:
    torch, shape = backend.torch, (case.dim("elements"), 1)
    output = torch.rand(shape, device=backend.device)
    labels = torch.rand(shape, device=backend.device).round()
    if case.direction == "fwd":
        return lambda: torch.nn.functional.binary_cross_entropy(output, labels)
    one = torch.ones((), device=backend.device)
    return lambda: torch.ops.aten.binary_cross_entropy_backward(one, output, labels)


OPS: dict[str, tuple[dict[str, tuple[int, int]], tuple[str, ...], Maker]] = {
    "index_pairs": (PAIR_RANGES, ("fwd", "bwd"), _index_pairs),
    "stack": (STACK_RANGES, ("fwd",), _stack),
    "cat_stacked": (STACK_RANGES, ("fwd",), _cat_stacked),
    "zeros": (PAIR_RANGES, ("fwd",), _zeros),
    "bce": (LOSS_RANGES, ("fwd", "bwd"), _bce),
}
"""Per op: its dims, its directions, and what makes the call."""


FAMILIES.register("interaction")(
    Family(interaction_cases, lambda backend, case: Prepared(OPS[case.op][2](backend, case)))
)
