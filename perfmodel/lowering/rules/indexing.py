"""Rows of tables, looked up and written: gathers, scatters, indexing; orders, prefix sums,
concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from perfmodel.lowering.arguments import (
    BY_ELEMENTS,
    WAITED,
    bytes_of,
    layout_dims,
    length,
    numbers,
    output,
    stored,
    tensor,
    tensors,
)
from perfmodel.lowering.piece import LEAF, MissingArguments, Piece, rule
from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in
from perfmodel.ops.vocabulary.streaming import BLOCK_KEYS, keys_of_block


def gathered(
    name: str, table: Tensor, rows: int, cols: int, *, by_elements: float = 0.0
) -> Sequence[Piece]:
    """`rows` rows of `cols` elements from or to a table."""
    if not rows * cols:
        return ()
    held = table.elements // max(cols, 1)
    dims = {"rows": float(rows), "cols": float(cols), "hash_size": float(held)}
    if by_elements:
        dims[BY_ELEMENTS] = by_elements
    return (Piece(name, dims, table.dtype),)


INDEX_TURNS, GATHER_TURNS = 4.0, 8.0
"""Elements that a thread looks up one after another, of `index` and of `gather`.

Source: aten/src/ATen/native/cuda/IndexKernel.cu and ScatterGatherKernel.cu (`thread_work_size`).
"""


def added(op: Op, rows: int, cols: int) -> Sequence[Piece]:
    """`rows` rows of `cols` elements added to the table that is the first argument of `op`."""
    pieces = gathered("index_add", tensor(op, 0), rows, cols)
    most = numbers(op, "most_repeated")
    return [replace(piece, dims={**piece.dims, **most}) for piece in pieces]


@rule("index_select embedding", scope=LEAF)
@rule("gather take take_along_dim masked_select_backward")
def looked_up(op: Op) -> Sequence[Piece]:
    """`index_select(table, dim, index)`, which today calls `gather`, and `embedding(table, index)`;
    the index may have any shape. `gather(table, dim, index)`: an element per index, or as many as
    it is expanded to.

    Rows are whole where no dimension is before them and their indices lie side by side (a column of
    ids does not; of more dimensions they are made to).
    """
    name, table, dim = op.name.removeprefix("aten::"), tensor(op, 0), integer(op, 1) or 0
    if name not in ("index_select", "embedding"):
        table, index = tensors(op, 2)
        rows, is_whole = stored(index), prod(table.shape[:dim]) == 1
        turns, cols = 0.0 if is_whole else GATHER_TURNS, index.elements // max(rows, 1)
        return gathered("gather", table, rows, cols, by_elements=turns)
    index, dim = (tensor(op, 1), 0) if name == "embedding" else (op.tensors[-1], dim)
    held = length(table, dim) if table.shape else 1
    longer = [s for n, s in zip(index.shape, index.strides, strict=False) if n > 1]
    is_whole = prod(table.shape[:dim]) == 1 and (len(longer) != 1 or longer == [1])
    cols, turns = table.elements // max(held, 1), 0.0 if is_whole else GATHER_TURNS
    return gathered(name, table, index.elements, cols, by_elements=turns)


@rule(
    "index_add_ index_add index_reduce_ index_reduce index_copy_ index_copy index_fill_ index_fill"
)
@rule("hugectr::add_rows")
def index_add(op: Op) -> Sequence[Piece]:
    """`index_add_(table, dim, index, source)`; HugeCTR's adds whole vectors at once (assumed)."""
    table, index = tensors(op, 2)
    source = op.tensors[2] if len(op.tensors) > 2 else index
    rows = index.elements
    cols = max(source.elements // max(rows, 1), 1)
    if "add" not in op.name and "reduce" not in op.name:
        return gathered("index_put", table, rows, cols)
    by_vectors = {"by_vectors": 1.0} if op.name.startswith("hugectr::") else {}
    return [replace(each, dims={**each.dims, **by_vectors}) for each in added(op, rows, cols)]


def _places_of(table: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, int, int]:
    """(index tuples, rows, cols) where a profile records the values that are put, not the indices:
    dimensions that values and table begin or end with alike are not indexed."""
    pairs = list(zip(table, values, strict=False))
    before = next((at for at, (held, put) in enumerate(pairs) if held != put), len(pairs))
    before = max(min(before, len(values) - 1, len(table) - 1), 0)
    behind = 0
    while behind < min(len(table), len(values)) - before - 1 and (
        table[-1 - behind] == values[-1 - behind]
    ):
        behind += 1
    tuples = prod(values[before : len(values) - behind])
    return tuples, tuples * prod(values[:before]), prod(values[len(values) - behind :])


def _indexed(op: Op) -> tuple[Tensor, int, int, int]:
    """(table, index tuples, rows, cols): a row of the dimensions behind those indexed, per index
    tuple and per place in the dimensions before them."""
    table = tensor(op, 0)
    places = argument(op, 1)
    if places is None and "put" in op.name:
        return (table, *_places_of(table.shape, op.tensors[-1].shape))
    indices = list(tensors_in(places)) or list(op.tensors[1:2])
    if not indices:
        raise MissingArguments
    tuples = max(i.elements for i in indices)
    skipped = 0
    if isinstance(places, tuple):
        skipped = next((at for at, item in enumerate(places) if isinstance(item, Tensor)), 0)
    values = next(iter(tensors_in(op.outputs)), None) if "put" not in op.name else op.tensors[-1]
    told = values.elements if values is not None and values not in indices else 0
    if not skipped and told > tuples * prod(table.shape[len(indices) :]):
        skipped = len(table.shape) - len(indices)
    before = prod(table.shape[:skipped])
    return table, tuples, tuples * before, prod(table.shape[skipped + len(indices) :])


@rule("index _unsafe_index")
def index(op: Op) -> Sequence[Piece]:
    """`index(table, indices)`; a mask would bring `nonzero` along as a call of its own.

    Behind other dimensions, elements are looked up one by one.
    Source: aten/src/ATen/native/cuda/IndexKernel.cu.
    """
    table, tuples, rows, cols = _indexed(op)
    turns = 0.0 if rows == tuples else INDEX_TURNS
    return gathered("gather", table, rows, cols, by_elements=turns)


@rule("_index_put_impl_")
@rule("index_put_ index_put masked_scatter_", scope=LEAF)
def index_put(op: Op) -> Sequence[Piece]:
    """`_index_put_impl_(table, indices, values, accumulate)`: accumulating sorts the indices first.

    Source: aten/src/ATen/native/cuda/Indexing.cu (index_put_with_sort_kernel).
    """
    table, tuples, rows, cols = _indexed(op)
    accumulates = argument(op, 3)
    if not rows * cols:
        return ()
    if accumulates is False:
        return gathered("index_put", table, rows, cols)
    return (
        *sorted_rows(1, tuples, "int64", key_bits=bits_of(table.elements // cols)),
        *gathered("index_put_accumulate", table, rows, cols),
    )


SET_UP = Piece("fill", {"rows": 1.0, "cols": 1.0}, "int32")
"""A kernel that does next to nothing before another."""
RADIX_BITS = 8
"""Of the key, by which one launch sorts (CUB)."""
ONESWEEP_FIXED = 2
"""Launches of a radix sort that do not depend on the key: histogram, sums of it."""


def sort_launches(cols: float, key_bits: float, of_block: float) -> int:
    """Kernels of one radix sort, of which a block does `of_block` keys by itself."""
    if cols <= of_block:
        return 1
    return ONESWEEP_FIXED + -int(-key_bits // RADIX_BITS)


def sorted_rows(
    rows: int, cols: int, dtype: str, *, key_bits: float = 0.0, pairs: bool = True
) -> Sequence[Piece]:
    if not rows * cols:
        return ()
    of_block = float(keys_of_block(bytes_of(dtype))) if pairs else BLOCK_KEYS
    launches = sort_launches(cols, key_bits or 8 * bytes_of(dtype), of_block)
    dims = {"rows": float(rows), "cols": float(cols), "key_bits": float(key_bits)}
    return (Piece("sort_pairs" if pairs else "sort", dims, dtype, launches=launches),)


def bits_of(places: int) -> int:
    """Bits in which the numbers of so many places differ, which is all that PyTorch sorts by."""
    return max(places, 1).bit_length()


def scan(elements: int, dtype: str, op: str = "cumsum") -> Sequence[Piece]:
    """A prefix sum by cub: one kernel sets up what the other waits on, block by block."""
    if not elements:
        return ()
    return (SET_UP, Piece(op, {"rows": 1.0, "cols": float(elements)}, dtype))


_SORTS, _LARGEST = "sort argsort msort", "topk kthvalue"


@rule(_SORTS, _LARGEST, "cumsum cumsum_ cumprod logcumsumexp cummax cummin")
def along(op: Op) -> Sequence[Piece]:
    """`sort(x, dim, …)`, `sort(x, stable, dim, …)`, `topk(x, k, dim, …)`, `cumsum(x, dim)`, which
    along one of several dimensions is one kernel, else two. Variants with an output given record
    the dimension oddly."""
    name = op.name.removeprefix("aten::")
    is_largest = name in _LARGEST.split()
    (values, *_), dim = tensors(op, 1), integers(op, 1 + is_largest)
    total = values.elements
    cols = length(values, dim[0] if dim else -1) if values.shape and total else total
    if not total:
        return ()
    rows = total // cols
    if name in _SORTS.split():
        return sorted_rows(rows, cols, values.dtype, pairs=False)
    dims = {"rows": float(rows), "cols": float(cols)}
    if is_largest:
        k = integer(op, 1)
        dims["k"] = float(max(k or 1, 1))
        return (Piece("topk", dims, values.dtype, launches=2, guessed=k is None),)
    return scan(cols, values.dtype) if rows == 1 else (Piece("cumsum", dims, values.dtype),)


@rule("_unique2 unique_dim unique_consecutive _unique unique_dim_consecutive")
def unique(op: Op) -> Sequence[Piece]:
    """A sort and the distinct keys of it; the host waits for their number."""
    values = tensor(op, 0)
    count = values.elements
    if not count:
        return ()
    dims = {"rows": 1.0, "cols": float(count)}
    launches = sort_launches(count, 8 * bytes_of(values.dtype), BLOCK_KEYS) + 4
    return (Piece("unique", dims, values.dtype, launches=launches), WAITED)


CAT_TENSORS_PER_LAUNCH = 128
"""Of PyTorch's batched kernel; with more tensors it is launched again.

Source: aten/src/ATen/native/cuda/Shape.cu (CAT_ARRAY_BATCH_SIZE).
"""


@rule("cat _cat cat_out _chunk_cat fsdp::chunk_cat fsdp::all_gather_copy_in")
@rule("stack concat concatenate hstack vstack", scope=LEAF)
def cat(op: Op) -> Sequence[Piece]:
    """`cat(tensors, dim)`: one row for the copies of a list of tensors side by side, by their mean
    size; without its tensors, of a PyTorch that recorded no lists."""
    result, dim = output(op), integer(op, 1)
    if "cat" in op.name and "con" not in op.name and not op.tensors and result is not None:
        whole = {"rows": 1.0, "cols": float(result.elements), "tensors": 1.0, BY_ELEMENTS: 1.0}
        return (Piece("cat", whole, result.dtype),)
    listed = list(tensors_in(argument(op, 0)))
    if not listed:
        raise MissingArguments
    held = [t for t in listed if t.elements]
    if not held:
        return ()
    total, count = sum(t.elements for t in held), len(held)
    at = 0 if dim is None else dim % len(held[0].shape) if held[0].shape else 0
    rows = prod(held[0].shape[:at])
    dims = {"rows": float(rows), "cols": max(total / count / rows, 1.0), "tensors": float(count)}
    if (largest := max(t.elements for t in held)) * count > total:
        dims["largest"] = float(largest)
    if any(layout_dims([t], t.shape) for t in held):
        dims["strided"] = 1.0
    dims |= dict.fromkeys({BY_ELEMENTS} & op.attributes.keys(), 1.0)
    launches = -(-count // CAT_TENSORS_PER_LAUNCH)
    return (Piece("cat", dims, held[0].dtype, launches=launches),)


@rule("split_with_sizes_copy split_copy unbind_copy fsdp::split_*")
def split_copy(op: Op) -> Sequence[Piece]:
    """Into new tensors, or into those it was given."""
    made = list(tensors_in(op.outputs)) or op.tensors[1:]
    whole, count = tensor(op, 0), float(max(len(made), 1))
    if not whole.elements:
        return ()
    dims = {"rows": 1.0, "cols": whole.elements / count, "tensors": count}
    return (Piece("split", dims, whole.dtype),)
