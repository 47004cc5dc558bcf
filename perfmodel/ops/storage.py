"""How many bytes one element takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
