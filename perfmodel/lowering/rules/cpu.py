"""What operators become on a CPU: one stretch of their thread's time each.

What a kernel calls inside is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import by_record, made, rule_of, size, tensor
from perfmodel.lowering.piece import ANY, LEAF, LOWERINGS, WHOLE, MissingArguments, Piece, entries
from perfmodel.lowering.rules.copies import ALLOCATIONS, VIEWS
from perfmodel.ops.graph import Op
from perfmodel.ops.operators import Operator
from perfmodel.ops.vocabulary.movement import VIEW


@LOWERINGS.register(
    *entries("index _unsafe_index", target="cpu", scope=WHOLE),
    *entries("_index_put_impl_ index_put index_put_ _unsafe_index_put", target="cpu", scope=WHOLE),
)
def by_elements(op: Op) -> Sequence[Piece]:
    """`index(table, indices)` and `index_put(table, indices, values)`: an element at a time."""
    is_put = "index_put" in op.name
    table, elements = tensor(op, 0), size((op.tensors[-1] if is_put else made(op)).shape)
    dims = {"rows": float(elements), "cols": 1.0, "hash_size": float(size(table.shape))}
    name = "index_put" if is_put else "gather"
    return (Piece(name, dims, table.dtype),) if elements else ()


for _name, _places, _direction in (
    ("binary_cross_entropy", "x[*r,c]", ""),
    ("binary_cross_entropy_backward", "_ x[*r,c]", ".bwd"),
):
    _record = Operator(_places, f"binary_cross_entropy{_direction} rows=r cols=c")
    LOWERINGS.register(*entries(_name, target="cpu", scope=WHOLE))(by_record(_record))

NATIVE = (
    "mm addmm bmm baddbmm addbmm mv dot convolution convolution_backward add sub sub_ mul mul_ "
    "div div_ pow addcdiv_ addcmul_ lerp_ sqrt rsqrt exp log abs neg relu relu_ clamp_min sigmoid "
    "tanh gelu silu threshold_backward sigmoid_backward tanh_backward gelu_backward sum mean amax "
    "amin max min argmax norm linalg_vector_norm cat stack copy_ clone fill_ zero_ zeros ones "
    "full new_zeros ones_like zeros_like full_like arange index_select index_add_ gather scatter_ "
    "scatter_add_ sort topk cumsum embedding embedding_dense_backward _log_softmax "
    "_log_softmax_backward_data _softmax _softmax_backward_data native_layer_norm "
    "native_layer_norm_backward native_batch_norm native_batch_norm_backward nll_loss_forward "
    "nll_loss_backward native_dropout mse_loss mse_loss_backward binary_cross_entropy_with_logits "
    "select_backward slice_backward _local_scalar_dense repeat_interleave max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d _adaptive_avg_pool2d "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)


@LOWERINGS.register(*entries(NATIVE, target="cpu", scope=WHOLE))
def native(op: Op) -> Sequence[Piece]:
    """As the rule of the op on any target has it, or that of it as a leaf."""
    rule = rule_of(op.name, ANY, WHOLE) or rule_of(op.name, ANY) or rule_of(op.name, ANY, LEAF)
    if rule is None:
        raise MissingArguments
    return rule(op)


_KINDS = {
    **dict.fromkeys(("detach", "alias"), "host_detach"),
    **dict.fromkeys(("t", "transpose", "permute"), "host_transpose"),
    "select": "host_select",
    **dict.fromkeys(("slice", "narrow"), "host_slice"),
}


@LOWERINGS.register(*entries(VIEWS, ALLOCATIONS, target="cpu", scope=WHOLE))
def view(op: Op) -> Sequence[Piece]:
    """A new tensor object, without a kernel."""
    return (Piece(_KINDS.get(op.name.removeprefix("aten::"), VIEW), kind="host"),)
