"""How many launches a library call takes on one target, where targets differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil

import numpy as np

from perfmodel.lowering.piece import LOWERINGS, Lowering, Piece
from perfmodel.lowering.records import by_record
from perfmodel.lowering.rules import convolution
from perfmodel.ops.graph import Op
from perfmodel.ops.operators import OPERATORS
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import input_area, kernel_area, output_area

CONV = "conv2d"

TILE, MAX_TILES, MIN_K = 64, 24, 256
"""cuBLAS splits the contraction, and adds up in a second kernel, when so few tiles share so long a
one. Source: chosen on the fp32 products of one shared A100 trace (right for 119 of 132 shapes);
of traces not looked at, right for 16 of 19 on V100 (`tests/lowering/test_split_k.py`)."""
SPLIT_K_LAUNCHES = 2

CUDNN_LAUNCHES = 2
"""Per convolution: cuDNN prepares offsets or zeros first.

Source: means of two ResNet traces on V100 with PyTorch 1.9 (1.9 forward, 2.6 and 2.4 backward).
"""
CAST_READS = 2.0
"""An fp32 element in units of a 16-bit one."""
CONVOLUTIONS: dict[str, Lowering] = {
    "cudnn_convolution": convolution.of_library,
    "miopen_convolution": convolution.of_library,
    "convolution_backward": convolution.convolution_backward,
    **{
        f"{name}_{part}": convolution.library_backward
        for name in ("cudnn_convolution_backward", "miopen_convolution_backward")
        for part in convolution.PARTS
    },
}
PRODUCTS = {name: by_record(OPERATORS[f"aten::{name}"]) for name in ("mm", "addmm")}


def cudnn(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's convolutions with the launches before them."""
    return [
        replace(piece, launches=CUDNN_LAUNCHES) if piece.op == CONV else piece for piece in rule(op)
    ]


def miopen(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's convolutions, each with its operands to the layout of its kernels and back.

    Two transposes in, a fill of the result, one transpose out; the gradient of the weight is added
    up in fp32 and cast. Source: the kernels of a ResNet trace on MI300X in bf16.
    """
    return [each for piece in rule(op) for each in _transposed(piece)]


def _transposed(piece: Piece) -> Sequence[Piece]:
    if piece.op != CONV:
        return (piece,)
    *read, written = operands(piece)
    layouts = [
        Piece("transpose_copy", {"rows": rows, "cols": cols}, piece.dtype)
        for rows, cols in (*read, written)
    ]
    zeros = Piece("fill", {"rows": written[0], "cols": written[1]}, piece.dtype)
    cast = Piece(
        "elementwise", {"elements": written[0] * written[1], "reads": CAST_READS}, piece.dtype
    )
    is_summed = piece.direction == "bwd_weight" and piece.dtype != "fp32"
    return (*layouts[:2], zeros, piece, *(cast,) * is_summed, layouts[2])


def operands(piece: Piece) -> tuple[tuple[float, float], ...]:
    """(rows, cols) of what a convolution reads, reads and writes, in order; a row per channel."""
    batch, ins, outs, groups = (
        piece.dims[name] for name in ("batch", "in_channels", "out_channels", "groups")
    )
    dims = {name: np.full(1, value) for name, value in {**OPS[CONV].defaults, **piece.dims}.items()}
    image, made, kernel = (float(area(dims)[0]) for area in (input_area, output_area, kernel_area))
    values, result, weight = (
        (batch * ins, image),
        (batch * outs, made),
        (outs * ins / groups, kernel),
    )
    order = {
        "fwd": (values, weight, result),
        "bwd_data": (result, weight, values),
        "bwd_weight": (values, result, weight),
    }
    return order[piece.direction]


def split_k(rule: Lowering, op: Op) -> Sequence[Piece]:
    """The rule's products, those with a split contraction as two launches."""
    return [
        replace(piece, launches=SPLIT_K_LAUNCHES) if is_split(piece) else piece
        for piece in rule(op)
    ]


def is_split(product: Piece) -> bool:
    """Whether cuBLAS splits the contraction."""
    m, n, k = (product.dims[name] for name in "mnk")
    tiles = ceil(m / TILE) * ceil(n / TILE)
    return min(m, n) > 1 and tiles <= MAX_TILES and k >= MIN_K


for _name, _rule in CONVOLUTIONS.items():
    LOWERINGS.register(f"cuda/aten::{_name}")(partial(cudnn, _rule))
    LOWERINGS.register(f"rocm/aten::{_name}")(partial(miopen, _rule))
for _name, _rule in PRODUCTS.items():
    LOWERINGS.register(f"cuda/aten::{_name}")(partial(split_k, _rule))
