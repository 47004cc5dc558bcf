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
from functools import partial
from types import MappingProxyType

from perfmodel.ops.spec import ROWS_COLS, VECTOR, op, streaming

_LAYOUT = {"strided": 0.0, "broadcast": 0.0, "apart": 0.0}
_rows = partial(op, family=VECTOR, dims="rows cols")
_TWO = streaming(ROWS_COLS, reads="2")
_rows(
    "add add_inplace mul div pow threshold_backward sigmoid_backward silu_and_mul",
    **_TWO,
    defaults=_LAYOUT,
)
_rows(
    "add_scalar mul_scalar div_scalar pow_scalar relu gelu silu sigmoid tanh",
    **streaming(ROWS_COLS),
    defaults=_LAYOUT,
)
_rows("fill", **streaming(ROWS_COLS, reads="0", flop="0"))
# Of 16 bits, to those of the row's dtype.
_rows("quantise", size=ROWS_COLS, flop="2*rows*cols", read="2*rows*cols", written="item*rows*cols")
_rows("rotary_embedding", **streaming(ROWS_COLS, reads="2", flop="3"))

# Any other arity: operands of full size, in elements of the row's dtype. One that is broadcast
# counts for the share that it is of a full one, one of another dtype for its share of bytes.
# `random`: calls of Philox per element, each of which gives four random numbers. `by_rows`: rows
# that a block of `threads` each takes, or `resident` blocks per multiprocessor in turn (0: one
# each).
_ANY = {"reads": 1.0, "writes": 1.0}
op(
    "elementwise",
    VECTOR,
    "elements",
    **streaming("elements", "reads", "writes", "flop_per_element"),
    defaults=_ANY
    | {"flop_per_element": 1, "random": 0, "widened": 0}
    | {"by_rows": 0, "threads": 128, "resident": 0}
    | _LAYOUT,
)
op("random", VECTOR, "elements", kernels="random", **streaming("elements", reads="0", flop="10"))

# Many small tensors in few launches: `elements` of each of `tensors`, `largest` of the largest.
_ALL = "elements*tensors"
op(
    "foreach",
    VECTOR,
    "elements tensors",
    kernels="optimizer",
    **streaming(_ALL, "reads", "writes"),
    defaults={**_ANY, "largest": 0},
)

# Two logarithms per element forward, a division backward.
_rows(
    "binary_cross_entropy",
    kernels="loss",
    **streaming(ROWS_COLS, reads="2", flop="40"),
    directions="fwd bwd",
    other_directions={"bwd": streaming(ROWS_COLS, reads="2", flop="4")},
)

# By optimizer: how many states it keeps of a parameter's own shape, and FLOP.
_OPTIMIZERS = {
    "sgd": (0, 2),
    "adagrad": (1, 6),
    "rowwise_adagrad": (0, 6),
    "adam": (2, 12),
    "adamw": (2, 14),
    "lamb": (2, 20),
}
for _name, (_states, _flop) in _OPTIMIZERS.items():
    op(
        f"optimizer_{_name}",
        "optimizer",
        "elements tensors",
        **streaming(_ALL, f"{2 + _states}", f"{1 + _states}", f"{_flop}"),
        directions="update",
        defaults={"largest": 0},
    )

# A maximum keeps where in its window it was, as int64. Windows have `sides`.
_WINDOW = "outputs*kernel_size**2"
for _name, _written in (("max_pool", "(item + 8)*outputs"), ("avg_pool", "item*outputs")):
    op(
        _name,
        "pooling",
        "elements outputs",
        size=_WINDOW,
        flop=_WINDOW,
        read="item*elements",
        written=_written,
        directions="fwd bwd",
        other_directions={"bwd": {"size": "", "read": _written, "written": "item*elements"}},
        defaults={"kernel_size": 1, "sides": 2},
    )

for _name in ("sum", "mean", "amax", "vector_norm"):
    _rows(_name, kernels="reduction", **streaming(ROWS_COLS, writes="1/cols"))
_rows("sum_rows", kernels="reduction", **streaming(ROWS_COLS, writes="1/rows"))


def _normalisation(
    names: str,
    flop: tuple[str, str],
    weights: str = "0",
    *,
    family: str = VECTOR,
    kernels: str = "norm",
    defaults: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """`flop` per element forward and backward, which reads the gradient and what was saved;
    `weights` are read, and their gradients written, per element."""
    backward = streaming(ROWS_COLS, f"2 + {weights}", f"1 + {weights}", flop[1])
    op(
        names,
        family,
        "rows cols",
        kernels=kernels,
        **streaming(ROWS_COLS, reads=f"1 + {weights}", flop=flop[0]),
        directions="fwd bwd",
        other_directions={"bwd": backward},
        defaults=defaults,
    )


_normalisation("softmax log_softmax", ("4", "4"), kernels="softmax", defaults={"strided": 0})
_normalisation("layer_norm", ("8", "12"), "2*(1/rows)")
_normalisation("rms_norm", ("4", "8"), "1/rows")
_normalisation("group_norm", ("8", "12"))
# Of `cols` channels with `rows` values each, whatever the layout in memory. `statistics` 0: those
# of training are used, as in inference.
_normalisation(
    "batch_norm",
    ("8", "12"),
    family="channel",
    defaults={"statistics": 1},
)
