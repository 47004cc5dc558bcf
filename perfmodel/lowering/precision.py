"""In which units matrix products and convolutions of fp32 operands run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.hardware import Device
from perfmodel.lowering.piece import Piece
from perfmodel.ops.spec import OPS
from perfmodel.ops.storage import is_known
from perfmodel.ops.vocabulary.convolution import CONVOLUTION
from perfmodel.ops.vocabulary.matmul import MATMUL

FP32, TF32 = "fp32", "tf32"


def in_units(
    pieces: Sequence[Piece], device: Device | None, tf32_matmul: bool, tf32_convolution: bool
) -> Iterator[Piece]:
    """The pieces, fp32 products as TF32 where the device has it and it is allowed.

    PyTorch allows it for convolutions unless told otherwise, for matrix products (since 1.12) only
    when told. A dtype that is not known counts as fp32.
    """
    allowed = {MATMUL: tf32_matmul, CONVOLUTION: tf32_convolution}
    has_tf32 = device is not None and device.target == "cuda" and bool(device.tf32_tflop_per_s)
    changed = {family for family, on in allowed.items() if on and has_tf32}
    for piece in pieces:
        if not is_known(piece.dtype):
            piece = replace(piece, dtype=FP32)
        if piece.dtype == FP32 and changed and OPS[piece.op].family in changed:
            piece = replace(piece, dtype=TF32)
        yield piece
