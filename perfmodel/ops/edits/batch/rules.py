"""What sizes an op returns, given those of its arguments: for ops whose name must be known.

Everything else follows from the shapes alone (`follow.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from perfmodel.ops.edits.batch.sizes import Call, Dims, Size, fixed, reshaped_sizes, total
from perfmodel.ops.graph import Tensor

Returned = Sequence[Sequence[Size | None] | None]
"""Per returned tensor, of each size; None: follow from the shapes."""
Rule = Callable[[Call], Returned]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for `aten::` ops."""

    def register(function: Rule) -> Rule:
        RULES.update({f"aten::{name}": function for name in names})
        return function

    return register


@rule("mm", "_int_mm", "_scaled_mm")
def _mm(call: Call) -> Returned:
    a, b = call.sizes(0), call.sizes(1)
    return [(a[0], b[1])] if a and b else []


@rule("addmm", "_addmm_activation")
def _addmm(call: Call) -> Returned:
    a, b = call.sizes(1), call.sizes(2)
    return [(a[0], b[1])] if a and b else []


@rule("bmm")
def _bmm(call: Call) -> Returned:
    a, b = call.sizes(0), call.sizes(1)
    return [(a[0], a[1], b[2])] if a and b else []


@rule("baddbmm")
def _baddbmm(call: Call) -> Returned:
    a, b = call.sizes(1), call.sizes(2)
    return [(a[0], a[1], b[2])] if a and b else []


@rule("linear")
def _linear(call: Call) -> Returned:
    x, w = call.sizes(0), call.sizes(1)
    return [(*x[:-1], w[0])] if x and w else []


@rule("matmul")
def _matmul(call: Call) -> Returned:
    a, b = call.sizes(0), call.sizes(1)
    return [(*a[:-1], b[-1])] if a and b and len(a) >= len(b) > 1 else []


@rule("t", "numpy_T")
def _transposed(call: Call) -> Returned:
    x = call.sizes(0)
    return [] if x is None else [x[::-1]]


@rule("transpose", "swapaxes", "transpose_")
def _transpose(call: Call) -> Returned:
    x = call.sizes(0)
    if not x:
        return [x]
    sizes = list(x)
    a, b = call.integer(1) % len(x), call.integer(2) % len(x)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    return [tuple(sizes)]


@rule("permute")
def _permute(call: Call) -> Returned:
    x, order = call.sizes(0), call.integers(1)
    return [tuple(x[i] for i in order)] if x and len(order) == len(x) else []


@rule(
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten", "view_as"),
    *("squeeze", "unsqueeze", "squeeze_", "unsqueeze_", "ravel"),
)
def _view(call: Call) -> Returned:
    x, given, (made, *_) = call.sizes(0), call.tensor(0), (*call.returned, None)
    if x is None or given is None or made is None:
        return []
    return [reshaped_sizes(x, given.shape, made.shape, call.batch)]


@rule("expand", "expand_as", "broadcast_to")
def _expand(call: Call) -> Returned:
    x, given, (made, *_) = call.sizes(0), call.tensor(0), (*call.returned, None)
    if x is None or given is None or made is None:
        return []
    pad = len(made.shape) - len(x)
    return [
        tuple(
            x[at - pad]
            if at >= pad and given.shape[at - pad] == size
            else Size(0, size)
            if at
            else None
            for at, size in enumerate(made.shape)
        )
    ]


@rule("as_strided")
def _as_strided(call: Call) -> Returned:
    x, given, (made, *_) = call.sizes(0), call.tensor(0), (*call.returned, None)
    if x is None or given is None or made is None or any(size.per_sample for size in x):
        return []
    return [fixed(made.shape)] if made.elements <= given.elements else []


@rule("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm")
def _layer_norm(call: Call) -> Returned:
    x, given = call.sizes(0), call.tensor(0)
    if x is None or given is None:
        return []
    sizes = list(zip(x, given.shape, strict=True))
    return [
        x,
        *(
            None
            if made is None
            else [
                a if old == new else Size(0, new)
                for (a, old), new in zip(sizes, made.shape, strict=False)
            ]
            for made in call.returned[1:]
        ),
    ]


@rule("select", "index_copy")
def _select(call: Call) -> Returned:
    x = call.sizes(0)
    if not x:
        return []
    at = call.integer(1) % len(x)
    return [(*x[:at], *x[at + 1 :])]


@rule("slice", "narrow", "split", "split_with_sizes", "chunk", "unsafe_split", "tensor_split")
def _slice(call: Call) -> Returned:
    x, given = call.sizes(0), call.tensor(0)
    if not x or given is None:
        return []
    by_second = call.op.name in ("aten::slice", "aten::narrow")
    at = call.integer(1 if by_second else 2) % len(x)
    return [
        None
        if made is None
        else (*x[:at], _part(x[at], given.shape[at], made.shape[at], call.batch), *x[at + 1 :])
        for made in call.returned
    ]


def _part(whole: Size, old: int, new: int, batch: int) -> Size:
    """A stretch of `new` of the `old` elements of a dimension."""
    if not whole.per_sample or not new:
        return Size(0, new)
    if new % batch == 0 and new != old:
        return Size(new // batch, 0)
    if 2 * new > old:
        return Size(whole.per_sample, whole.fixed + new - old)
    return Size(0, new) if old % new else Size(Fraction(whole.per_sample * new) / old, 0)


@rule("unbind")
def _unbind(call: Call) -> Returned:
    x = call.sizes(0)
    if not x:
        return []
    at = call.integer(1) % len(x)
    return [(*x[:at], *x[at + 1 :])] * len(call.returned)


@rule("cat", "concat")
def _cat(call: Call) -> Returned:
    parts = [part for part in call.listed(0) if len(part) > 1 or part != fixed((0,))]
    if not parts or len({len(part) for part in parts}) > 1:
        return []
    first, at = parts[0], call.integer(1) % len(parts[0])
    return [(*first[:at], total(part[at] for part in parts), *first[at + 1 :])]


@rule("stack")
def _stack(call: Call) -> Returned:
    parts = call.listed(0)
    if not parts:
        return []
    at = call.integer(1) % (len(parts[0]) + 1)
    return [(*parts[0][:at], Size(0, len(parts)), *parts[0][at:])]


@rule("sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "argmax", "argmin", "norm")
def _reduce(call: Call) -> Returned:
    x, (made, *_) = call.sizes(0), (*call.returned, None)
    if x is None or made is None:
        return []
    at = {i % len(x) for i in call.integers(1)} if x else set()
    if not at:
        return [()] if not made.shape else []
    if len(made.shape) == len(x):
        return [tuple(Size(0, 1) if i in at else size for i, size in enumerate(x))]
    return [tuple(size for i, size in enumerate(x) if i not in at)]


@rule("index_select")
def _index_select(call: Call) -> Returned:
    x, index = call.sizes(0), call.sizes(2)
    if not x or not index:
        return []
    at = call.integer(1) % len(x)
    return [(*x[:at], index[0], *x[at + 1 :])]


@rule("gather", "nll_loss_backward", "nll_loss2d_backward")
def _like_second(call: Call) -> Returned:
    return [call.sizes(2 if call.op.name == "aten::gather" else 1)]


@rule("embedding")
def _embedding(call: Call) -> Returned:
    table, index = call.sizes(0), call.sizes(1)
    return [(*index, table[1])] if table and index is not None else []


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(call: Call) -> Returned:
    table, index, offsets = call.sizes(0), call.sizes(1), call.sizes(2)
    if not table or not index or not offsets:
        return []
    bags = offsets[0]
    if call.op.inputs[-2:-1] == (True,) or (call.op.inputs[7:8] == (True,)):
        bags = Size(bags.per_sample, bags.fixed - 1)
    near = {index[0].at(call.batch): index[0], bags.at(call.batch): bags}
    others = [
        tuple(near.get(size, Size(0, size)) for size in made.shape) if made else None
        for made in call.returned[1:]
    ]
    return [(bags, table[1]), *others]


@rule(
    *("embedding_dense_backward", "_embedding_bag_backward", "_embedding_bag_dense_backward"),
    *("embedding_backward", "embedding_sparse_backward", "_embedding_bag_sparse_backward"),
)
def _table_gradient(call: Call) -> Returned:
    return _fixed(call.returned)


def _fixed(made: Sequence[Tensor | None]) -> list[Dims | None]:
    return [None if tensor is None else fixed(tensor.shape) for tensor in made]


@rule(
    *("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "mkldnn_convolution"),
    *("cudnn_convolution", "miopen_convolution", "max_pool2d", "max_pool2d_with_indices"),
    *("avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
    *("upsample_nearest2d", "upsample_bilinear2d"),
)
def _by_sample(call: Call) -> Returned:
    x = call.sizes(0)
    return [
        (x[0], *fixed(made.shape[1:])) if x and made is not None else None for made in call.returned
    ]


@rule(
    *("convolution_backward", "native_layer_norm_backward", "native_batch_norm_backward"),
    *("cudnn_batch_norm_backward", "miopen_batch_norm_backward", "native_group_norm_backward"),
    "_fused_rms_norm_backward",
)
def _gradients(call: Call) -> Returned:
    x = call.sizes(0 if call.op.name.startswith(("aten::cudnn", "aten::miopen")) else 1)
    return [x, *_fixed(call.returned[1:])]


@rule(
    *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "_batch_norm_impl_index"),
    "miopen_batch_norm",
)
def _batch_norm(call: Call) -> Returned:
    return [call.sizes(0), *_fixed(call.returned[1:])]


def rule_of(name: str) -> Rule | None:
    """The rule for an op, if it needs one."""
    if name.startswith("fbgemm::") and "embedding" in name and "backward" not in name:
        return _lookup
    return RULES.get(name)


def _lookup(call: Call) -> Returned:
    """Of a table-batched lookup: as many rows as bags, by the offsets, which end each table's."""
    lists = [dims[0][0] for dims in call.dims if len(dims) == 1 and len(dims[0]) == 1]
    ends = [size for size in lists if size.per_sample and size.fixed == 1]
    sizes: list[tuple[Size | None, ...] | None] = []
    for made in call.returned:
        if made is None or len(made.shape) != 2 or not made.shape[0] or not ends:
            sizes.append(None)
            continue
        tables = Fraction(ends[-1].at(call.batch) - 1, made.shape[0])
        bags = Size(ends[-1].per_sample / tables, 0)
        sizes.append((bags if tables.denominator == 1 else None, Size(0, made.shape[1])))
    return sizes
