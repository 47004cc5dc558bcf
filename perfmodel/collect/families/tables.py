"""Memory-bound kernels as tables of ops: elementwise, reductions, optimizer steps, copies, moved
rows.

`elements` of a `copy` are the values that it moves, read and written: twice those it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random

Ranges = dict[str, tuple[int, int]]
Maker = Callable[[Backend, Case], Callable[[], Any]]
FORWARD = ("fwd", "")


@dataclass(frozen=True)
class Op:
    """An op of a family: what makes its call, and how many values that holds."""

    make: Maker
    values: Mapping[tuple[str, str], float] = field(default_factory=lambda: {FORWARD: 2.0})
    """Per direction and variant, values held per product of the dims."""
    ranges: Ranges | None = None
    dtypes: tuple[str, ...] = ()
    turns: tuple[str, tuple[int, ...]] = ("", (0,))
    """A further dim, and its values, which take turns."""
    held: Callable[[Mapping[str, int]], float] | None = None
    """Values held by dims, where that is no multiple of their product."""
    least_rows: int = 0
    counted: int = 1
    """How often `elements` count each value."""
    only_gpu: bool = False


@dataclass(frozen=True)
class Ops:
    """The ops of a family, and what they share: points in ranges of dims, known shapes, dtypes."""

    ops: Mapping[str, Op]
    points: int
    ranges: Ranges = field(default_factory=dict)
    known: Sequence[Sequence[int]] = ()
    dtypes: tuple[str, ...] = ("fp32",)

    def cases(self, scope: Scope) -> Iterator[Case]:
        """Known shapes first, then points that fill the ranges."""
        for name, op in self.ops.items():
            turn, chosen = op.turns
            known = self.known if op.ranges is not SORT_RANGES else ()
            dtypes = op.dtypes or scope.among(self.dtypes)
            for number, point in enumerate(shapes(op.ranges or self.ranges, self.points, known)):
                dims = point | ({turn: chosen[number % len(chosen)]} if turn else {})
                if point.get("rows", op.least_rows) < op.least_rows:
                    continue
                if "elements" in point:
                    dims["elements"] *= op.counted
                for (direction, variant), values in op.values.items():
                    held = op.held(dims) if op.held else values * prod(point.values())
                    for dtype in dtypes if scope.is_gpu or not op.only_gpu else ():
                        size = DTYPE_BYTES[dtype] * held
                        if size <= scope.max_bytes:
                            yield Case(name, dtype, {**dims}, direction, variant, size)

    def prepare(self, backend: Backend, case: Case) -> Prepared:
        return Prepared(self.ops[case.op].make(backend, case))


def _shape(case: Case, *dims: str) -> tuple[int, ...]:
    return tuple(case.dim(name) for name in dims or ("rows", "cols"))


def _elementwise(function: str, tensors: int, *more: float, **options: float) -> Op:
    """A function of torch that reads and writes so many tensors, the last of which is its result,
    and takes `more` behind them."""

    def made(backend: Backend, case: Case) -> Callable[[], Any]:
        count = max(tensors - 1, 1)
        operands = [random(backend, _shape(case), case.dtype) for _ in range(count)]
        return partial(attrgetter(function)(backend.torch), *operands, *more, **options)

    return Op(made, {FORWARD: tensors})


ELEMENTWISE = {
    "add": _elementwise("add", 3),
    "add_scalar": _elementwise("add", 2, 1.5),
    "mul": _elementwise("mul", 3),
    "mul_scalar": _elementwise("mul", 2, 1.5),
    "div": _elementwise("div", 3),
    "pow_scalar": _elementwise("pow", 2, 2.5),
    "add_inplace": _elementwise("Tensor.add_", 3, alpha=0.0),
    "fill": _elementwise("Tensor.fill_", 1, 0.5),
    "relu": _elementwise("relu", 2),
    "gelu": _elementwise("nn.functional.gelu", 2),
    "tanh": _elementwise("tanh", 2),
    "sigmoid": _elementwise("sigmoid", 2),
    "sigmoid_backward": _elementwise("ops.aten.sigmoid_backward", 3),
    "threshold_backward": _elementwise("ops.aten.threshold_backward", 3, 0),
}


def _reduction(function: Callable[[Any, Any], Any], *, trained: bool = False) -> Op:
    """Over the rows or the columns of a matrix; with its gradient where it is `trained`."""

    def made(backend: Backend, case: Case) -> Callable[[], Any]:
        values = random(backend, _shape(case), case.dtype)
        if case.direction == "fwd":
            return lambda: function(backend.torch, values)
        output = function(backend.torch, values.requires_grad_())
        gradient, grad = backend.torch.randn_like(output), backend.torch.autograd.grad
        return lambda: grad(output, [values], gradient, retain_graph=True)

    return Op(made, {FORWARD: 2} | ({("bwd", ""): 4} if trained else {}), least_rows=2)


REDUCTIONS = {
    "sum": _reduction(lambda torch, x: torch.sum(x, dim=1)),
    "sum_rows": _reduction(lambda torch, x: torch.sum(x, dim=0)),
    "mean": _reduction(lambda torch, x: torch.mean(x, dim=1)),
    "amax": _reduction(lambda torch, x: torch.amax(x, dim=1)),
    "softmax": _reduction(lambda torch, x: torch.softmax(x, dim=1), trained=True),
    "layer_norm": _reduction(
        lambda torch, x: torch.nn.functional.layer_norm(x, x.shape[1:]), trained=True
    ),
    "batch_norm": _reduction(
        lambda torch, x: torch.nn.functional.batch_norm(x, None, None, training=True), trained=True
    ),
}


OPTIMIZER_VARIANTS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def _optimizer(name: str, states: int) -> Op:
    """A step of `torch.optim`'s `name`, whose state tensors exist already; a variant that this
    PyTorch lacks is skipped when it is made."""

    def made(backend: Backend, case: Case) -> Callable[[], Any]:
        shape, parameters = _shape(case, "elements"), []
        for _ in range(case.dim("tensors")):
            parameter = random(backend, shape, case.dtype).requires_grad_()
            parameter.grad = random(backend, shape, case.dtype)
            parameters.append(parameter)
        variant = OPTIMIZER_VARIANTS[case.variant]
        optimizer = getattr(backend.torch.optim, name)(parameters, lr=1e-6, **variant)
        optimizer.step()
        return optimizer.step  # type: ignore[no-any-return]

    return Op(made, {("update", variant): 2.0 + states for variant in OPTIMIZER_VARIANTS})


OPTIMIZERS = {
    f"optimizer_{name.lower()}": _optimizer(name, states)
    for name, states in {"SGD": 0, "Adagrad": 1, "Adam": 2, "AdamW": 2}.items()
}


def _copy(backend: Backend, case: Case) -> Callable[[], Any]:
    """`copy_` between two tensors that exist already, on the device or from and to its host."""
    shape = (case.dim("elements") // (2 if case.op == "copy" else 1),)
    device = random(backend, shape, case.dtype)
    if case.op == "copy":
        return partial(random(backend, shape, case.dtype).copy_, device)
    is_pinned = case.variant == "pinned"
    host = backend.torch.randn(shape)
    host = host.pin_memory() if is_pinned else host
    source, target = (host, device) if case.op == "copy_h2d" else (device, host)
    return partial(target.copy_, source, non_blocking=is_pinned)


_TRANSFER = {("fwd", variant): 2.0 for variant in ("pinned", "pageable")}
COPIES = {
    "copy": Op(_copy, counted=2),
    "copy_h2d": Op(_copy, _TRANSFER, only_gpu=True),
    "copy_d2h": Op(_copy, _TRANSFER, only_gpu=True),
}


CAT_RANGES = {"rows": (1, 100_000), "cols": (1, 4_096)}
ROW_RANGES = {"rows": (1, 4_000_000), "cols": (1, 1_024)}
SORT_RANGES = {"rows": (1, 64), "cols": (16, 20_000_000)}
TABLE_ROWS = (1_000, 100_000, 10_000_000)


def _joined(backend: Backend, case: Case) -> Callable[[], Any]:
    parts = [random(backend, _shape(case), case.dtype) for _ in range(case.dim("tensors"))]
    return partial(backend.torch.cat, parts, dim=1)


def _table_rows(backend: Backend, case: Case) -> Callable[[], Any]:
    """Rows read from, or added to, random places of a table."""
    torch, rows = backend.torch, case.dim("rows")
    table = random(backend, _shape(case, "hash_size", "cols"), case.dtype)
    index = torch.randint(0, case.dim("hash_size"), (rows,), device=backend.device)
    if case.op == "index_select":
        return partial(torch.index_select, table, 0, index)
    return partial(
        table.index_add_, 0, index, random(backend, _shape(case), case.dtype), alpha=1e-6
    )


def _within_rows(backend: Backend, case: Case) -> Callable[[], Any]:
    """Within each row, values read from or added at random places."""
    torch, shape = backend.torch, _shape(case)
    places = torch.randint(0, shape[1], shape, device=backend.device)
    values = random(backend, shape, case.dtype)
    if case.op == "gather":
        return partial(torch.gather, values, 1, places)
    return partial(torch.zeros_like(values).scatter_add_, 1, places, values)


def _transpose_copy(backend: Backend, case: Case) -> Callable[[], Any]:
    return partial(random(backend, _shape(case), case.dtype).t().contiguous)


def _order(backend: Backend, case: Case) -> Callable[[], Any]:
    """Keys of each row sorted, or the distinct ones of all."""
    torch = backend.torch
    keys = torch.randint(0, 1_000_000, _shape(case), device=backend.device)
    flat = keys.flatten()
    return partial(torch.sort, keys, dim=1) if case.op == "sort" else partial(torch.unique, flat)


_MOVED = {FORWARD: 4.0}
_OF_TABLE = partial(
    Op,
    _table_rows,
    ranges=ROW_RANGES,
    turns=("hash_size", TABLE_ROWS),
    held=lambda dims: dims["cols"] * (4 * dims["rows"] + dims["hash_size"]),
)
MOVEMENTS = {
    "cat": Op(
        _joined,
        turns=("tensors", (2, 9, 27)),
        held=lambda dims: 2 * dims["tensors"] * dims["rows"] * dims["cols"],
    ),
    "index_select": _OF_TABLE(),
    "index_add": _OF_TABLE(),
    "gather": Op(_within_rows, _MOVED),
    "scatter_add": Op(_within_rows, _MOVED),
    "transpose_copy": Op(_transpose_copy, _MOVED),
    "sort": Op(_order, _MOVED, ranges=SORT_RANGES, dtypes=("int64",)),
    "unique": Op(_order, _MOVED, ranges=SORT_RANGES, dtypes=("int64",)),
}


FLOATS = ("fp32", "bf16", "fp16")
DLRM_LAYERS = ((2048, 1024), (512, 512), (4096, 128), (2048, 1))
DLRM_NORMS = ((2048, 1024), (512, 512), (8192, 768), (16_384, 64))
DLRM_ROWS = ((2048, 128), (81_920, 64), (4096, 351))
DLRM_PARAMETERS = ((16, 500_000), (12, 100_000), (148, 600_000))
COPIED = ((2048 * 512,), (2048 * 8 * 100,), (4096 * 13,), (1,))
FAMILIES_OF_OPS = {
    "elementwise": Ops(
        ELEMENTWISE, 150, {"rows": (1, 1_000_000), "cols": (1, 16_384)}, DLRM_LAYERS, FLOATS
    ),
    "reduction": Ops(
        REDUCTIONS, 150, {"rows": (1, 200_000), "cols": (8, 16_384)}, DLRM_NORMS, FLOATS
    ),
    "optimizers": Ops(
        OPTIMIZERS, 60, {"tensors": (1, 200), "elements": (16, 50_000_000)}, DLRM_PARAMETERS
    ),
    "copies": Ops(COPIES, 80, {"elements": (1, 200_000_000)}, COPIED),
    "movement": Ops(MOVEMENTS, 120, CAT_RANGES, DLRM_ROWS),
}
for _name, _ops in FAMILIES_OF_OPS.items():
    FAMILIES.register(_name)(Family(_ops.cases, _ops.prepare))
