"""Work of the ops of the measurement table, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS

ROW = np.array([0])
CONV = {"op": "conv2d", "batch": 2, "in_channels": 3, "out_channels": 4} | {
    "kernel_size": 3,
    "input_size": 8,
    "padding": 1,
}
TBE = {"op": "tbe", "tables": 2, "batch": 4, "lookups": 10, "dim": 8, "hash_size": 100}
BAG = {"op": "embedding_bag", "hash_size": 100, "dim": 4, "pooling": 5, "batch": 2}


def work(record: dict[str, object]) -> tuple[float, float, float]:
    """(FLOP, bytes read, bytes written) of one row."""
    rows = Rows.of([record])
    op = str(record["op"])
    spec = OPS[op].of(rows.direction[0])
    dims, item = rows.dims_of(op, ROW), rows.item_bytes[ROW]
    return (
        float(spec.flop(dims)[0]),
        float(spec.read_bytes(dims, item)[0]),
        float(spec.written_bytes(dims, item)[0]),
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"op": "add", "rows": 2, "cols": 3}, (6, 48, 24)),
        ({"op": "relu", "rows": 2, "cols": 3, "dtype": "fp16"}, (6, 12, 12)),
        ({"op": "fill", "rows": 2, "cols": 3}, (0, 0, 24)),
        ({"op": "elementwise", "elements": 10, "reads": 1.5, "writes": 0.25}, (10, 60, 10)),
        ({"op": "foreach", "elements": 5, "tensors": 4, "reads": 2}, (20, 160, 80)),
        ({"op": "sum", "rows": 2, "cols": 3}, (6, 24, 8)),
        ({"op": "sum_rows", "rows": 2, "cols": 3}, (6, 24, 12)),
        ({"op": "softmax", "rows": 2, "cols": 3, "direction": "bwd"}, (24, 48, 24)),
        ({"op": "layer_norm", "rows": 2, "cols": 3}, (48, 24 + 24, 24)),
        ({"op": "batch_norm", "rows": 2, "cols": 3}, (48, 24, 24)),
        ({"op": "copy", "elements": 20, "dtype": "bf16"}, (0, 20, 20)),
        ({"op": "cat", "rows": 2, "cols": 3, "tensors": 5}, (0, 120, 120)),
        ({"op": "index_select", "rows": 2, "cols": 3}, (0, 24 + 16, 24)),
        ({"op": "index_add", "rows": 2, "cols": 3}, (6, 48 + 16, 24)),
        ({"op": "copy_h2d", "elements": 10}, (0, 40, 40)),
        ({"op": "sort", "rows": 1, "cols": 8, "dtype": "int64"}, (24, 64, 128)),
        ({"op": "topk", "rows": 2, "cols": 8, "k": 3}, (16, 64, 72)),
        ({"op": "jagged_permute", "elements": 10, "segments": 4}, (0, 40 + 64, 40)),
        ({"op": "bounds_check", "elements": 10, "segments": 4, "dtype": "int64"}, (10, 112, 0)),
        (CONV, (2 * 2 * 4 * 64 * 27, 4 * (2 * 3 * 64 + 4 * 27), 4 * 2 * 4 * 64)),
        (CONV | {"direction": "bwd_data"}, (27648, 4 * (512 + 108), 4 * 384)),
        (CONV | {"direction": "bwd_weight"}, (27648, 4 * (384 + 512), 4 * 108)),
        (BAG, (40, 40 * 4 + 80, 32)),
        (BAG | {"direction": "bwd"}, (40, 32 + 80, 160 + 80)),
        (BAG | {"direction": "bwd", "dense": 1}, (40, 32 + 80, (100 + 10) * 16)),
        (BAG | {"direction": "update", "unique_rows": 6}, (80, 16 * 16 + 80, 6 * 16)),
        (TBE, (80, 320 + 80 + 64, 256)),
        (TBE | {"weighted": 1}, (160, 320 + 120 + 64, 256)),
        (
            TBE | {"direction": "bwd", "state_bytes": 4, "unique_rows": 5},
            (240, 256 + 144 + 5 * 36, 5 * 36),
        ),
        ({"op": "attention", "b": 1, "s": 4, "heads": 2, "head_dim": 8}, (1024, 768, 256)),
        (
            {"op": "attention", "b": 1, "s": 4, "heads": 2, "head_dim": 8, "causal": 1},
            (640, 768, 256),
        ),
        (
            {"op": "decode_attention", "b": 1, "s": 1, "heads": 2, "head_dim": 8}
            | {"s_kv": 9, "window_size": 4},
            (4 * 2 * 8 * 4, 4 * (16 + 2 * 4 * 16), 64),
        ),
        (
            {"op": "moe", "tokens": 4, "hidden": 2, "inter": 3, "topk": 2, "experts": 5},
            (6 * 8 * 6, 4 * (8 + 3 * 6 * 5), 32),
        ),
        ({"op": "quantise", "rows": 2, "cols": 8, "dtype": "fp8"}, (32, 32, 16)),
        ({"op": "optimizer_adam", "elements": 5, "tensors": 2}, (120, 160, 120)),
        ({"op": "all_reduce", "size_bytes": 1000, "ranks": 4}, (187.5, 1500, 1500)),
        ({"op": "all_to_all", "size_bytes": 1000, "ranks": 4}, (0, 750, 750)),
        ({"op": "max_pool", "elements": 16, "outputs": 4, "kernel_size": 2}, (16, 64, 48)),
    ],
    ids=lambda value: str(value.get("op")) if isinstance(value, dict) else "",
)
def test_work(record: dict[str, object], expected: tuple[float, float, float]) -> None:
    assert work(record) == expected


def test_convolution_that_is_not_square() -> None:
    own = {"kernel_h": 1, "kernel_w": 3, "input_h": 1, "input_w": 10, "stride_w": 2, "stride_h": 1}
    row = {"op": "conv2d", "batch": 1, "in_channels": 1, "out_channels": 1, **own}
    assert work(row) == (2 * 4 * 3, 4 * (10 + 3), 16)


def test_a_group_of_dims_needs_one_of_them() -> None:
    with pytest.raises(ModelError, match=r"conv2d \(row 0\): input_size is missing"):
        work({"op": "conv2d", "batch": 1, "in_channels": 1, "out_channels": 1, "kernel_size": 1})


def test_every_op_streams_at_least_nothing() -> None:
    for op in OPS:
        spec = OPS[op]
        chosen = (name for group in spec.one_of for name in group[:1])
        twos = dict.fromkeys((*spec.dims, *chosen), 2.0)
        for direction in spec.directions:
            found = work({"op": op, "direction": direction, **twos})
            assert min(found) >= 0, op
            assert np.isfinite(found).all(), op


def test_one_value_may_stand_beside_two_billion() -> None:
    (row,) = [{"op": "elementwise", "elements": 2e9, "reads": 1.0 + 1 / 2e9, "writes": 1 / 2e9}]
    found = Rows.of([row]).dims_of("elementwise", np.array([0]))
    assert found["writes"][0] == 1 / 2e9
