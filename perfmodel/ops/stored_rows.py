"""What one row of an embedding table takes where it is stored, in every number type."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import ModelError
from perfmodel.ops.spec import Floats

GPU_ALIGNMENT_BYTES, CPU_ALIGNMENT_BYTES = 16, 1
"""What FBGEMM rounds rows up to, on a GPU and on a CPU."""
_BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "int2": 2}
_SCALED = ("int8", "int4", "int2")
_SCALE_BYTES = 4
"""Scale and offset of a row, both fp16."""
_WIDE_SCALE_BYTES = 8
"""The same as fp32: rows that a CPU quantised to int8 (fused rowwise)."""
QUANTISED = (*_SCALED, "fp8")
"""Types that a row can be read in, but not updated in."""


def row_bytes(
    dtype: str, dim: ArrayLike, *, alignment_bytes: int = GPU_ALIGNMENT_BYTES, wide: bool = False
) -> Floats:
    """Bytes of a row of `dim` elements (any shape) of `dtype`, scale and padding with it.

    `wide`: int8 rows with scale and offset as fp32, as CPUs make them. Raises `ModelError` for an
    unknown dtype and for a dim below 1.

    Source: pytorch/FBGEMM, src/split_embeddings_cache_cuda.cu: fp32 4 D, fp16 2 D, fp8 D, int8
    D + 4, int4 D / 2 + 4, int2 D / 4 + 4, rounded up to 16 on a GPU; CPU int8 D + 8: recalled.
    """
    if dtype not in _BITS:
        raise ModelError(f"rows of dtype {dtype!r}: expected one of {', '.join(sorted(_BITS))}")
    elements = np.asarray(dim, np.float64)
    if not (elements >= 1).all():
        raise ModelError(f"rows of {float(elements.min()):g} elements: expected at least 1")
    scale = _WIDE_SCALE_BYTES if wide and dtype == "int8" else _SCALE_BYTES
    needed = np.ceil(elements * _BITS[dtype] / 8) + (scale if dtype in _SCALED else 0)
    return np.asarray(np.ceil(needed / alignment_bytes) * alignment_bytes)
