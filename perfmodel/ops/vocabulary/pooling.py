"""Pooling over windows of `kernel_size x kernel_size`: from `elements` inputs to `outputs`."""

from __future__ import annotations

from perfmodel.ops.spec import OPS, Dims, Floats, OpSpec

POOLING = "pooling"
DIMS = ("elements", "outputs")
INDEX_BYTES = 8.0


def _window(dims: Dims) -> Floats:
    return dims["outputs"] * dims["kernel_size"] ** 2


def _pooling(index_bytes: float) -> OpSpec:
    """`index_bytes` per output: where the largest of its window was."""
    defaults = {"kernel_size": 1.0}
    return OpSpec(
        family=POOLING,
        dims=DIMS,
        defaults=defaults,
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
