"""Lookups whose skew and table size sweep through the caches: hit rates seen as bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.collect.families import DTYPE_BYTES, FAMILIES, Case, Family, Scope
from perfmodel.collect.families.embedding import OP, TABLES_SHARE, prepare_embedding

ZIPF_ALPHAS = (0.0, 1.05, 0.6, 1.4, 0.9, 1.2, 0.3)
TABLE_BYTES = (*(2e9, 16e6, 64e6, 256e6, 4e6, 1e6, 8e9, 32e6, 128e6, 1e9),)
"""From within the first-level caches to far beyond the last, the informative ends first."""
DIMS = (128, 32, 64, 256)
BATCHES = ((4096, 32), (1024, 8))


def hit_rate_cases(scope: Scope) -> Iterator[Case]:
    """Forward lookups over every table size and skew."""
    for dim in DIMS:
        for batch, pooling in BATCHES:
            for size in TABLE_BYTES:
                if size > scope.max_bytes * TABLES_SHARE:
                    continue
                rows = int(size / (DTYPE_BYTES["fp32"] * dim))
                for alpha in ZIPF_ALPHAS:
                    dims: dict[str, float | str] = {
                        "hash_size": rows,
                        "batch": batch,
                        "pooling": pooling,
                        "dim": dim,
                        "zipf_alpha": alpha,
                    }
                    yield Case(OP, "fp32", dims, size_bytes=size)


FAMILIES.register("hit-rate")(Family(hit_rate_cases, prepare_embedding))
