"""PyTorch's words for number types, in the words of this package."""

from __future__ import annotations

_WORDS = {
    "fp64": ("double", "float64"),
    "fp32": ("float", "float32"),
    "fp16": ("c10::Half", "half", "float16", "at::Half"),
    "bf16": ("c10::BFloat16", "bfloat16", "at::BFloat16"),
    "fp8": (
        *("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz"),
        *("c10::Float8_e5m2fnuz", "c10::Float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2"),
    ),
    "int64": ("long int", "long", "int64", "long long", "unsigned long", "uint64"),
    "int32": ("int", "int32", "unsigned int", "uint32", "c10::qint32"),
    "int16": ("short", "short int", "int16", "unsigned short", "uint16"),
    "int8": ("signed char", "char", "int8", "c10::qint8"),
    "uint8": ("unsigned char", "byte", "uint8", "c10::quint8", "c10::bits8"),
    "bool": ("bool",),
    "int4": ("c10::quint4x2",),
    "nvfp4": ("c10::Float4_e2m1fn_x2",),
    "complex64": ("c10::complex<float>", "complexfloat"),
    "complex128": ("c10::complex<double>", "complexdouble"),
}
"""Our word, to those of profiles, execution traces and collectives."""

_OURS = {word.lower(): ours for ours, words in _WORDS.items() for word in words}


def dtype_of_torch(word: str) -> str | None:
    """`fp32` for `float` or `Float`, `bf16` for `c10::BFloat16`, …; None for a word not known."""
    return _OURS.get(word.lower())
