"""Ops that put nothing on a stream, and kernels that are ops of their own (compiled, recorded)."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import numbers, size, tensor_bytes
from perfmodel.lowering.piece import (
    LEAF,
    LOWERINGS,
    OF_PROFILE,
    WHOLE,
    Kind,
    MissingArguments,
    Piece,
    Stream,
    entries,
    nothing,
)
from perfmodel.lowering.records import pointwise
from perfmodel.ops.graph import AUTOGRAD_NODE, Op, Tensor, tensors_in
from perfmodel.ops.vocabulary.host import RECORDED

VIEWS = (
    "view _unsafe_view _reshape_alias as_strided as_strided_ expand expand_as view_as transpose "
    "transpose_ t t_ permute movedim swapaxes mT numpy_T squeeze squeeze_ unsqueeze unsqueeze_ "
    "flatten_dense_tensors_view unflatten slice select narrow split split_with_sizes chunk unbind "
    "tensor_split unsafe_split unsafe_split_with_sizes unsafe_chunk diagonal unfold view_as_real "
    "view_as_complex real imag alias detach detach_ conj _conj _neg_view broadcast_tensors "
    "broadcast_to lift lift_fresh _lazy_clone _values _indices values indices _to_dense_view "
    "positive hsplit vsplit dsplit"
)
ALLOCATIONS = (
    "empty empty_strided empty_like new_empty new_empty_strided resize_as_ set_ set_data "
    "_efficientzerotensor empty_quantized sparse_coo_tensor _sparse_coo_tensor_unsafe "
    "_sparse_coo_tensor_with_dims_and_tensors _coalesced_ resize_ _pin_memory pin_memory"
)
QUERIES = (
    "result_type is_pinned is_same_size size stride numel dim is_floating_point is_complex "
    "is_nonzero_view requires_grad_ retain_grad output_nr _version record_stream "
    "_has_compatible_shallow_copy_type can_cast promote_types is_leaf _nested_tensor_size "
    "sym_size _is_zerotensor is_conj is_neg can_use_view _nnz sparse_dim dense_dim _dimI _dimV "
    "is_coalesced _has_same_storage_numel _assert_async_view _debug_has_internal_overlap data"
)
OTHERS = (
    "resolve_conj resolve_neg c10d::barrier_without_device prim::device prim::dtype "
    "profiler::_record_function_enter profiler::_record_function_enter_new "
    "profiler::_record_function_exit torch::compiled_call torch::cuda::synchronize "
    "record_param_comms_end"
)

PASSING_ON = (
    "Add Sub Clone View UnsafeView ReshapeAlias Expand T Transpose Permute Squeeze Unsqueeze Alias "
    "AsStrided Detach ToCopy Contiguous Broadcast Identity Dropout Select Slice Split Unbind Copy "
    "CopySlices Unflatten Flatten Narrow Lift Positive"
)
"""Nodes of the backward pass that launch nothing themselves; where they do, what they call is in
the graph."""
LOWERINGS.register(
    *entries(VIEWS, ALLOCATIONS, QUERIES, OTHERS),
    *(f"any/{name}" for name in ("detach", "detach_", "requires_grad_")),  # as old profiles do
    *(
        f"any/{LEAF}{name}Backward{number}"
        for name in PASSING_ON.split()
        for number in ("", "0", "1")
    ),
    *entries("torch::autograd::AccumulateGrad torch::autograd::GraphRoot", scope=LEAF),
    *entries("torch::autograd::CopyBackwards torch::autograd::CopySlices", scope=LEAF),
    f"any/{LEAF}{AUTOGRAD_NODE}*",
    f"cpu/{WHOLE}{OF_PROFILE}*",  # a CPU has no counterpart of a GPU's kernel
)(nothing)


@LOWERINGS.register(
    *(f"any/triton_{kind}_*" for kind in ("poi", "red", "per", "for")), *entries("triton::*")
)
def inductor_kernel(op: Op) -> Sequence[Piece]:
    """Streams its operands once; the last one is written."""
    tensors: list[Tensor] = [t for t in op.tensors if size(t.shape)]
    if not tensors:
        raise MissingArguments
    return pointwise(tensors[:-1], tensors[-1:])


TOLD = ("reads", "flop_per_element", "random", "by_rows", "threads", "resident")


@LOWERINGS.register("any/hugectr::*", "any/hstu::*")
def hugectr_kernel(op: Op) -> Sequence[Piece]:
    """One kernel over all operands, counted in the widest; attributes say what tensors do not."""
    inputs, outputs = list(op.tensors), list(tensors_in(op.outputs))
    widest = max([*inputs, *outputs], key=tensor_bytes, default=None)
    if widest is None:
        raise MissingArguments
    full = tensor_bytes(widest)
    if not full:
        return ()
    dims = {
        "elements": float(widest.elements),
        "reads": sum(map(tensor_bytes, inputs)) / full,
        "writes": sum(map(tensor_bytes, outputs)) / full,
    }
    dims |= numbers(op, *TOLD)
    return (Piece("elementwise", dims, widest.dtype),)


KINDS: dict[str, Kind] = {"kernel": "kernel", "copy": "copy", "collective": "collective"}


@LOWERINGS.register(f"cuda/{WHOLE}{OF_PROFILE}*", f"rocm/{WHOLE}{OF_PROFILE}*")
def recorded_operation(op: Op) -> Sequence[Piece]:
    """One operation that takes as long as it did."""
    kind = KINDS.get(op.attributes.get("kind", ""))
    if kind is None or "recorded_us" not in op.attributes:
        raise MissingArguments
    dims = numbers(op, "recorded_us", "ratio", "spread")
    stream: Stream = "comm" if kind == "collective" else "compute"
    return (Piece(RECORDED, dims, kind=kind, stream=stream, blocks="blocks" in op.attributes),)
