"""The number type that a kernel computes in, as far as its name tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("fp8", r"e4m3|e5m2|fp8|FP8|[Ff]loat8|^Cijk_[A-Za-z]+_[A-Za-z]+_(F8|B8)|nvjet_q"),
    ("int8", r"int8|imma|s8_?s8|i8i8|_i8_|i8816|i16832|^Cijk_[A-Za-z]+_[A-Za-z]+_I8"),
    ("tf32", r"tf32|xf32|TF32|nvjet_s|^Cijk_[A-Za-z]+_[A-Za-z]+_(S_MX|SB_MX|XS)|F32X"),
    (
        "bf16",
        r"bf16|[Bb][Ff]loat16|nvjet_t|^Cijk_[A-Za-z]+_[A-Za-z]+_(BBS|BSS|B_B|BB|B_)"
        r"|_ZN2ck\w*?(I|E\d*)t{2,}",
    ),
    (
        "fp16",
        r"fp16|(?<![bt])f16|[Hh]alf|hgemm|h884|h1688|h16816|float16|hcudnn"
        r"|^Cijk_[A-Za-z]+_[A-Za-z]+_(HHS|HSS|H_|HB|HH)|nvjet_h|DF16_|s884",
    ),
    ("tf32", r"tensorop_s1688|ampere_s1688|xmma_gemm_f32f32_tf32|tensorop_gemm_f32"),
    (
        "fp32",
        r"sgemm|scudnn|f32|fp32|\bfloat\b|simt_s|^Cijk_[A-Za-z]+_[A-Za-z]+_S(B|_|S)|gcgemm|_f_",
    ),
)

_TELLING_CHARACTERS = 300

_TABLE = tuple((dtype, re.compile(pattern)) for dtype, pattern in _PATTERNS)


@lru_cache(maxsize=1 << 16)
def dtype_of_kernel(name: str) -> str | None:
    """`fp32 tf32 fp16 bf16 fp8 int8`, or None when the name does not tell.

    For matrix products and convolutions this is the type of the units that run them: `tf32` only
    for tensor cores fed with fp32, `fp32` for the vector units. What is stored may be another type.
    """
    telling = name[:_TELLING_CHARACTERS]
    for dtype, pattern in _TABLE:
        if pattern.search(telling):
            return dtype
    return None


def dtypes_of_kernels(names: Iterable[str]) -> list[str | None]:
    """`dtype_of_kernel` of each name; every distinct name is matched once per process."""
    return [dtype_of_kernel(name) for name in names]
