"""Reductions, softmax and norms over `rows x cols`; they run along `cols` unless said otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec
from perfmodel.ops.streaming import NOTHING, VECTOR, Amount, rows_cols, streaming

ROWS_COLS = ("rows", "cols")
BOTH = ("fwd", "bwd")


def _per_row(dims: Dims) -> Floats:
    return 1.0 / dims["cols"]


def _per_column(dims: Dims) -> Floats:
    return 1.0 / dims["rows"]


def _normalisation(
    forward_flop: float,
    backward_flop: float,
    weights: Amount = 0.0,
    *,
    family: str = VECTOR,
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
        defaults=defaults,
        directions=BOTH,
        other_directions={"bwd": backward},
    )


for _name in ("sum", "mean", "amax", "vector_norm"):
    OPS.register(_name)(streaming(rows_cols, ROWS_COLS, writes=_per_row))
OPS.register("sum_rows")(streaming(rows_cols, ROWS_COLS, writes=_per_column))
OPS.register("softmax")(_normalisation(4.0, 4.0))
OPS.register("log_softmax")(_normalisation(4.0, 4.0))
OPS.register("layer_norm")(_normalisation(8.0, 12.0, lambda dims: 2.0 * _per_column(dims)))
OPS.register("rms_norm")(_normalisation(4.0, 8.0, _per_column))
OPS.register("group_norm")(_normalisation(8.0, 12.0))

# Of `cols` channels with `rows` values each, whatever the layout in memory. `native`: PyTorch's own
# kernels instead of a library's; `statistics` 0: those of training are used, as in inference.
OPS.register("batch_norm")(
    _normalisation(8.0, 12.0, family="channel", defaults={"native": 0.0, "statistics": 1.0})
)
