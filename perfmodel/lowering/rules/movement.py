"""Orders, prefix sums, concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import (
    BY_ELEMENTS,
    bytes_of,
    layout_dims,
    length,
    output,
    size,
    tensor,
    tensor_list,
    tensors,
)
from perfmodel.lowering.piece import LEAF, LOWERINGS, Piece, entries
from perfmodel.ops.graph import Op, Tensor, integer, integers, tensors_in
from perfmodel.ops.vocabulary.movement import BLOCK_KEYS, keys_of_block

SET_UP = Piece("fill", {"rows": 1.0, "cols": 1.0}, "int32")
"""A kernel that does next to nothing before another."""
RADIX_BITS = 8
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
    """One sort along `cols`."""
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


WAITED = Piece("copy_d2h", {"elements": 1.0}, "int64", kind="copy", blocks=True)
"""A number that the host waits for."""


def _along(op: Op, position: int) -> tuple[Tensor, int, int]:
    """(first tensor, its rows and cols) that the op runs along; variants with an output given
    record it oddly."""
    (values, *_), dims = tensors(op, 1), integers(op, position)
    if not values.shape or not size(values.shape):
        return values, 1, size(values.shape)
    cols = length(values, dims[0] if dims else -1)
    return values, size(values.shape) // cols, cols


@LOWERINGS.register(*entries("sort argsort msort"))
def sort(op: Op) -> Sequence[Piece]:
    """`sort(x, dim, …)`; `sort(x, stable, dim, …)` has a flag in front."""
    _, rows, cols = _along(op, 1)
    return sorted_rows(rows, cols, tensor(op, 0).dtype, pairs=False)


@LOWERINGS.register(*entries("topk kthvalue"))
def topk(op: Op) -> Sequence[Piece]:
    """`topk(x, k, dim, …)`."""
    _, rows, cols = _along(op, 2)
    if not rows * cols:
        return ()
    k = integer(op, 1)
    dims = {"rows": float(rows), "cols": float(cols), "k": float(max(k or 1, 1))}
    return (Piece("topk", dims, tensor(op, 0).dtype, launches=2, guessed=k is None),)


@LOWERINGS.register(
    *entries("_unique2 unique_dim unique_consecutive _unique unique_dim_consecutive")
)
def unique(op: Op) -> Sequence[Piece]:
    """A sort and the distinct keys of it; the host waits for their number."""
    values = tensor(op, 0)
    count = size(values.shape)
    if not count:
        return ()
    dims = {"rows": 1.0, "cols": float(count)}
    launches = sort_launches(count, 8 * bytes_of(values.dtype), BLOCK_KEYS) + 4
    return (Piece("unique", dims, values.dtype, launches=launches), WAITED)


@LOWERINGS.register(*entries("cumsum cumsum_ cumprod logcumsumexp cummax cummin"))
def cumsum(op: Op) -> Sequence[Piece]:
    """`cumsum(x, dim)`: along the last of several dimensions one kernel, else two."""
    values, rows, cols = _along(op, 1)
    if not rows * cols:
        return ()
    if rows == 1:
        return scan(cols, values.dtype)
    return (Piece("cumsum", {"rows": float(rows), "cols": float(cols)}, values.dtype),)


CAT_TENSORS_PER_LAUNCH = 128
"""Of PyTorch's batched kernel; with more tensors it is launched again.

Source: aten/src/ATen/native/cuda/Shape.cu (CAT_ARRAY_BATCH_SIZE).
"""


@LOWERINGS.register(
    *entries("cat _cat cat_out"),
    *entries("stack concat concatenate hstack vstack", scope=LEAF),
)
def cat(op: Op) -> Sequence[Piece]:
    """`cat(tensors, dim)`: one row for the copies of a list of tensors side by side, by their mean
    size; without its tensors, of a PyTorch that recorded no lists."""
    result, dim = output(op), integer(op, 1)
    if "cat" in op.name and "con" not in op.name and not op.tensors and result is not None:
        whole = {"rows": 1.0, "cols": float(size(result.shape)), "tensors": 1.0, BY_ELEMENTS: 1.0}
        return (Piece("cat", whole, result.dtype),)
    held = [t for t in tensor_list(op, 0) if size(t.shape)]
    if not held:
        return ()
    total, count = sum(size(t.shape) for t in held), len(held)
    at = 0 if dim is None else dim % len(held[0].shape) if held[0].shape else 0
    rows = size(held[0].shape[:at])
    dims = {"rows": float(rows), "cols": max(total / count / rows, 1.0), "tensors": float(count)}
    if (largest := max(size(t.shape) for t in held)) * count > total:
        dims["largest"] = float(largest)
    if any(layout_dims([t], t.shape) for t in held):
        dims["strided"] = 1.0
    dims |= dict.fromkeys({BY_ELEMENTS} & op.attributes.keys(), 1.0)
    launches = -(-count // CAT_TENSORS_PER_LAUNCH)
    return (Piece("cat", dims, held[0].dtype, launches=launches),)


@LOWERINGS.register(*entries("split_with_sizes_copy split_copy unbind_copy _chunk_cat"))
def split_copy(op: Op) -> Sequence[Piece]:
    """One tensor to several."""
    whole, count = tensor(op, 0), float(max(len(list(tensors_in(op.outputs))), 1))
    if not size(whole.shape):
        return ()
    dims = {"rows": 1.0, "cols": size(whole.shape) / count, "tensors": count}
    return (Piece("split", dims, whole.dtype),)


@LOWERINGS.register(*entries("repeat_interleave"))
def repeat_interleave(op: Op) -> Sequence[Piece]:
    """`repeat_interleave(repeats)`: which source each output has; its length is often not told."""
    repeats, result = tensor(op, 0), output(op)
    segments, elements = (float(max(size(t.shape), 1)) for t in (repeats, result or repeats))
    dims = {"elements": elements, "segments": segments}
    return (Piece("offsets_range", dims, "int64", guessed=result is None),)


@LOWERINGS.register(*entries("nonzero masked_select argwhere"))
def nonzero(op: Op) -> Sequence[Piece]:
    """Counts, waits for the count on the host, then compacts."""
    values = tensor(op, 0)
    whole = {"rows": 1.0, "cols": float(size(values.shape))}
    if not whole["cols"]:
        return ()
    counted = Piece("sum", whole, values.dtype, launches=2)
    return (counted, WAITED, Piece("cumsum", whole, "int64", launches=2))
