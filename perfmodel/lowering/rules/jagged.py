"""FBGEMM's work on keyed jagged tensors and pooled embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import optional_tensor, output, rows_cols, size, tensor, tensors
from perfmodel.lowering.piece import LOWERINGS, Piece, entries
from perfmodel.lowering.rules.movement import scan
from perfmodel.ops.graph import Op, Tensor


def over_segments(
    op: str, values: Tensor, segments: int, *, weighted: bool | None = None
) -> Sequence[Piece]:
    """One kernel over the values of a jagged tensor."""
    if not size(values.shape) or not segments:
        return ()
    dims = {"elements": float(size(values.shape)), "segments": float(segments)}
    if weighted is not None:
        dims["weighted"] = float(weighted)
    return (Piece(op, dims, values.dtype),)


@LOWERINGS.register(
    *entries(
        "fbgemm::permute_2D_sparse_data",
        "fbgemm::permute_1D_sparse_data",
        "fbgemm::permute_sparse_features",
        "fbgemm::permute_sparse_data",
        "fbgemm::permute_multi_embedding_sparse",
    )
)
def permute_sparse(op: Op) -> Sequence[Piece]:
    """`(permute, lengths, values, weights?)`: lengths, offsets, offsets after, then the values."""
    order, lengths, values = tensor(op, 0), tensor(op, 1), tensor(op, 2)
    weights = optional_tensor(op, 3)
    given = size(lengths.shape)
    width = lengths.shape[1] if len(lengths.shape) > 1 else 1
    made = size(order.shape) * width
    if not made:
        return ()
    row = {"rows": float(size(order.shape)), "cols": float(width)}
    return (
        Piece("index_select", row, lengths.dtype),
        *scan(given, lengths.dtype),
        *scan(made, lengths.dtype),
        *over_segments("jagged_permute", values, made, weighted=weights is not None),
    )


@LOWERINGS.register(
    *entries(
        "fbgemm::asynchronous_complete_cumsum",
        "fbgemm::asynchronous_inclusive_cumsum",
        "fbgemm::asynchronous_exclusive_cumsum",
        "fb::asynchronous_complete_cumsum",
    )
)
def complete_cumsum(op: Op) -> Sequence[Piece]:
    """Offsets from lengths."""
    lengths = tensor(op, 0)
    return scan(size(lengths.shape), lengths.dtype)


@LOWERINGS.register(*entries("fbgemm::bounds_check_indices*"))
def bounds_check(op: Op) -> Sequence[Piece]:
    """`(rows_per_table, indices, offsets, …)`."""
    return over_segments("bounds_check", tensor(op, 1), size(tensor(op, 2).shape))


@LOWERINGS.register(
    *entries(
        "fbgemm::permute_pooled_embs*",
        "torch::autograd::CppNode<*ermutePooledEmbs*>",
        "fbgemm::recat_embedding_grad_output*",
        "fbgemm::permute_multi_embedding*",
    )
)
def permute_pooled(op: Op) -> Sequence[Piece]:
    """Pooled embeddings with the tables in another order."""
    values = op.tensors[0] if op.tensors else tensor(op, 0)
    if not size(values.shape):
        return ()
    dims = rows_cols(values.shape)
    tables = [size(t.shape) for t in op.tensors[1:] if len(t.shape) == 1]
    return (
        Piece("permute_pooled", dims | {"tables": float(max(tables, default=0))}, values.dtype),
    )


@LOWERINGS.register(
    *entries("fb::offsets_range", "fbgemm::offsets_range", "fbgemm::expand_into_jagged_permute")
)
def offsets_range(op: Op) -> Sequence[Piece]:
    """`(offsets, values or their number)`: for each segment its offsets as a range."""
    (offsets,) = tensors(op, 1)
    values = output(op) or op.tensors[-1]
    return over_segments("offsets_range", values, size(offsets.shape))


@LOWERINGS.register(*entries("fb::lengths_range*", "fbgemm::lengths_range*"))
def lengths_range(op: Op) -> Sequence[Piece]:
    """Offsets from the lengths, then ranges."""
    lengths = tensor(op, 0)
    segments = size(lengths.shape)
    return (*scan(segments, lengths.dtype), *over_segments("offsets_range", lengths, segments))


@LOWERINGS.register(*entries("fb::to_dense_representation", "fb::to_dense_representation_*"))
def to_dense(op: Op) -> Sequence[Piece]:
    """`(values, lengths, …)`: offsets from the lengths, then the dense matrix."""
    values, lengths = tensor(op, 0), tensor(op, 1)
    segments = size(lengths.shape)
    return (*scan(segments, "int64"), *over_segments("jagged_to_dense", values, segments))


@LOWERINGS.register(
    *entries(
        "fbgemm::jagged_to_padded_dense*",
        "fbgemm::jagged_1d_to_dense",
        "fbgemm::jagged_2d_to_dense*",
        "fbgemm::dense_to_jagged*",
        "fbgemm::jagged_dense_*",
        "fbgemm::jagged_index_select*",
        "fbgemm::keyed_jagged_index_select*",
        "fbgemm::segment_sum_csr",
        "fbgemm::segment_sum_csr_cuda",
    )
)
def jagged_dense(op: Op) -> Sequence[Piece]:
    """Values of a jagged tensor to or from a dense one."""
    largest = max(op.tensors, key=lambda t: size(t.shape), default=tensor(op, 0))
    segments = [size(t.shape) for t in op.tensors if t.dtype in ("int64", "int32")]
    return over_segments("jagged_to_dense", largest, max(segments, default=1))


@LOWERINGS.register(*entries("fbgemm::block_bucketize_sparse_features*"))
def block_bucketize(op: Op) -> Sequence[Piece]:
    """`(lengths, indices, …)`: sizes per bucket, offsets, then the values."""
    lengths, indices = tensor(op, 0), tensor(op, 1)
    segments = size(lengths.shape)
    return (
        *scan(segments, lengths.dtype),
        *over_segments("bounds_check", indices, segments),
        *scan(segments, lengths.dtype),
        *over_segments("jagged_bucketize", indices, segments, weighted=False),
    )
