"""Copies: within the device, and between host and device from pinned and pageable memory.

`elements` of a `copy` are the values that it moves, read and written: twice those it copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.shapes import log_points

POINTS = 80
RANGES = {"elements": (1, 200_000_000)}
DLRM_LIKE = (2048 * 512, 2048 * 8 * 100, 4096 * 13, 1)
TRANSFERS = ("copy_h2d", "copy_d2h")
VARIANTS = ("pinned", "pageable")
_MOVED = {"copy": 2}
"""How often an op's `elements` count each value; once where not named."""


def copy_cases(scope: Scope) -> Iterator[Case]:
    """Sizes from one value up; host-device copies where there is a device."""
    kinds = [("copy", "")]
    if scope.is_gpu:
        kinds += [(op, variant) for op in TRANSFERS for variant in VARIANTS]
    points = [{"elements": elements} for elements in DLRM_LIKE]
    for dims in [*points, *islice(log_points(RANGES), POINTS)]:
        for op, variant in kinds:
            size = 2 * DTYPE_BYTES["fp32"] * dims["elements"]
            if size <= scope.max_bytes:
                elements = _MOVED.get(op, 1) * dims["elements"]
                yield Case(op, "fp32", {"elements": elements}, variant=variant, size_bytes=size)


def prepare_copy(backend: Backend, case: Case) -> Prepared:
    """One `copy_` between two tensors that exist already."""
    shape = (case.dim("elements") // _MOVED.get(case.op, 1),)
    device = random(backend, shape, case.dtype)
    if case.op not in TRANSFERS:
        other = random(backend, shape, case.dtype)
        return Prepared(lambda: other.copy_(device))
    host = backend.torch.randn(shape)
    if case.variant == "pinned":
        host = host.pin_memory()
    source, target = (host, device) if case.op == "copy_h2d" else (device, host)
    overlapped = case.variant == "pinned"
    return Prepared(lambda: target.copy_(source, non_blocking=overlapped))


FAMILIES.register("copies")(Family(copy_cases, prepare_copy))
