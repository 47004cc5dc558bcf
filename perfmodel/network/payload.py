"""What quantised communication puts on the wire, and what its codec adds on the device."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import ModelError
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Codec:
    """How values are encoded before a collective and decoded after it."""

    name: str
    bytes_per_element: float
    bytes_per_row: float
    """Scale and bias that each row of the payload carries."""

    def wire_bytes(self, elements: Floats, row_elements: float) -> Floats:
        """Bytes of `elements` encoded, `row_elements` to a row."""
        return elements * (self.bytes_per_element + self.bytes_per_row / max(row_elements, 1.0))

    def kernel_bytes(
        self, elements: Floats, row_elements: float, value_bytes: float = 4.0
    ) -> Floats:
        """What one kernel that encodes or decodes reads and writes; rowwise ones read twice."""
        reads = 2.0 if self.bytes_per_row else 1.0
        values = elements * value_bytes * reads
        return values + self.wire_bytes(elements, row_elements)


CODECS = {
    codec.name: codec
    for codec in (
        Codec("fp32", 4.0, 0.0),
        Codec("fp16", 2.0, 0.0),
        Codec("bf16", 2.0, 0.0),
        Codec("fp8", 1.0, 0.0),
        Codec("int8", 1.0, 8.0),
        Codec("int4", 0.5, 4.0),
    )
}
"""By the name of the type on the wire; rowwise int8 carries fp32 scale and bias, int4 fp16.

Source: TorchRec's fbgemm_qcomm_codec and FBGEMM's fused rowwise formats.
"""


def codec(name: str) -> Codec:
    """The codec of that name; raises `ModelError` for another."""
    found = CODECS.get(name)
    if found is None:
        raise ModelError(f"codec {name!r}: expected one of {', '.join(CODECS)}")
    return found
