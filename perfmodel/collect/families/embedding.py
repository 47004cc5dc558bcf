"""Embedding bags: pooled lookups, backward and update, with controlled reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Prepared, Scope, shapes
from perfmodel.collect.families import random_tensor as random
from perfmodel.collect.models.dlrm import zipf_indices

POINTS = 400
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
    """DLRM-like tables, every skew for each, then points that fill the ranges.

    Of every shape, the kinds whose tables and gradients fit.
    """
    listed = [(dims, alpha) for dims in shapes(RANGES, 0, DLRM_LIKE) for alpha in ZIPF_ALPHAS]
    for number, dims in enumerate(shapes(RANGES, POINTS)):
        dims["dim"] = max(1, round(dims["dim"] / DIM_MULTIPLE)) * DIM_MULTIPLE
        listed.append((dims, ZIPF_ALPHAS[number % len(ZIPF_ALPHAS)]))
    item, limit = DTYPE_BYTES["fp32"], scope.max_bytes * TABLES_SHARE
    for dims, alpha in listed:
        table = item * dims["hash_size"] * dims["dim"]
        looked_up = item * dims["batch"] * dims["pooling"] * dims["dim"]
        for direction, variant in KINDS:
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
