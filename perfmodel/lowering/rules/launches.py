"""How many launches a library call takes on one target, where targets differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from perfmodel.graph.ops import Op
from perfmodel.lowering.piece import LOWERINGS, Lowering, Piece
from perfmodel.lowering.rules import convolution, matmul

TILE, MOST_TILES, LEAST_K = 64, 24, 256
"""cuBLAS splits the contraction, and adds up in a second kernel, when so few tiles share so long a
one. Source: fp32 products of one A100 trace (117 of 132 shapes), checked on V100 (16 of 19)."""
SPLIT_K_LAUNCHES = 2

LIBRARY_LAUNCHES = {"cuda": 2, "rocm": 5}
"""Per convolution: cuDNN prepares offsets or zeros; MIOpen transposes in and out and casts.

Source: means of ResNet traces, V100 with PyTorch 1.9 (1.9 to 2.6), MI300X in bf16 (5.1).
"""
CONVOLUTIONS: dict[str, Lowering] = {
    "cudnn_convolution": convolution.cudnn_convolution,
    "miopen_convolution": convolution.miopen_convolution,
    "convolution_backward": convolution.convolution_backward,
    "cudnn_convolution_backward_input": convolution.backward_input,
    "cudnn_convolution_backward_weight": convolution.backward_weight,
    "miopen_convolution_backward_input": convolution.backward_input,
    "miopen_convolution_backward_weight": convolution.backward_weight,
}
PRODUCTS: dict[str, Lowering] = {"mm": matmul.mm, "addmm": matmul.addmm}


def several(rule: Lowering, launches: int, op: Op) -> Sequence[Piece]:
    """The rule's convolutions, each with `launches` launches."""
    return [
        replace(piece, launches=launches) if piece.op == "conv2d" else piece for piece in rule(op)
    ]


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
    return min(m, n) > 1 and tiles <= MOST_TILES and k >= LEAST_K


for _target, _launches in LIBRARY_LAUNCHES.items():
    for _name, _rule in CONVOLUTIONS.items():
        LOWERINGS.register(f"{_target}/aten::{_name}")(partial(several, _rule, _launches))
for _name, _rule in PRODUCTS.items():
    LOWERINGS.register(f"cuda/aten::{_name}")(partial(split_k, _rule))
