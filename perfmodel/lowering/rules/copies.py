"""Ops that put nothing on a stream; bytes that only move: copies within a device, with another type
or layout, to the host and back; collectives, from what the op graph says of them
(`perfmodel.ops.read.arguments`); kernels that are ops of their own (compiled, recorded)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from perfmodel.lowering.arguments import (
    HOST,
    bytes_of,
    copy_pieces,
    flag,
    host_device_copy,
    numbers,
    output,
    pointwise,
    tensor,
    told,
)
from perfmodel.lowering.piece import (
    LEAF,
    LOWERINGS,
    OF_PROFILE,
    WHOLE,
    Kind,
    Piece,
    Stream,
    nothing,
    rule,
)
from perfmodel.ops.graph import AUTOGRAD_NODE, TRITON, Op, Tensor, tensors_in
from perfmodel.ops.vocabulary.streaming import RECORDED

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
    "is_pinned is_same_size is_floating_point is_complex is_nonzero_view is_leaf is_conj is_neg "
    "is_coalesced _is_zerotensor sym_* can_* result_type size stride numel dim requires_grad_ "
    "retain_grad output_nr _version record_stream _has_compatible_shallow_copy_type promote_types "
    "_nested_tensor_size _nnz sparse_dim dense_dim _dimI _dimV _has_same_storage_numel "
    "_assert_async_view _debug_has_internal_overlap data resolve_conj resolve_neg "
    "c10d::barrier_without_device prim::device prim::dtype profiler::_record_function_* "
    "torch::compiled_call torch::cuda::synchronize record_param_comms_end"
)
PASSING_ON = (
    "Add Sub Clone View UnsafeView ReshapeAlias Expand T Transpose Permute Squeeze Unsqueeze Alias "
    "AsStrided Detach ToCopy Contiguous Broadcast Identity Dropout Select Slice Split Unbind Copy "
    "CopySlices Unflatten Flatten Narrow Lift Positive"
)
"""Nodes of the backward pass that launch nothing themselves; where they do, what they call is in
the graph. Not any node: a user's own launches what its trace alone knows."""
_NODES = [f"{name}Backward{number}" for name in PASSING_ON.split() for number in ("", 0, 1)]
_OF_ENGINE = "AccumulateGrad GraphRoot CopyBackwards CopySlices"
rule(VIEWS, ALLOCATIONS, QUERIES)(nothing)
rule("detach detach_ requires_grad_", library="")(nothing)  # as old profiles name them
rule(*_NODES, scope=LEAF, library="")(nothing)
rule(_OF_ENGINE, scope=LEAF, library="torch::autograd::")(nothing)
LOWERINGS.register(f"any/{LEAF}{AUTOGRAD_NODE}*")(nothing)
rule(f"{OF_PROFILE}*", target="cpu", scope=WHOLE)(nothing)  # no counterpart of a GPU's kernel


SAID = ("reads", "flop_per_element", "random", "by_rows", "threads", "resident")


@rule("hugectr::* hstu::*")
@rule("select_backward slice_backward constant_pad_nd", scope=LEAF)
@rule("poi_* red_* per_* for_*", library=TRITON)
def one_kernel(op: Op) -> Sequence[Piece]:
    """One kernel over all operands, the last of which it writes where it is not said; attributes
    say what tensors do not."""
    inputs, outputs = list(op.tensors), list(tensors_in(op.outputs))
    if inputs and not outputs and op.name.startswith(TRITON):
        inputs, outputs = inputs[:-1], inputs[-1:]
    said = numbers(op, *SAID)
    pieces = pointwise(inputs, outputs, finds=False)
    return [replace(piece, dims={**piece.dims, **said}) for piece in pieces]


@rule(f"{OF_PROFILE}*", target="cuda rocm", scope=WHOLE)
def recorded_operation(op: Op) -> Sequence[Piece]:
    dims, kind = told(op, RECORDED), cast(Kind, op.attributes.get("kind", "kernel"))
    stream: Stream = "comm" if kind == "collective" else "compute"
    return (Piece(RECORDED, dims, kind=kind, stream=stream, blocks="blocks" in op.attributes),)


MEMCPY = ("memcpy_h2d", "memcpy_d2h")


@rule("copy_ copy _copy_from")
def copy_(op: Op) -> Sequence[Piece]:
    """`copy_(target, source, non_blocking)`."""
    target, source = tensor(op, 0), tensor(op, 1)
    if op.attributes.get("copy") in MEMCPY:
        name = "copy_h2d" if op.attributes["copy"] == "memcpy_h2d" else "copy_d2h"
        pinned = op.attributes.get("pinned") == "1"
        return host_device_copy(name, target, non_blocking=bool(flag(op, 2)), pinned=pinned)
    return copy_pieces(target, source, non_blocking=bool(flag(op, 2)))


@rule("to type_as float half double cpu cuda reshape", scope=LEAF)
@rule("flatten ravel item _reshape_copy", scope=LEAF)
def maybe_copied(op: Op) -> Sequence[Piece]:
    """A copy only where the output is another tensor; a graph that records calls has it below."""
    source, result = op.tensors[:1], output(op)
    if not source or result is None:
        return ()
    devices = {result.device, source[0].device} - {""}
    if result.dtype == source[0].dtype and len(devices) < 2:
        return ()
    return copy_pieces(result, source[0])


@rule("_local_scalar_dense")
def scalar_to_host(op: Op) -> Sequence[Piece]:
    """One element to the host, which waits for it; nothing where it is there already."""
    values = tensor(op, 0)
    if values.device.startswith(HOST):
        return ()
    return host_device_copy("copy_d2h", Tensor((1,), values.dtype))


RECEIVED = ("all_gather", "gather", "recv")
"""Collectives whose size is what a rank ends up with; of all others, what it gives."""
TABLE = {
    "gather": "all_gather",
    "scatter": "broadcast",
    "send": "send_recv",
    "recv": "send_recv",
    "barrier": "barrier",
}
KNOWN = (
    *("all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("send_recv", "barrier"),
)
ONE_BYTE = 1.0


@rule("record_param_comms", library="")
@rule("c10d::* c10d_functional::* _c10d_functional::* _dtensor::*", scope=LEAF)
def collective(op: Op) -> Sequence[Piece]:
    """One kernel on the stream of collectives; a size that is not told stands at one byte."""
    about = op.attributes
    word = about.get("collective", "")
    name = TABLE.get(word, word)
    if name not in KNOWN:  # as waits are not
        return ()
    elements = about.get("out_elements" if word in RECEIVED else "in_elements")
    if word == "all_to_all":  # as long as the larger of what a rank gives and gets
        elements = max(elements, about.get("out_elements"), key=lambda text: float(text or 0))
    dtype = about.get("dtype", "fp32")
    size_bytes = float(elements or 0) * bytes_of(dtype)
    dims = {"size_bytes": max(size_bytes, ONE_BYTE), "ranks": float(about.get("group_size", 2))}
    dims |= {key: float(about[key]) for key in ("nodes", "in_network") if key in about}
    guessed = elements is None and name != "barrier"
    return (Piece(name, dims, dtype, kind="collective", stream="comm", guessed=guessed),)
