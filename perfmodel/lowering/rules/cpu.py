"""What operators become on a CPU: one stretch of their thread's time each.

What a kernel calls inside is part of it (`perfmodel.lowering.lower`).
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.lowering.arguments import by_record, result_shape, rule_of, size, tensor
from perfmodel.lowering.piece import ANY, LEAF, LOWERINGS, WHOLE, Piece, entries
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
    table, elements = tensor(op, 0), size(op.tensors[-1].shape if is_put else result_shape(op))
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
    "convolution stack clone zero_ zeros ones full new_zeros ones_like zeros_like full_like "
    "index_select embedding binary_cross_entropy_with_logits select_backward slice_backward "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)
"""Leaves on any target that are kernels of a CPU, whatever they call."""


@LOWERINGS.register(*entries(NATIVE, target="cpu", scope=WHOLE))
def native(op: Op) -> Sequence[Piece]:
    """As the rule of the op as a leaf has it."""
    rule = rule_of(op.name, ANY, LEAF)
    assert rule is not None
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
