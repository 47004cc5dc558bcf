"""`nn.EmbeddingBag`, rows outside the device, and FBGEMM's cache over tables in host memory.

`tier::OP` is the op `OP` of the vocabulary; its dims are attributes of the same names, beside
`dtype` and `direction`. `stream` names the resource that does it. `kind` is `offload` unless the
attribute says `kernel` (the device reads the rows over its bus); `blocks` makes the host wait.

The attributes `lookups unique_rows missed_rows row_bytes sets ways` tell what a batch asks of
it; without them, work per index. Source: fbgemm_gpu/src/split_embeddings_cache of FBGEMM: unique
indices by a radix sort, each looked for in the places of its set by one warp, those that miss
sorted by set, then a warp per set writes the row that leaves and reads the one that comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import expm1, prod
from typing import cast

from perfmodel.lowering.arguments import (
    REUSE,
    fill_of,
    length,
    matrix,
    numbers,
    tensor,
    tensors,
    told,
)
from perfmodel.lowering.piece import LEAF, TIER, WHOLE, Kind, MissingArguments, Piece, rule
from perfmodel.lowering.rules.fbgemm import over_segments
from perfmodel.lowering.rules.indexing import gathered, scan, sorted_rows
from perfmodel.lowering.rules.vector import named
from perfmodel.ops.graph import Op, Tensor, argument, integer
from perfmodel.ops.lookups import SPARSE

_SPARSE = 9
"""Which argument of `_embedding_bag_backward` asks for a sparse gradient."""
RUN_LAUNCHES = 6
"""Kernels that find runs of equal indices and add up their gradients, behind a sort."""


def bag(table: Tensor, lookups: int, bags: int, op: Op) -> Piece:
    """`lookups` rows in `bags` bags; reuse as far as the op's attributes tell it."""
    rows, dim = matrix(table)
    if not bags:
        raise MissingArguments
    dims = {
        "hash_size": float(rows),
        "dim": float(dim),
        "batch": float(bags),
        "pooling": lookups / bags,
    }
    if dims["pooling"] < 1:
        dims |= {"batch": float(lookups), "pooling": 1.0}
    dims |= numbers(op, *REUSE)
    return Piece("embedding_bag", dims, table.dtype)


@rule("_embedding_bag _embedding_bag_forward_only")
@rule("_embedding_bag _embedding_bag_forward_only", target="cpu", scope=WHOLE)
@rule("embedding_bag", scope=LEAF)
def embedding_bag(op: Op) -> Sequence[Piece]:
    """`_embedding_bag(weight, indices, offsets, …)`."""
    table, indices, offsets = tensor(op, 0), tensor(op, 1), tensor(op, 2)
    lookups, bags = indices.elements, offsets.elements
    return (bag(table, lookups, bags, op),) if lookups and bags else ()


_GPUS = "cuda rocm"


@rule("_embedding_bag_dense_backward", scope=WHOLE)
@rule("_embedding_bag_backward", target="cpu", scope=WHOLE)
def whole_backward(op: Op) -> Sequence[Piece]:
    """`_embedding_bag_dense_backward(gradient, indices, offset2bag, …, num_weights, …)`; on a CPU
    `_embedding_bag_backward(gradient, indices, …, num_weights, scaled, mode, sparse, …)`: a row of
    gradient per lookup, or (not `sparse`) a whole table.
    """
    gradient, lookups, rows, guessed = _dense(op)
    if not lookups or not prod(gradient.shape[:1]) or not gradient.shape:
        return ()
    piece = bag(Tensor((rows, gradient.shape[-1]), gradient.dtype), lookups, gradient.shape[0], op)
    is_dense = "dense" in op.name or argument(op, _SPARSE) is False
    dims = {**piece.dims, **({"dense": 1.0} if is_dense else {})}
    return (replace(piece, dims=dims, direction="bwd", guessed=guessed),)


def _dense(op: Op) -> tuple[Tensor, int, int, bool]:
    """(gradient, lookups, rows of the table, whether they are a guess)."""
    lookups = prod(tensor(op, 1).shape)
    counts = (integer(op, at) for at in range(2, len(op.inputs)))
    rows = next((count for count in counts if count is not None), None)
    return tensor(op, 0), lookups, lookups if rows is None else rows, rows is None


def _sorted_gradient(op: Op) -> Sequence[Piece]:
    """Zeros for the table, the indices sorted by all of their bits, rows that are equal added up.

    Source: aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu.
    """
    gradient, lookups, rows, guessed = _dense(op)
    dim = length(gradient, -1)
    if not lookups or not dim:
        return ()
    dims = {"rows": float(lookups), "cols": float(dim), "hash_size": float(rows)}
    return (
        *fill_of(Tensor((rows, dim), gradient.dtype)),
        *sorted_rows(1, lookups, "int64"),
        Piece("embedding", dims, gradient.dtype, "bwd", launches=RUN_LAUNCHES, guessed=guessed),
    )


@rule("_embedding_bag_backward", scope=LEAF)
@rule("_embedding_bag_backward", target=_GPUS, scope=LEAF)
@rule("_embedding_bag_dense_backward embedding_dense_backward", target=_GPUS, scope=WHOLE)
def bag_backward(op: Op) -> Sequence[Piece]:
    """`_embedding_bag_backward(gradient, indices, …, num_weights, scaled, mode, sparse, …)`: of a
    sparse gradient a row per lookup, picked from the bags' gradients; of a dense one by a sort."""
    is_sparse = op.name == "aten::_embedding_bag_backward" and argument(op, _SPARSE) is True
    if not is_sparse:
        return _sorted_gradient(op)
    gradient, indices = tensor(op, 0), tensor(op, 1)
    return gathered("index_select", gradient, indices.elements, length(gradient, -1))


@rule("embedding_dense_backward", scope=WHOLE)
def embedding_dense_backward(op: Op) -> Sequence[Piece]:
    """Zeros for the table, then the rows added."""
    pieces = _sorted_gradient(op)
    return (pieces[0], replace(pieces[-1], launches=1)) if pieces else ()


@rule("add_", target="cpu", scope=WHOLE)
def update_on_cpu(op: Op) -> Sequence[Piece]:
    """`add_(table, gradient)` with a sparse gradient; any other is elementwise."""
    tensors = op.tensors
    if len(tensors) < 2 or tensors[1].layout != SPARSE:
        return named(op)
    if op.attributes.get("tables", "1") != "1" or "lookups" not in op.attributes:
        raise MissingArguments
    lookups = round(float(op.attributes["lookups"]))
    return (replace(bag(tensors[0], lookups, lookups, op), direction="update"),) if lookups else ()


@rule(f"{TIER}*")
def off_device(op: Op) -> Sequence[Piece]:
    name, about = op.name.removeprefix(TIER), op.attributes
    return (
        Piece(
            name,
            told(op, name),
            about.get("dtype", "fp32"),
            about.get("direction", "fwd"),
            kind=cast(Kind, about.get("kind", "offload")),
            blocks=about.get("blocks") == "1",
        ),
    )


FP32_BYTES = 4.0
USE = ("lookups", "unique_rows", "missed_rows", "row_bytes", "sets", "ways")


@rule("fbgemm::linearize_cache_indices fbgemm::lxu_cache_lookup fbgemm::l*u_cache_populate*")
def cache(op: Op) -> Sequence[Piece]:
    """Numbers of rows in all tables together, where a thread adds the start of its table to an
    index; each of them in the places of its set; rows that miss, which are brought while as many go
    back, over a bus that does both."""
    held = [t for t in op.tensors if t.dtype in ("int64", "int32")] or list(tensors(op, 1))
    use, indices = numbers(op, *USE), max(held, key=lambda t: t.elements)
    if op.name.endswith("linearize_cache_indices"):
        dims = {"rows": 1.0, "cols": float(indices.elements)}
        return (Piece("add_scalar", dims, indices.dtype),)
    if len(use) < len(USE):
        return over_segments("bounds_check", indices, indices.elements)
    if op.name.endswith("lxu_cache_lookup"):
        return (_sets(use["lookups"], use),)
    count, unique = round(use["lookups"]), max(round(use["unique_rows"]), 1)
    moved = max(use["missed_rows"] * use["row_bytes"] / FP32_BYTES, 1.0)
    brought = Piece("copy_h2d", {"elements": moved, "pinned": 1.0})
    return (
        *sorted_rows(1, count, "int64", pairs=False),
        *scan(count, "int64", "run_length_encode"),
        _sets(float(unique), use),
        *sorted_rows(1, unique, "int32"),
        *(brought,) * (use["missed_rows"] > 0),
    )


KEY_BYTES, PLACE_BYTES = 8.0, 4.0


def _sets(indices: float, use: dict[str, float]) -> Piece:
    """The keys of its set for each of the `indices`, a lane each: as a lookup reads a row of so
    many bytes; of each only a place is written."""
    ways, sets = use["ways"], use["sets"]
    elements = ways * KEY_BYTES / FP32_BYTES
    dims = {
        "tables": 1.0,
        "batch": max(indices / ways, 1.0),
        "lookups": indices,
        "dim": elements,
        "hash_size": sets,
        "output_bytes": PLACE_BYTES * ways / elements,
        "unique_rows": max(-sets * expm1(-use["unique_rows"] / sets), 1.0),
    }
    return Piece("cache_lookup", dims)
