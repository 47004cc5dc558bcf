"""On a CPU an operator below autograd is one stretch of its thread's time, whatever it calls.

That is also how `collect ops` measures them: what a kernel calls inside is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op
from perfmodel.lowering.names import ANY, entries, rule_of
from perfmodel.lowering.piece import LEAF, LOWERINGS, WHOLE, Piece, Untold

NATIVE = (
    *(
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "dot",
        "convolution",
        "convolution_backward",
    ),
    *("add", "sub", "sub_", "mul", "mul_", "div", "div_", "pow", "addcdiv_", "addcmul_", "lerp_"),
    *("sqrt", "rsqrt", "exp", "log", "abs", "neg", "relu", "relu_", "clamp_min", "sigmoid", "tanh"),
    *("gelu", "silu", "threshold_backward", "sigmoid_backward", "tanh_backward", "gelu_backward"),
    *("sum", "mean", "amax", "amin", "max", "min", "argmax", "norm", "linalg_vector_norm"),
    *("cat", "stack", "copy_", "clone", "fill_", "zero_", "zeros", "ones", "full", "new_zeros"),
    *("ones_like", "zeros_like", "full_like", "arange", "index_select", "index_add_", "gather"),
    *(
        "scatter_",
        "scatter_add_",
        "sort",
        "topk",
        "cumsum",
        "embedding",
        "embedding_dense_backward",
    ),
    *("_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data"),
    *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm"),
    *("native_batch_norm_backward", "nll_loss_forward", "nll_loss_backward", "native_dropout"),
    *("mse_loss", "mse_loss_backward", "binary_cross_entropy_with_logits", "select_backward"),
    *("slice_backward", "_local_scalar_dense", "repeat_interleave", "max_pool2d_with_indices"),
    *("max_pool2d_with_indices_backward", "avg_pool2d", "_adaptive_avg_pool2d"),
    *("_scaled_dot_product_flash_attention_for_cpu",),
    *("_scaled_dot_product_flash_attention_for_cpu_backward",),
)


@LOWERINGS.register(*entries(*NATIVE, target="cpu", scope=WHOLE))
def native(op: Op) -> Sequence[Piece]:
    """As the rule of the op on any target has it, or that of it as a leaf; raises `Untold`."""
    rule = rule_of(op.name, ANY, WHOLE) or rule_of(op.name, ANY) or rule_of(op.name, ANY, LEAF)
    if rule is None:
        raise Untold
    return rule(op)
