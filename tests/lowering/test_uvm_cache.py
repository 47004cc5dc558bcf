"""FBGEMM's cache of rows, lowered."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.lowering.rules.embedding import cache
from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.spec import OPS

USE = {
    "lookups": "1000.0",
    "unique_rows": "400.0",
    "missed_rows": "100.0",
    "row_bytes": "512.0",
    "sets": "10.0",
    "ways": "32.0",
}


def op(name: str, about: dict[str, str]) -> Op:
    keys = Tensor((1000,), "int64", 1, 2, "cuda:0", "", (1,))
    state = Tensor((50_000, 2), "int64", 3, 4, "cuda:0", "", (2, 1))
    return Op(name, (keys, state), (), -1, "main", "forward", 0, -1, about)


def test_rows_that_miss_come_over_the_bus() -> None:
    pieces = cache(op("fbgemm::lru_cache_populate", USE))
    moved = [piece for piece in pieces if piece.op == "copy_h2d"]
    assert [piece.dims["elements"] for piece in moved] == [100 * 512 / 4]
    looked = next(piece for piece in pieces if piece.op == "cache_lookup")
    assert (looked.dims["lookups"], looked.dims["hash_size"]) == (400.0, 10.0)
    sorts = [piece.dims["cols"] for piece in pieces if piece.op.startswith("sort")]
    assert sorts == [1000.0, 400.0]


def test_nothing_comes_where_nothing_misses() -> None:
    pieces = cache(op("fbgemm::lru_cache_populate", USE | {"missed_rows": "0.0"}))
    assert all(piece.op != "copy_h2d" for piece in pieces)


def test_each_lookup_reads_the_places_of_its_set() -> None:
    """32 keys of 8 bytes beside its own and an offset per warp; of each a place of 4 is written."""
    (piece,) = cache(op("fbgemm::lxu_cache_lookup", USE))
    dims = {name: np.array([value]) for name, value in piece.dims.items()}
    spec, four = OPS[piece.op], np.full(1, 4.0)
    dims = {name: np.full(1, value) for name, value in spec.defaults.items()} | dims
    assert spec.read_bytes(dims, four) == pytest.approx(1000 * (32 * 8 + 8) + 8 * 1000 / 32)
    assert spec.written_bytes(dims, four) == pytest.approx(1000 * 4)


def test_calls_of_traces_that_tell_nothing_are_work_per_index() -> None:
    for name in ("lxu_cache_lookup", "lru_cache_populate"):
        (piece,) = cache(op(f"fbgemm::{name}", {}))
        assert piece.op == "bounds_check"
