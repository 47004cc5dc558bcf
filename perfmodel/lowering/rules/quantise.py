"""FBGEMM's quantisation of what goes over the network."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import Op, Tensor
from perfmodel.lowering.arguments import rows_cols, size, tensor
from perfmodel.lowering.names import entries
from perfmodel.lowering.piece import LOWERINGS, Piece
from perfmodel.lowering.rules.elementwise import pointwise

TO = {
    "FloatToHFP8Quantized": "uint8",
    "HFP8QuantizedToFloat": "fp32",
    "FloatToBfloat16Quantized": "bf16",
    "Bfloat16QuantizedToFloat": "fp32",
    "FloatToMSFPQuantized": "uint8",
    "MSFPQuantizedToFloat": "fp32",
    "FP8RowwiseQuantizedToFloat": "fp32",
    "Fused8BitRowwiseQuantizedToFloat": "fp32",
}
ROWWISE = ("FloatToFP8RowwiseQuantized", "FloatToFused8BitRowwiseQuantized")


@LOWERINGS.register(*entries(*(f"fbgemm::{name}" for name in TO)))
def quantise(op: Op) -> Sequence[Piece]:
    """Each element to another type."""
    values = tensor(op, 0)
    return pointwise([values], [Tensor(values.shape, TO[op.name.removeprefix("fbgemm::")])])


@LOWERINGS.register(*entries(*(f"fbgemm::{name}" for name in ROWWISE)))
def quantise_rows(op: Op) -> Sequence[Piece]:
    """The range of each row, then its elements in one byte each."""
    values = tensor(op, 0)
    if not size(values.shape):
        return ()
    return (
        Piece("amax", rows_cols(values.shape), values.dtype),
        *pointwise([values], [Tensor(values.shape, "uint8")]),
    )
