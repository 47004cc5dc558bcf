"""Ops that put nothing on a stream: views, allocations, queries, bookkeeping of autograd."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece

VIEWS = (
    *(
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "as_strided",
        "as_strided_",
        "expand",
        "expand_as",
        "view_as",
    ),
    *("transpose", "transpose_", "t", "t_", "permute", "movedim", "swapaxes", "mT", "numpy_T"),
    *("squeeze", "squeeze_", "unsqueeze", "unsqueeze_", "flatten_dense_tensors_view", "unflatten"),
    *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
    *(
        "unsafe_split",
        "unsafe_split_with_sizes",
        "unsafe_chunk",
        "diagonal",
        "unfold",
        "view_as_real",
    ),
    *(
        "view_as_complex",
        "real",
        "imag",
        "alias",
        "detach",
        "detach_",
        "conj",
        "_conj",
        "_neg_view",
    ),
    *(
        "broadcast_tensors",
        "broadcast_to",
        "lift",
        "lift_fresh",
        "_lazy_clone",
        "_values",
        "_indices",
    ),
    *("values", "indices", "_to_dense_view", "positive", "hsplit", "vsplit", "dsplit"),
)
ALLOCATIONS = (
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_as_"),
    *("set_", "set_data", "_efficientzerotensor", "empty_quantized", "sparse_coo_tensor"),
    *("_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims_and_tensors", "_coalesced_"),
    *("resize_", "_pin_memory", "pin_memory"),
)
QUERIES = (
    *(
        "result_type",
        "is_pinned",
        "is_same_size",
        "size",
        "stride",
        "numel",
        "dim",
        "is_floating_point",
    ),
    *("is_complex", "is_nonzero_view", "requires_grad_", "retain_grad", "output_nr", "_version"),
    *("record_stream", "_has_compatible_shallow_copy_type", "can_cast", "promote_types", "is_leaf"),
    *("_nested_tensor_size", "sym_size", "_is_zerotensor", "is_conj", "is_neg", "can_use_view"),
    *("_nnz", "sparse_dim", "dense_dim", "_dimI", "_dimV", "is_coalesced"),
    *("_has_same_storage_numel", "_assert_async_view", "_debug_has_internal_overlap", "data"),
)
OTHERS = (
    "resolve_conj",
    "resolve_neg",
    "c10d::barrier_without_device",
    "prim::device",
    "prim::dtype",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "torch::cuda::synchronize",
    "record_param_comms_end",
)

UNPREFIXED = ("detach", "detach_", "requires_grad_")
"""As old profiles name the parts of `aten::detach`."""


@LOWERINGS.register(
    *entries(*VIEWS, *ALLOCATIONS, *QUERIES, *OTHERS), *(f"any/{name}" for name in UNPREFIXED)
)
def nothing(op: Op) -> Sequence[Piece]:
    """Launches nothing."""
    return ()
