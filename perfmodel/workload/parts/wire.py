"""Pooled rows in fewer bytes on the wire: FBGEMM's rowwise codecs of TorchRec's exchanges."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.recorder import Recorder

ROWWISE = {"int8": ("Fused8Bit", 8), "fp8": ("FP8", 8)}
"""Wire type to the name of its codec, and what a row's scale takes beside its bytes: fp32 scale and
bias (int8); fp32 scale, padded (fp8). Source: FBGEMM, quantize_ops; the latter recalled."""
ROW = 128
"""Elements of a row of the payload. assumed: TorchRec's `row_dim` is the embedding's dim."""


def on_wire(elements: int, wire: str) -> int:
    """Elements of the wire's type for so many values."""
    if wire not in ROWWISE:
        return elements
    return elements + -(-elements // ROW) * ROWWISE[wire][1]


def carried_as(wire: str) -> str:
    """The dtype of the payload."""
    return "uint8" if wire in ROWWISE else wire


def encoded(r: Recorder, values: Tensor, wire: str) -> Tensor:
    """`values` `[n]` as they go out."""
    if wire not in ROWWISE:
        return to_dtype(r, values, wire) if wire != values.dtype else values
    name, scale = ROWWISE[wire]
    rows = -(-values.elements // ROW)
    out = r.tensor((rows, ROW + scale), "uint8")
    given = r.view(values, (rows, ROW), (ROW, 1))
    to = "FloatToFP8RowwiseQuantized" if name == "FP8" else "FloatToFused8BitRowwiseQuantized"
    r.leaf(f"fbgemm::{to}", (given,), out)
    return r.view(out, (on_wire(values.elements, wire),), (1,))


def decoded(r: Recorder, payload: Tensor, elements: int, wire: str) -> Tensor:
    """What came in, as values `[elements]`; of a plain type as it is."""
    if wire not in ROWWISE:
        return payload
    name, _ = ROWWISE[wire]
    of = "FP8RowwiseQuantizedToFloat" if name == "FP8" else "Fused8BitRowwiseQuantizedToFloat"
    out = r.tensor((elements,))
    r.leaf(f"fbgemm::{of}", (payload,), out)
    return out
