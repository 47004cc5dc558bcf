"""Copies within the device and to and from its host; cat, gather, scatter, transpose and sort.

`elements` of a `copy` are the values that it moves, read and written: twice those it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random

COPY_POINTS = 80
COPY_RANGES = {"elements": (1, 200_000_000)}
COPY_DLRM_SHAPES = (2048 * 512, 2048 * 8 * 100, 4096 * 13, 1)
TRANSFERS = ("copy_h2d", "copy_d2h")
COPY_VARIANTS = ("pinned", "pageable")
_TIMES_COUNTED = {"copy": 2}
"""How often an op's `elements` count each value; once where not named."""


def copy_cases(scope: Scope) -> Iterator[Case]:
    """Sizes from one value up; host-device copies where there is a device."""
    kinds = [("copy", "")]
    if scope.is_gpu:
        kinds += [(op, variant) for op in TRANSFERS for variant in COPY_VARIANTS]
    known = [(elements,) for elements in COPY_DLRM_SHAPES]
    for dims in shapes(COPY_RANGES, COPY_POINTS, known):
        for op, variant in kinds:
            size = 2 * DTYPE_BYTES["fp32"] * dims["elements"]
            if size <= scope.max_bytes:
                elements = _TIMES_COUNTED.get(op, 1) * dims["elements"]
                yield Case(op, "fp32", {"elements": elements}, variant=variant, size_bytes=size)


def prepare_copy(backend: Backend, case: Case) -> Prepared:
    """One `copy_` between two tensors that exist already."""
    shape = (case.dim("elements") // _TIMES_COUNTED.get(case.op, 1),)
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


MOVEMENT_POINTS = 120
CAT_TENSORS = (2, 9, 27)
HASH_SIZES = (1_000, 100_000, 10_000_000)
CAT_RANGES = {"rows": (1, 100_000), "cols": (1, 4_096)}
ROW_RANGES = {"rows": (1, 4_000_000), "cols": (1, 1_024)}
SORT_RANGES = {"rows": (1, 64), "cols": (16, 20_000_000)}
DLRM_ROWS = ((2048, 128), (81_920, 64), (4096, 351))


def movement_cases(scope: Scope) -> Iterator[Case]:
    """Concatenations, rows gathered and scattered, transposes and sorts."""
    plans: tuple[tuple[str, str, dict[str, tuple[int, int]], str, tuple[int, ...]], ...] = (
        ("cat", "fp32", CAT_RANGES, "tensors", CAT_TENSORS),
        ("index_select", "fp32", ROW_RANGES, "hash_size", HASH_SIZES),
        ("index_add", "fp32", ROW_RANGES, "hash_size", HASH_SIZES),
        ("gather", "fp32", CAT_RANGES, "", (0,)),
        ("scatter_add", "fp32", CAT_RANGES, "", (0,)),
        ("transpose_copy", "fp32", CAT_RANGES, "", (0,)),
        ("sort", "int64", SORT_RANGES, "", (0,)),
        ("unique", "int64", SORT_RANGES, "", (0,)),
    )
    for op, dtype, ranges, extra, values in plans:
        known = DLRM_ROWS if ranges is not SORT_RANGES else ()
        for number, point in enumerate(shapes(ranges, MOVEMENT_POINTS, known)):
            dims: dict[str, float | str] = dict(point)
            chosen = values[number % len(values)]
            if extra:
                dims[extra] = chosen
            elements = point["rows"] * point["cols"]
            moved = elements * (2 * chosen if extra == "tensors" else 4)
            held = chosen * point["cols"] if extra == "hash_size" else 0
            size = DTYPE_BYTES[dtype] * (moved + held)
            if size <= scope.max_bytes:
                yield Case(op, dtype, dims, size_bytes=size)


def _cat(backend: Backend, case: Case) -> Callable[[], Any]:
    shape = (case.dim("rows"), case.dim("cols"))
    parts = [random(backend, shape, case.dtype) for _ in range(case.dim("tensors"))]
    return lambda: backend.torch.cat(parts, dim=1)


def _index_select(backend: Backend, case: Case) -> Callable[[], Any]:
    source = random(backend, (case.dim("hash_size"), case.dim("cols")), case.dtype)
    index = _index(backend, case)
    return lambda: backend.torch.index_select(source, 0, index)


def _index_add(backend: Backend, case: Case) -> Callable[[], Any]:
    target = random(backend, (case.dim("hash_size"), case.dim("cols")), case.dtype)
    added = random(backend, (case.dim("rows"), case.dim("cols")), case.dtype)
    index = _index(backend, case)
    return lambda: target.index_add_(0, index, added, alpha=1e-6)


def _within_rows(backend: Backend, case: Case) -> Callable[[], Any]:
    """Within each row, values read from or added at random places."""
    torch, shape = backend.torch, (case.dim("rows"), case.dim("cols"))
    places = torch.randint(0, shape[1], shape, device=backend.device)
    values = random(backend, shape, case.dtype)
    if case.op == "gather":
        return lambda: torch.gather(values, 1, places)
    target = torch.zeros_like(values)
    return lambda: target.scatter_add_(1, places, values)


def _transpose_copy(backend: Backend, case: Case) -> Callable[[], Any]:
    values = random(backend, (case.dim("rows"), case.dim("cols")), case.dtype)
    return lambda: values.t().contiguous()


def _order(backend: Backend, case: Case) -> Callable[[], Any]:
    """Keys of each row sorted, or the distinct ones of all."""
    torch, shape = backend.torch, (case.dim("rows"), case.dim("cols"))
    keys = torch.randint(0, 1_000_000, shape, device=backend.device)
    flat = keys.flatten()
    return (lambda: torch.sort(keys, dim=1)) if case.op == "sort" else lambda: torch.unique(flat)


def _index(backend: Backend, case: Case) -> Any:
    shape = (case.dim("rows"),)
    return backend.torch.randint(0, case.dim("hash_size"), shape, device=backend.device)


MOVEMENT_RUNNERS = {
    "cat": _cat,
    "index_select": _index_select,
    "index_add": _index_add,
    "gather": _within_rows,
    "scatter_add": _within_rows,
    "transpose_copy": _transpose_copy,
    "sort": _order,
    "unique": _order,
}


FAMILIES.register("movement")(
    Family(movement_cases, lambda backend, case: Prepared(MOVEMENT_RUNNERS[case.op](backend, case)))
)
