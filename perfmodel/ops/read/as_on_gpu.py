"""What a GPU runs for operators that are traced without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import sub
from typing import Any

from perfmodel.embedding.popularity import uniform
from perfmodel.ops.graph import BACK_TO_BACK, Argument, Arguments, Tensor, tensors_in
from perfmodel.ops.lookups import DENSE_LOOKUP, Lookups

_ATTENTION, _FUSED_DIMS = "scaled_dot_product_attention", 4
WITH_BACKWARD = {
    "rms_norm": "aten::_fused_rms_norm",
    DENSE_LOOKUP.rpartition("::")[2]: DENSE_LOOKUP,
}
AS_ONE = {_ATTENTION: f"aten::{_ATTENTION}", "dropout": "aten::native_dropout", **WITH_BACKWARD}
"""Functions that are one operator on a GPU, whatever they become on the tracing machine; some have
one of their own for the backward pass as well (`rms_norm` since PyTorch 2.8)."""
IN_FP32 = frozenset(
    (
        *("layer_norm", "group_norm", "softmax", "log_softmax", "norm", "exp", "log", "pow"),
        *("prod", "cumsum", "cumprod", "sum", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("cross_entropy", "nll_loss", "kl_div", "softplus", "rsqrt", "reciprocal"),
        *("logsumexp", "log1p", "cosine_similarity"),
    )
)
"""What `torch.autocast` runs in fp32 on a GPU, and not on a CPU, where modules are traced."""
RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Functions of recurrent layers, and how many gates each has."""
_ROW_DTYPES = {1: "float16", 5: "bfloat16"}
"""FBGEMM's numbers of types."""
_MIN_CUDNN_NORM_DIMS = 3
"""PyTorch gives batch normalisation of `batch x channels` alone to its own kernel."""
SUM = "aten::sum"
"""Sums of integers are of 64 bits, and its kernel reads such."""
_DRAWN = {"aten::rand": "aten::uniform_", "aten::randn": "aten::normal_"}
_DRAWN |= {f"{name}_like": drawn for name, drawn in _DRAWN.items()}
_DRAWN |= dict.fromkeys(("aten::randint", "aten::randint_like", "aten::randperm"), "aten::random_")
_SIDE_BY_SIDE = frozenset(
    f"aten::{name}"
    for name in ("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax")
)
"""What has its input copied where it lies otherwise."""
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_sparse_addmm")


_ONE_IF: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    # Of more dimensions it runs step by step, in fp32 since PyTorch 2.5.
    _ATTENTION: lambda tensors: all(each.dim() <= _FUSED_DIMS for each in tensors),
    "rms_norm": lambda tensors: len({each.dtype for each in tensors}) == 1,
}
"""What must hold of the tensors that some of them are called with."""


def as_one(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """The one operator that a GPU has for a call of a function; None where it has none."""
    if name not in AS_ONE:
        return None
    tensors = [each for each in (*args, *kwargs.values()) if hasattr(each, "dtype")]
    holds = _ONE_IF.get(name)
    return AS_ONE[name] if holds is None or holds(tensors) else None


def copied_first(name: str, inputs: Arguments, outputs: Arguments) -> bool:
    """Whether a GPU's kernel reads a copy of the first of `inputs`: of one that lies otherwise side
    by side, of integers that are summed as 64 bits."""
    values, made = (next(tensors_in(each), None) for each in (inputs, outputs))
    if values is None or made is None:
        return False
    if name == SUM:
        return made.dtype == "int64" != values.dtype
    usual = tuple(prod(values.shape[at + 1 :]) for at in range(len(values.shape)))
    pairs = zip(values.shape, values.strides, usual, strict=False)
    return name in _SIDE_BY_SIDE and any(n > 1 and a != b for n, a, b in pairs)


def on_gpu(name: str, inputs: Arguments, outputs: Arguments) -> tuple[str, Arguments]:
    """The operator that a GPU runs for one that was traced without: cuDNN normalises batches in
    training that have more than their channels, a sparse gradient is kept, not copied, and what is
    drawn at random is drawn into memory."""
    is_norm = name in ("aten::native_batch_norm", "aten::_native_batch_norm_legit")
    if is_norm and _by_cudnn(inputs[0], inputs[5]):
        return "aten::cudnn_batch_norm", inputs
    if name == "aten::native_batch_norm_backward" and _by_cudnn(inputs[1], inputs[7]):
        return "aten::cudnn_batch_norm_backward", (inputs[1], inputs[0], *inputs[2:7], inputs[8])
    if name == "aten::clone" and isinstance(inputs[0], Tensor) and inputs[0].layout:
        return "aten::detach", inputs
    if name in _DRAWN:
        return _DRAWN[name], outputs
    return name, inputs


def _by_cudnn(values: Argument, training: Argument) -> bool:
    """Whether batches of such `values` are normalised by the library."""
    has_pixels = isinstance(values, Tensor) and len(values.shape) >= _MIN_CUDNN_NORM_DIMS
    return training is True and has_pixels and values.dtype != "bf16"  # type: ignore[union-attr]


def rows_summed(name: str, inputs: Arguments, held: Mapping[int, int]) -> Arguments | None:
    """Of a product with a sparse matrix, which sums rows of the other one by its elements, the
    table, ids and offsets; None of any other operator, and where it is not `held` how many."""
    if name not in _PRODUCTS:
        return None
    sparse, dense = [*tensors_in(inputs)][-2:]
    if sparse.tensor_id not in held:
        return None
    ids, offsets = (held[sparse.tensor_id],), sparse.shape[:1]
    return dense, *(Tensor(each, "int64", device=dense.device) for each in (ids, offsets))


def of_table_batched(
    torch: Any, name: str, named: Mapping[str, Any]
) -> tuple[tuple[int, ...], Any] | None:
    """Shape of what FBGEMM's table-batched lookup returns, and its type; of an update, which
    returns nothing, no type. None of other operators. FBGEMM has no fake ones of those for CPUs."""
    is_fused = name.startswith("fbgemm::split_embedding") and name.endswith("_pt2_wrapper")
    if not (is_fused or name == DENSE_LOOKUP):
        return None
    if "_backward_" in name:
        return (), None
    dtype = _ROW_DTYPES.get(named["output_dtype"], "float32")
    rows, dim = len(named["indices"]), named.get("D")
    if dim is None:
        rows, dim = (len(named["offsets"]) - 1) // (len(named["D_offsets"]) - 1), named["total_D"]
    if named.get("vbe_output_size", -1) >= 0:
        rows, dim = 1, named["vbe_output_size"]
    return (rows, int(dim)), getattr(torch, dtype)


TABLES = ("hash_size_cumsum", "D_offsets", "offsets")
"""Arguments that tell of a lookup in several tables what each has, and how much is looked up."""


def lookups_of(
    ends: Sequence[int], columns: Sequence[int], offsets: Sequence[int]
) -> dict[str, str]:
    """What such a lookup asks of each table, rows drawn evenly, as attributes of an op; nothing
    where its arguments are not known, or tables have not as many bags."""
    rows, dims = (tuple(map(sub, each[1:], each)) for each in (ends, columns))
    if not (dims and len(offsets) > 1 and min(rows, default=0) > 0):
        return {}
    bags, odd = divmod(len(offsets) - 1, len(rows))
    counts = tuple(map(sub, offsets[bags::bags], offsets[::bags]))
    if odd or not sum(counts):
        return {}
    drawn = tuple(zip(rows, counts, strict=True))
    return Lookups(
        hash_size=rows,
        dim=dims,
        batch=(bags,) * len(rows),
        pooling=tuple(count / bags for count in counts),
        unique_rows=tuple(float(uniform(size).distinct_rows(count)) for size, count in drawn),
        alpha=(0.0,) * len(rows),
        most_repeated=tuple(count / size for size, count in drawn),
    ).to_attributes()


def recurrent_facts(name: str, args: Sequence[Any]) -> dict[str, str]:
    """`torch.lstm(x, states, weights, bias, layers, dropout, train, bidirectional, batch_first)`,
    or of packed sequences."""
    values, packed = args[0], isinstance(args[3], (list, tuple))
    states, layers, directions = (args[at + packed] for at in (1, 4, 7))
    time, batches = (0, 1) if packed or not args[8] else (1, 0)
    first = states[0] if isinstance(states, (list, tuple)) else states
    steps = int(args[1].numel() if packed else values.shape[time])
    batch = -(-len(values) // max(steps, 1)) if packed else 1  # on average
    return {
        "gates": str(RECURRENT[name]),
        "layers": str(int(layers)),
        "directions": str(1 + bool(directions)),
        "hidden": str(int(first.shape[-1])),
        "steps": str(steps),
        "batch": str(int(values.shape[batches]) if values.dim() > 2 else batch),
        "inputs": str(int(values.shape[-1])),
        "biases": str(int(args[4] if packed else args[3])),
        "packed": str(int(packed)),
        BACK_TO_BACK: "1",
    }
