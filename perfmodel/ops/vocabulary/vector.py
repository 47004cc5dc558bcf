"""Elementwise ops, losses, optimizers, pooling, reductions, softmax and norms.

`strided` = 1 where operands are not laid out alike (transposed, sliced), else `broadcast` = 1 where
one is smaller, else `apart` = 1 where stretches of whole sectors of one lie apart: the kernel then
computes where each element lies, one by one. A number is neither. `widened` = 1 where values become
those of a wider type.

Per element: the gradient and the parameter are read, the parameter written; each state tensor is
read and written.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.arrays import Floats
from perfmodel.ops.spec import (
    NOTHING,
    OPS,
    VECTOR,
    Amount,
    Dims,
    OpSpec,
    elements,
    rows_cols,
    streaming,
)

ROWS_COLS = ("rows", "cols")
STRIDED = {"strided": 0.0}
LAYOUT = {**STRIDED, "broadcast": 0.0, "apart": 0.0}


def _reads(dims: Dims) -> Floats:
    return dims["reads"]


def _writes(dims: Dims) -> Floats:
    return dims["writes"]


for _name in (
    "add",
    "add_inplace",
    "mul",
    "div",
    "pow",
    "threshold_backward",
    "sigmoid_backward",
    "silu_and_mul",
):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, reads=2.0, defaults=LAYOUT))
for _name in ("add_scalar", "mul_scalar", "div_scalar", "pow_scalar"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, defaults=LAYOUT))
for _name in ("relu", "gelu", "silu", "sigmoid", "tanh"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, defaults=LAYOUT))
OPS.register("fill")(streaming(rows_cols, ROWS_COLS, reads=0.0, flop=0.0))
OPS.register("rotary_embedding")(streaming(rows_cols, ROWS_COLS, reads=2.0, flop=3.0))

# Any other arity: operands of full size, in elements of the row's dtype. One that is broadcast
# counts for the share that it is of a full one, one of another dtype for its share of bytes.
# `random`: calls of Philox per element, each of which gives four random numbers. `by_rows`: rows
# that a block of `threads` each takes, or `resident` blocks per multiprocessor in turn (0: one
# each).
OPS.register("elementwise")(
    streaming(
        elements,
        ("elements",),
        reads=_reads,
        writes=_writes,
        flop=lambda dims: dims["flop_per_element"],
        defaults={"reads": 1.0, "writes": 1.0, "flop_per_element": 1.0, "random": 0.0}
        | {"widened": 0.0, "by_rows": 0.0, "threads": 128.0, "resident": 0.0}
        | LAYOUT,
    )
)
OPS.register("random")(streaming(elements, ("elements",), reads=0.0, flop=10.0, kernels="random"))

# Many small tensors in few launches: `elements` of each of `tensors`, `largest` of the largest.
LARGEST = {"largest": 0.0}
OPS.register("foreach")(
    streaming(
        lambda dims: dims["elements"] * dims["tensors"],
        ("elements", "tensors"),
        reads=_reads,
        writes=_writes,
        defaults={"reads": 1.0, "writes": 1.0} | LARGEST,
        kernels="optimizer",
    )
)


# Two logarithms per element forward, a division backward.
OPS.register("binary_cross_entropy")(
    streaming(
        rows_cols,
        ("rows", "cols"),
        reads=2.0,
        flop=40.0,
        kernels="loss",
        directions=("fwd", "bwd"),
        other_directions={"bwd": streaming(rows_cols, ("rows", "cols"), reads=2.0, flop=4.0)},
    )
)


OPTIMIZER = "optimizer"
_STATES_AND_FLOP = {
    "sgd": (0.0, 2.0),
    "adagrad": (1.0, 6.0),
    "rowwise_adagrad": (0.0, 6.0),
    "adam": (2.0, 12.0),
    "adamw": (2.0, 14.0),
    "lamb": (2.0, 20.0),
}


def _all(dims: Dims) -> Floats:
    return dims["elements"] * dims["tensors"]


for _optimizer, (_states, _flop) in _STATES_AND_FLOP.items():
    OPS.register(f"optimizer_{_optimizer}")(
        streaming(
            _all,
            ("elements", "tensors"),
            reads=2.0 + _states,
            writes=1.0 + _states,
            flop=_flop,
            defaults=LARGEST,
            family=OPTIMIZER,
            directions=("update",),
        )
    )


POOLING = "pooling"
DIMS = ("elements", "outputs")
INDEX_BYTES = 8.0


def _window(dims: Dims) -> Floats:
    return dims["outputs"] * dims["kernel_size"] ** 2


def _pooling(index_bytes: float) -> OpSpec:
    """`index_bytes` per output: where the largest of its window was. Windows have `sides`."""
    defaults = {"kernel_size": 1.0, "sides": 2.0}
    return OpSpec(
        family=POOLING,
        dims=DIMS,
        defaults=defaults,
        size=_window,
        flop=_window,
        read_bytes=lambda d, item: item * d["elements"],
        written_bytes=lambda d, item: (item + index_bytes) * d["outputs"],
        directions=("fwd", "bwd"),
        other_directions={
            "bwd": OpSpec(
                family=POOLING,
                dims=DIMS,
                defaults=defaults,
                flop=_window,
                read_bytes=lambda d, item: (item + index_bytes) * d["outputs"],
                written_bytes=lambda d, item: item * d["elements"],
            )
        },
    )


OPS.register("max_pool")(_pooling(INDEX_BYTES))
OPS.register("avg_pool")(_pooling(0.0))


BOTH = ("fwd", "bwd")


def _per_column(dims: Dims) -> Floats:
    return 1.0 / dims["rows"]


def _normalisation(
    forward_flop: float,
    backward_flop: float,
    weights: Amount = 0.0,
    *,
    family: str = VECTOR,
    kernels: str = "norm",
    defaults: Mapping[str, float] = NOTHING,
) -> OpSpec:
    """Forward reads and writes every element once; backward reads the gradient and what was saved.

    `weights` are read and their gradients written, per element.
    """

    def with_weights(count: float) -> Amount:
        return (lambda dims: count + weights(dims)) if callable(weights) else count + weights

    backward = streaming(
        rows_cols,
        ROWS_COLS,
        reads=with_weights(2.0),
        writes=with_weights(1.0),
        flop=backward_flop,
        family=family,
        defaults=defaults,
    )
    return streaming(
        rows_cols,
        ROWS_COLS,
        reads=with_weights(1.0),
        flop=forward_flop,
        family=family,
        kernels=kernels,
        defaults=defaults,
        directions=BOTH,
        other_directions={"bwd": backward},
    )


for _reduction in ("sum", "mean", "amax", "vector_norm"):
    OPS.register(_reduction)(
        streaming(rows_cols, ROWS_COLS, writes=lambda d: 1.0 / d["cols"], kernels="reduction")
    )
OPS.register("sum_rows")(streaming(rows_cols, ROWS_COLS, writes=_per_column, kernels="reduction"))
for _softmax in ("softmax", "log_softmax"):
    OPS.register(_softmax)(_normalisation(4.0, 4.0, kernels="softmax", defaults=STRIDED))
OPS.register("layer_norm")(_normalisation(8.0, 12.0, lambda dims: 2.0 * _per_column(dims)))
OPS.register("rms_norm")(_normalisation(4.0, 8.0, _per_column))
OPS.register("group_norm")(_normalisation(8.0, 12.0))

# Of `cols` channels with `rows` values each, whatever the layout in memory. `native`: PyTorch's own
# kernels instead of a library's, `beside` = 1 where its channels lie side by side; `statistics` 0:
# those of training are used, as in inference.
OPS.register("batch_norm")(
    _normalisation(
        8.0,
        12.0,
        family="channel",
        defaults={"native": 0.0, "beside": 0.0, "statistics": 1.0},
    )
)
