"""Embedding bags: pooled lookups, backward and update, with controlled reuse; hit rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.models.configuration import histogram_indices, parse_histogram, zipf_indices

POINTS = 400
OP = "embedding_bag"
RANGES = {
    "hash_size": (100, 40_000_000),
    "batch": (64, 16_384),
    "pooling": (1, 128),
    "dim": (4, 512),
}
DLRM_LIKE = (
    *((1_000_000, 2048, 100, 64), (80_000, 2048, 10, 128), (40_000_000, 2048, 1, 128)),
    *((1_000_000, 512, 100, 64), (100_000, 512, 20, 64), (1_000_000, 4096, 1, 128)),
)
ZIPF_ALPHAS = (0.0, 0.8, 1.05, 1.4)
DIM_MULTIPLE = 4
TABLES_SHARE = 4
"""Tables may be larger than other operands: what matters is whether they fit into caches."""
CPU_RANGES = {**RANGES, "hash_size": (300, 4_000_000), "batch": (32, 4_096), "pooling": (1, 100)}
KINDS = (
    ("fwd", ""),
    ("bwd", "sparse"),
    ("bwd", "dense"),
    ("update", "sparse"),
    ("update", "index_add"),
)
"""Direction and variant: a `sparse` backward makes a sparse gradient, a `dense` one fills a
gradient of the table's size; `update` applies SGD, from the sparse gradient or row by row."""


def embedding_cases(scope: Scope) -> Iterator[Case]:
    """Points that fill the ranges; on a GPU first DLRM-like tables, every skew for each."""
    reuses: list[dict[str, float | str]] = [{"zipf_alpha": alpha} for alpha in ZIPF_ALPHAS]
    reuses += [{"histogram": histogram} for histogram in scope.histograms]
    if scope.is_gpu:
        for dims in shapes(RANGES, 0, DLRM_LIKE):
            for reuse in reuses:
                yield from _cases_of(dims, reuse, scope)
    ranges = RANGES if scope.is_gpu else CPU_RANGES
    for number, dims in enumerate(shapes(ranges, POINTS)):
        dims["dim"] = max(1, round(dims["dim"] / DIM_MULTIPLE)) * DIM_MULTIPLE
        yield from _cases_of(dims, reuses[number % len(reuses)], scope)


def _cases_of(dims: dict[str, int], reuse: dict[str, float | str], scope: Scope) -> Iterator[Case]:
    """The kinds of one shape whose tables and gradients fit."""
    item = DTYPE_BYTES["fp32"]
    table = item * dims["hash_size"] * dims["dim"]
    looked_up = item * dims["batch"] * dims["pooling"] * dims["dim"]
    limit = scope.max_bytes * TABLES_SHARE
    for direction, variant in KINDS:
        size = table * (2 if variant == "dense" else 1) + looked_up * (direction != "fwd") * 2
        if size <= limit:
            yield Case(OP, "fp32", {**dims, **reuse}, direction, variant, size)


def _forward(backend: Backend, case: Case, weight: Any, indices: Any) -> Callable[[], Any]:
    bag = backend.torch.nn.functional.embedding_bag
    flat, pooling = indices.reshape(-1), case.dim("pooling")
    offsets = backend.torch.arange(0, len(flat), pooling, device=flat.device)
    return lambda: bag(flat, weight, offsets, mode="sum")


def _backward(backend: Backend, case: Case, weight: Any, indices: Any) -> Callable[[], Any]:
    weight.requires_grad_()
    bag, grad = backend.torch.nn.functional.embedding_bag, backend.torch.autograd.grad
    pooled = bag(indices, weight, mode="sum", sparse=case.variant == "sparse")
    gradient = backend.torch.randn_like(pooled)
    return lambda: grad(pooled, [weight], gradient, retain_graph=True)


def _update_sparse(backend: Backend, case: Case, weight: Any, indices: Any) -> Callable[[], Any]:
    (gradient,) = _backward(backend, case, weight, indices)()
    weight.grad = gradient
    optimizer = backend.torch.optim.SGD([weight], lr=1e-6, foreach=False)
    return lambda: optimizer.step()


def _update_rows(backend: Backend, case: Case, weight: Any, indices: Any) -> Callable[[], Any]:
    pooled = random(backend, (case.dim("batch"), case.dim("dim")), case.dtype)
    flat, pooling = indices.reshape(-1), case.dim("pooling")
    return lambda: weight.index_add_(0, flat, pooled.repeat_interleave(pooling, dim=0), alpha=-1e-6)


RUNNERS = {
    ("fwd", ""): _forward,
    ("bwd", "sparse"): _backward,
    ("bwd", "dense"): _backward,
    ("update", "sparse"): _update_sparse,
    ("update", "index_add"): _update_rows,
}


@lru_cache(maxsize=4)
def _draw(rows: int, count: int, alpha: float, histogram: str) -> tuple[NDArray[np.int64], int]:
    """Row numbers and how many distinct ones there are; the kinds of one shape share them."""
    generator = np.random.default_rng(0)
    if histogram:
        drawn = histogram_indices(generator, rows, count, parse_histogram(histogram))
    else:
        drawn = zipf_indices(generator, rows, count, alpha)
    return drawn, len(np.unique(drawn))


def prepare_embedding(backend: Backend, case: Case) -> Prepared:
    """The lookup, backward or update of `case`, with the number of distinct rows it touches."""
    rows, batch, pooling = case.dim("hash_size"), case.dim("batch"), case.dim("pooling")
    alpha, histogram = float(case.dims.get("zipf_alpha", 0)), str(case.dims.get("histogram", ""))
    drawn, unique_rows = _draw(rows, batch * pooling, alpha, histogram)
    indices = backend.torch.from_numpy(drawn.reshape(batch, pooling)).to(backend.device)
    weight = random(backend, (rows, case.dim("dim")), case.dtype)
    run = RUNNERS[case.direction, case.variant](backend, case, weight, indices)
    return Prepared(run, {"unique_rows": unique_rows})


FAMILIES.register("embedding")(Family(embedding_cases, prepare_embedding))


HIT_RATE_ZIPF_ALPHAS = (0.0, 1.05, 0.6, 1.4, 0.9, 1.2, 0.3)
HIT_RATE_TABLE_BYTES = (*(2e9, 16e6, 64e6, 256e6, 4e6, 1e6, 8e9, 32e6, 128e6, 1e9),)
"""From within the first-level caches to far beyond the last, the informative ends first."""
HIT_RATE_DIMS = (128, 32, 64, 256)
HIT_RATE_BATCHES = ((4096, 32), (1024, 8))


def hit_rate_cases(scope: Scope) -> Iterator[Case]:
    """Forward lookups over every table size and skew."""
    for dim in HIT_RATE_DIMS:
        for batch, pooling in HIT_RATE_BATCHES:
            for size in HIT_RATE_TABLE_BYTES:
                if size > scope.max_bytes * TABLES_SHARE:
                    continue
                rows = int(size / (DTYPE_BYTES["fp32"] * dim))
                for alpha in HIT_RATE_ZIPF_ALPHAS:
                    dims: dict[str, float | str] = {
                        "hash_size": rows,
                        "batch": batch,
                        "pooling": pooling,
                        "dim": dim,
                        "zipf_alpha": alpha,
                    }
                    yield Case(OP, "fp32", dims, size_bytes=size)


FAMILIES.register("hit-rate")(Family(hit_rate_cases, prepare_embedding))
