"""FBGEMM's cache of rows in device memory over tables in host memory (UVM caching).

The attributes `lookups unique_rows missed_rows row_bytes sets ways` tell what a batch asks of
it; without them, work per index. Source: fbgemm_gpu/src/split_embeddings_cache of FBGEMM: unique
indices by a radix sort, each looked for in the places of its set by one warp, those that miss
sorted by set, then a warp per set writes the row that leaves and reads the one that comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import numbers, size
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece, Untold
from perfmodel.lowering.rules.jagged import over_segments
from perfmodel.lowering.rules.sort import scan, sorted_rows

FP32_BYTES = 4.0
USE = ("lookups", "unique_rows", "missed_rows", "row_bytes", "sets", "ways")


def _indices(op: Op) -> Tensor:
    found = [t for t in op.tensors if t.dtype in ("int64", "int32")] or op.tensors
    if not found:
        raise Untold
    return max(found, key=lambda t: size(t.shape))


@LOWERINGS.register(*entries("fbgemm::linearize_cache_indices"))
def linearize(op: Op) -> Sequence[Piece]:
    """Numbers of rows in all tables together."""
    indices = _indices(op)
    return over_segments("bounds_check", indices, size(indices.shape))


@LOWERINGS.register(*entries("fbgemm::lxu_cache_lookup"))
def cache_lookup(op: Op) -> Sequence[Piece]:
    """Each index, in the places of its set."""
    use, indices = numbers(op, *USE), _indices(op)
    if len(use) < len(USE):
        return over_segments("bounds_check", indices, size(indices.shape))
    return (_sets(use["lookups"], use),)


@LOWERINGS.register(*entries("fbgemm::l*u_cache_populate*"))
def cache_populate(op: Op) -> Sequence[Piece]:
    """Rows that miss are brought; as many go back beside them, over a bus that does both."""
    use, indices = numbers(op, *USE), _indices(op)
    if len(use) < len(USE):
        return over_segments("bounds_check", indices, size(indices.shape))
    count, unique = round(use["lookups"]), max(round(use["unique_rows"]), 1)
    pieces = [
        *sorted_rows(1, count, "int64", pairs=False),
        *scan(count, "int64", "run_length_encode"),
        _sets(float(unique), use),
        *sorted_rows(1, unique, "int32"),
    ]
    if use["missed_rows"] > 0:
        moved = max(use["missed_rows"] * use["row_bytes"] / FP32_BYTES, 1.0)
        pieces.append(Piece("copy_h2d", {"elements": moved, "pinned": 1.0}))
    return pieces


def _sets(rows: float, use: dict[str, float]) -> Piece:
    """The keys of one set for each of `rows` indices."""
    dims = {"rows": rows, "cols": use["ways"], "hash_size": use["sets"]}
    return Piece("index_select", dims, "int64")
