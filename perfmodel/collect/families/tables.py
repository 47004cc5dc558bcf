"""Memory-bound kernels: as tables of ops elementwise, reductions, optimizer steps, copies, moved
rows; and embedding bags: pooled lookups, backward and update, with controlled reuse.

`elements` of a `copy` are the values that it moves, read and written: twice those it copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.models.dlrm import zipf_indices

Ranges = dict[str, tuple[int, int]]
FORWARD = ("fwd", "")


@dataclass(frozen=True)
class Op:
    """An op of a family: what makes its call, and how many values that holds."""

    make: Callable[[Backend, Case], Callable[[], Any]]
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


def _moved(backend: Backend, case: Case) -> Callable[[], Any]:
    """Matrices side by side, one transposed, or within each row, values read from or added at
    random places."""
    torch, shape = backend.torch, _shape(case)
    if case.op == "cat":
        parts = [random(backend, shape, case.dtype) for _ in range(case.dim("tensors"))]
        return partial(torch.cat, parts, dim=1)
    values = random(backend, shape, case.dtype)
    if case.op == "transpose_copy":
        return partial(values.t().contiguous)
    places = torch.randint(0, shape[1], shape, device=backend.device)
    if case.op == "gather":
        return partial(torch.gather, values, 1, places)
    return partial(torch.zeros_like(values).scatter_add_, 1, places, values)


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
        _moved,
        turns=("tensors", (2, 9, 27)),
        held=lambda dims: 2 * dims["tensors"] * dims["rows"] * dims["cols"],
    ),
    "index_select": _OF_TABLE(),
    "index_add": _OF_TABLE(),
    "gather": Op(_moved, _MOVED),
    "scatter_add": Op(_moved, _MOVED),
    "transpose_copy": Op(_moved, _MOVED),
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


BAG_POINTS = 400
BAG_RANGES = {
    "hash_size": (100, 40_000_000),
    "batch": (64, 16_384),
    "pooling": (1, 128),
    "dim": (4, 512),
}
DLRM_BAGS = (
    *((1_000_000, 2048, 100, 64), (80_000, 2048, 10, 128), (40_000_000, 2048, 1, 128)),
    *((1_000_000, 512, 100, 64), (100_000, 512, 20, 64), (1_000_000, 4096, 1, 128)),
)
ZIPF_ALPHAS = (0.0, 0.8, 1.05, 1.4)
DIM_MULTIPLE = 4
TABLES_SHARE = 4
"""Tables may be larger than other operands: what matters is whether they fit into caches."""
BAG_KINDS = (
    ("fwd", ""),
    ("bwd", "sparse"),
    ("bwd", "dense"),
    ("update", "sparse"),
    ("update", "index_add"),
)
"""Direction and variant: a `sparse` backward makes a sparse gradient, a `dense` one fills a
gradient of the table's size; `update` applies SGD, from the sparse gradient or row by row."""


def embedding_cases(scope: Scope) -> Iterator[Case]:
    """DLRM-like tables, every skew for each, then points that fill the ranges. Of every shape, the
    kinds whose tables and gradients fit."""
    listed = [(dims, alpha) for dims in shapes(BAG_RANGES, 0, DLRM_BAGS) for alpha in ZIPF_ALPHAS]
    for number, dims in enumerate(shapes(BAG_RANGES, BAG_POINTS)):
        dims["dim"] = max(1, round(dims["dim"] / DIM_MULTIPLE)) * DIM_MULTIPLE
        listed.append((dims, ZIPF_ALPHAS[number % len(ZIPF_ALPHAS)]))
    item, limit = DTYPE_BYTES["fp32"], scope.max_bytes * TABLES_SHARE
    for dims, alpha in listed:
        table = item * dims["hash_size"] * dims["dim"]
        looked_up = item * dims["batch"] * dims["pooling"] * dims["dim"]
        for direction, variant in BAG_KINDS:
            size = table * (2 if variant == "dense" else 1) + looked_up * (direction != "fwd") * 2
            if size <= limit:
                skewed: dict[str, float | str] = {**dims, "zipf_alpha": alpha}
                yield Case("embedding_bag", "fp32", skewed, direction, variant, size)


@lru_cache(maxsize=4)
def _draw(rows: int, count: int, alpha: float) -> tuple[NDArray[np.int64], int]:
    """Row numbers and how many distinct ones there are; the kinds of one shape share them."""
    drawn = zipf_indices(np.random.default_rng(0), rows, count, alpha)
    return drawn, len(np.unique(drawn))


def prepare_embedding(backend: Backend, case: Case) -> Prepared:
    """The lookup, backward or update of `case`, with the number of distinct rows it touches."""
    torch, (rows, batch, pooling) = backend.torch, map(case.dim, ("hash_size", "batch", "pooling"))
    drawn, unique_rows = _draw(rows, batch * pooling, float(case.dims["zipf_alpha"]))
    indices = torch.from_numpy(drawn.reshape(batch, pooling)).to(backend.device)
    weight = random(backend, (rows, case.dim("dim")), case.dtype)
    bag, flat = torch.nn.functional.embedding_bag, indices.reshape(-1)

    def prepared(run: Callable[[], Any]) -> Prepared:
        return Prepared(run, {"unique_rows": unique_rows})

    if case.direction == "fwd":
        offsets = torch.arange(0, len(flat), pooling, device=flat.device)
        return prepared(lambda: bag(flat, weight, offsets, mode="sum"))
    if case.variant == "index_add":
        added = random(backend, (batch, case.dim("dim")), case.dtype)
        each = added.repeat_interleave
        return prepared(lambda: weight.index_add_(0, flat, each(pooling, dim=0), alpha=-1e-6))
    pooled = bag(indices, weight.requires_grad_(), mode="sum", sparse=case.variant == "sparse")
    gradient = torch.randn_like(pooled)

    def backward() -> Any:
        return torch.autograd.grad(pooled, [weight], gradient, retain_graph=True)

    if case.direction == "bwd":
        return prepared(backward)
    (weight.grad,) = backward()
    optimizer = torch.optim.SGD([weight], lr=1e-6, foreach=False)
    return prepared(lambda: optimizer.step())


FAMILIES.register("embedding")(Family(embedding_cases, prepare_embedding))
