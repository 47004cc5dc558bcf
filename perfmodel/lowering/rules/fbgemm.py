"""FBGEMM: table-batched embeddings (TBE), keyed jagged tensors and pooled embeddings.

What stands in front of a lookup's arguments grew from version to version; before `indices, offsets,
pooling_mode` stand `D_offsets, total_D, max_D` and mostly `hash_size_cumsum`, in some calls with
`total_hash_size_bits`. So they are found by what surrounds them. Source: fbgemm_gpu/codegen of
FBGEMM 0.2 to 1.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from perfmodel.lowering.arguments import (
    HOST,
    REUSE,
    bytes_of,
    fill_of,
    numbers,
    output,
    rows_cols,
    tensor,
    tensors,
)
from perfmodel.lowering.piece import MissingArguments, Piece, rule
from perfmodel.lowering.rules.indexing import SET_UP, bits_of, scan, sorted_rows
from perfmodel.ops.graph import Argument, Op, Tensor, tensors_in
from perfmodel.ops.lookups import DENSE_BACKWARD, TABLE_BATCHED

INTEGERS = ("int64", "int32")
STATE_BYTES = {
    "rowwise_adagrad": (4.0, 0.0),
    "approx_rowwise_adagrad": (4.0, 0.0),
    "rowwise_weighted_adagrad": (4.0, 0.0),
    "partial_rowwise_adam": (4.0, 4.0),
    "partial_rowwise_lamb": (4.0, 4.0),
    "adagrad": (0.0, 4.0),
    "adam": (0.0, 8.0),
    "lamb": (0.0, 8.0),
    "lars_sgd": (0.0, 4.0),
}
"""Optimizer to its state: bytes per row, and per element of a row; none for SGD."""
HOST_STATE = "host_state"
"""Attribute of an update of cached rows: what an optimizer keeps per element lies in host memory;
what it keeps per row is on the device, as it is of tables in host memory. Source: fbgemm_gpu,
split_table_batched_embeddings_ops_training.py, `construct_split_state`."""
BACKWARD_LAUNCHES = 3
"""Long segments found; a kernel for them, one for the others."""
NARROW_KEY_BYTES = 4.0
USUAL_DIM = 64.0
"""Of a lookup that does not tell it."""
UNPOOLED = 2
"""`PoolingMode.NONE`: a row out for every lookup."""
BITS_BETWEEN, MAX_BETWEEN = 2, 3
"""Steps to `indices` from `hash_size_cumsum` with the bits after it, and from `D_offsets` with
`total_D` and `max_D` after it."""


def _is_keys(item: object) -> bool:
    return isinstance(item, Tensor) and item.dtype in INTEGERS and len(item.shape) == 1


def _shape(item: object) -> tuple[int, ...]:
    return item.shape if isinstance(item, Tensor) else ()


def _place(inputs: Sequence[object]) -> tuple[int, int]:
    """Positions of `indices`, which `offsets` follow, and of the last list of tables before."""
    position = None
    for at in range(1, len(inputs) - 1):
        pair = _is_keys(inputs[at]) and _is_keys(inputs[at + 1])
        after = (*inputs[at + 2 : at + 3], None)[0]
        if not pair or isinstance(after, Tensor):
            continue
        near = range(at - 1, max(at - 1 - MAX_BETWEEN, -1), -1)
        bounds = next((place for place in near if _is_keys(inputs[place])), None)
        if bounds is not None:
            position = at, bounds
            if type(after) is int and after <= UNPOOLED:
                break  # the pooling mode: what a cache says comes after
    if position is None:
        raise MissingArguments
    return position


def call_of(
    inputs: Sequence[Argument], pooled: Tensor | None, op: Op
) -> tuple[Piece, int, int] | None:
    """(a lookup, bits of a key, bags of all tables), by its arguments and its output or the
    gradient of that; None of no rows. Tables in host memory are read over the bus.

    Unpooled, every lookup is a bag of its own. `dim` is that of the rows looked up, where an op
    says (`lookup_dim`): of tables of several widths, one may have most of the lookups.
    """
    at, bounds = _place(inputs)
    indices, offsets = inputs[at], inputs[at + 1]
    assert isinstance(indices, Tensor)
    tables = max(prod(_shape(inputs[bounds])) - 1, 1)
    batch = max((prod(_shape(offsets)) - 1) // tables, 1)
    held = [t for t in tensors_in(tuple(inputs[:at])) if t.dtype not in INTEGERS]
    if not held:
        raise MissingArguments
    weights = max(held, key=lambda t: t.elements)
    lookups, shape = indices.elements, _shape(pooled)
    mode, weight = (*inputs[at + 2 : at + 4], None, None)[:2]
    unpooled = mode == UNPOOLED or (len(shape) == 2 and shape[0] == lookups != batch)
    bags = lookups if unpooled else batch * tables
    total_dim = inputs[bounds + 1 if at - bounds == MAX_BETWEEN else bounds - 2]
    is_made = len(shape) == 2 and prod(shape) > 0
    is_stated = is_made or (isinstance(total_dim, int) and total_dim > 0)
    if is_made:
        dim = prod(shape) / bags
    else:
        dim = total_dim / tables if isinstance(total_dim, int) and is_stated else USUAL_DIM
    rows = max(weights.elements / dim, float(tables))
    dims = {
        "tables": float(tables),
        "batch": float(batch),
        "lookups": float(lookups),
        "dim": max(dim, 1.0),
        "hash_size": rows / tables,
        "weighted": float(isinstance(weight, Tensor) and weight.elements == lookups),
        "output_bytes": bytes_of(pooled.dtype if pooled is not None else "fp32"),
    }
    if "int_nbit" in op.name and indices.dtype == "int32":
        dims["index_bytes"] = NARROW_KEY_BYTES
    dims |= numbers(op, "hash_size", "row_bytes", *REUSE)
    if read := numbers(op, "lookup_dim").get("lookup_dim", 0.0):  # outputs keep their bytes
        more = read / dims["dim"]
        dims |= {"dim": read, "output_bytes": dims["output_bytes"] / more}
        dims |= {"row_bytes": dims["row_bytes"] * more} if "row_bytes" in dims else {}
    if unpooled:
        dims |= {"batch": lookups / tables, "longest_bag": 1.0}
    dtype = weights.dtype
    if dtype == "uint8":
        dtype = op.attributes.get("weights_dtype", dtype)
    over_bus = weights.device.startswith(HOST) and not indices.device.startswith(HOST)
    piece = Piece("tbe_host" if over_bus else "tbe", dims, dtype, guessed=not is_stated)
    bits = inputs[at - 1] if at - bounds == BITS_BETWEEN else None
    key_bits = bits if isinstance(bits, int) and bits > 0 else bits_of(int(rows))
    return (piece, key_bits, batch * tables) if lookups else None


@rule(*TABLE_BATCHED, "fbgemm::*embedding*_codegen_forward_*")
def lookup(op: Op) -> Sequence[Piece]:
    call = call_of(op.inputs, output(op), op)
    return call[:1] if call else ()


def rows_in_order(lookups: int, bags: int, key_bits: int) -> tuple[Piece, ...]:
    """Lookups sorted by row, and where those of each row begin: ahead of what updates rows."""
    return (
        Piece("linearize_index", {"elements": float(lookups), "segments": float(bags)}, "int64"),
        *sorted_rows(1, lookups, "int64", key_bits=key_bits),
        *scan(lookups, "int64", "run_length_encode"),
        *scan(lookups, "int32"),
    )


@rule("torch::autograd::CppNode<*Split*Lookup*Function*>")
@rule("fbgemm::*embedding*_backward_codegen_*")
def lookup_backward(op: Op) -> Sequence[Piece]:
    """Sorts the lookups by row, then adds up and applies each row's gradient; one that is as large
    as the tables begins as zeros.

    Arguments: the gradient, then those of the lookup (see `context.completed`).
    """
    call = call_of(op.inputs[1:], tensor(op, 0), op)
    if call is None:
        return ()
    table, key_bits, bags = call
    dims = table.dims
    # `rowwise_adagrad` of `torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>`
    optimizers = [o for o in STATE_BYTES if f"_{o}_" in op.name or f"_{o}>" in op.name]
    per_row, per_element = STATE_BYTES.get(max(optimizers, key=len, default=""), (0.0, 0.0))
    lookups = round(dims["lookups"])
    is_weighted, state_bytes = bool(dims["weighted"]), per_element * dims["dim"]
    if table.op != "tbe_host":
        state_bytes += per_row
    updated = replace(table, direction="bwd", dims={**dims, "state_bytes": state_bytes})
    if op.attributes.get(HOST_STATE) == "1" and per_element:  # which takes longer than the rows
        updated = replace(updated, op="tbe_host", dims={**dims, "row_bytes": state_bytes})
    dense = output(op) if op.name == DENSE_BACKWARD else None
    return (
        *(fill_of(dense) if dense else ()),
        *(replace(table, direction="bwd_indice_weights"),) * is_weighted,
        *rows_in_order(lookups, bags, key_bits),
        *(sorted_rows(1, lookups, "int64", key_bits=key_bits) if is_weighted else ()),
        *(SET_UP,) * (BACKWARD_LAUNCHES - 1),
        updated,
    )


def over_segments(op: str, values: Tensor, segments: int) -> Sequence[Piece]:
    """One kernel over the values of a jagged tensor."""
    if not values.elements or not segments:
        return ()
    dims = {"elements": float(values.elements), "segments": float(segments)}
    return (Piece(op, dims, values.dtype),)


@rule("torch::autograd::CppNode<*ermutePooledEmbs*> fbgemm::permute_pooled_embs*")
@rule("fbgemm::recat_embedding_grad_output* fbgemm::permute_multi_embedding*")
def permute_pooled(op: Op) -> Sequence[Piece]:
    """Pooled embeddings with the tables in another order."""
    (values,) = tensors(op, 1)
    if not values.elements:
        return ()
    tables = max((t.elements for t in op.tensors[1:] if len(t.shape) == 1), default=0)
    dims = {**rows_cols(values.shape), "tables": float(tables)}
    return (Piece("permute_pooled", dims, values.dtype),)


@rule("fb::offsets_range offsets_range expand_into_jagged_permute", library="fbgemm::")
def offsets_range(op: Op) -> Sequence[Piece]:
    """`(offsets, values or their number)`: for each segment its offsets as a range."""
    (offsets,) = tensors(op, 1)
    values = output(op) or op.tensors[-1]
    return over_segments("offsets_range", values, offsets.elements)


@rule("jagged_to_padded_dense* jagged_1d_to_dense jagged_2d_to_dense*", library="fbgemm::")
@rule("dense_to_jagged* jagged_dense_* jagged_index_select*", library="fbgemm::")
@rule("keyed_jagged_index_select* segment_sum_csr segment_sum_csr_cuda", library="fbgemm::")
def jagged_dense(op: Op) -> Sequence[Piece]:
    """Values of a jagged tensor to or from a dense one."""
    largest = max(op.tensors, key=lambda t: t.elements, default=tensor(op, 0))
    segments = [t.elements for t in op.tensors if t.dtype in INTEGERS]
    return over_segments("jagged_to_dense", largest, max(segments, default=1))
