"""How many bytes one element takes, and one stored row of an embedding table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.arrays import Floats
from perfmodel.errors import ModelError

_STORED = {
    16.0: ("complex128",),
    8.0: ("fp64", "int64", "complex64"),
    4.0: ("fp32", "tf32", "int32"),
    2.0: ("fp16", "bf16", "int16"),
    1.0: ("fp8", "fp8_static", "fp8_block", "int8", "uint8", "bool", "int8_wo"),
    0.5: ("nvfp4", "int4", "int4_wo"),
}
"""Bytes, to the dtypes stored so; of mixed schemes, those of the weights."""

_ITEM_BYTES = {dtype: size for size, dtypes in _STORED.items() for dtype in dtypes}


def item_bytes(dtypes: Sequence[str]) -> NDArray[np.float64]:
    """Bytes per element, one per dtype; raises `ModelError` for a dtype that is not known."""
    known = {}
    for dtype in set(dtypes):
        if dtype not in _ITEM_BYTES:
            raise ModelError(f"unknown dtype {dtype!r}; one of {', '.join(sorted(_ITEM_BYTES))}")
        known[dtype] = _ITEM_BYTES[dtype]
    return np.array([known[dtype] for dtype in dtypes], np.float64)


def is_known(dtype: str) -> bool:
    """Whether the bytes of this dtype are known."""
    return dtype in _ITEM_BYTES


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
