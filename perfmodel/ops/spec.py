"""What a row of the measurement table may say: ops, with their dims and the work that they mean;
number types, with bytes of an element and of a stored row, words of kernels and of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import MappingProxyType
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.registry import Registry
from perfmodel.errors import ModelError

Dims = Mapping[str, Floats]
"""Dim to its values, one per row; float64, because products of dims overflow int64."""

Work = Callable[[Dims], Floats]
Bytes = Callable[[Dims, Floats], Floats]
"""From the dims and the bytes per element of each row's dtype."""


@dataclass(frozen=True, kw_only=True)
class OpSpec:
    """One op of the vocabulary: what a row must hold, and its work as functions of whole columns.

    The work is what the op cannot do without: multiply-adds count two; an operand that stays in
    registers or is broadcast counts once.
    """

    family: str
    """Which kernel models answer for it (`matmul vector embedding convolution optimizer …`)."""
    kernels: str = ""
    """What its kernels are, in the words of `ops.families`; empty: as of most of its family."""
    dims: tuple[str, ...]
    """Dims that a row must hold, each at least 1."""
    means: tuple[str, ...] = ()
    """Those of them that are means over many, and so need only be above 0."""
    defaults: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Dims that a row may leave out, and what they then are."""
    flop: Work
    read_bytes: Bytes
    written_bytes: Bytes
    size: Work | None = None
    """Elements that are worked through; None where there is no such number."""
    one_of: tuple[tuple[str, ...], ...] = ()
    """Groups of dims with defaults, of each of which a row must hold one."""
    holds: tuple[str, ...] = ()
    """Formulas of the dims that are true of each row."""
    directions: tuple[str, ...] = ("fwd",)
    other_directions: Mapping[str, OpSpec] = field(default_factory=lambda: MappingProxyType({}))
    """Where the work differs by direction: the same dims, with the work of that direction."""

    @property
    def kernel_family(self) -> str:
        """What its kernels are, as a profile of them would say; the family of what is no kernel."""
        return self.kernels or _KERNELS_OF_FAMILY.get(self.family, self.family)

    def of(self, direction: str) -> OpSpec:
        """The spec whose work is that of `direction`."""
        return self.other_directions.get(direction, self)


OPS: Registry[OpSpec] = Registry(
    "op", "perfmodel.ops", "perfmodel.ops.vocabulary", "perfmodel kernel"
)
"""Every op by its name in the measurement table."""


def directions() -> set[str]:
    """All directions that an op of the vocabulary runs in."""
    return {direction for name in OPS for direction in OPS[name].directions}


VECTOR = "vector"
"""Memory-bound work on a device: elementwise, reductions, norms, copies, gathers."""
_KERNELS_OF_FAMILY = {
    VECTOR: "elementwise",
    "channel": "norm",
    "jagged": "gather_scatter",
    "jagged_attention": "attention",
    "recurrent": "matmul",
    "collective": "communication",
    "transfer": "memcpy_host",
    "recorded": "other",
}

_FUNCTIONS = {
    name: getattr(np, name) for name in ("where", "minimum", "maximum", "log2", "floor")
} | {"__builtins__": {}}


@cache
def formula(text: str) -> Callable[..., Floats]:
    """A function of dims (and of `item`, the bytes per element) from its formula in Python, such as
    `2*b*m*n*k`; of a constant, one value per row."""
    code = compile(text, text, "eval")

    def value(dims: Dims, item: Floats | None = None) -> Floats:
        found = np.asarray(eval(code, _FUNCTIONS, {**dims, "item": item}), np.float64)
        return found if found.ndim else np.full(np.shape(next(iter(dims.values()))), float(found))

    return value


class Formulas(TypedDict, total=False):
    """Work as formulas: FLOP, bytes read and written, and elements worked through (or none)."""

    flop: str
    read: str
    written: str
    size: str


def op(
    names: str,
    family: str,
    dims: str,
    *,
    defaults: Mapping[str, float] = MappingProxyType({}),
    kernels: str = "",
    means: tuple[str, ...] = (),
    one_of: tuple[tuple[str, ...], ...] = (),
    holds: tuple[str, ...] = (),
    directions: str = "fwd",
    other_directions: Mapping[str, Formulas] = MappingProxyType({}),
    **work: Unpack[Formulas],
) -> None:
    """Register ops that do the same work: names and dims as words, work as formulas of the dims.

    `other_directions`: of a direction, the formulas that differ.
    """
    usual: Formulas = {"flop": "0", "read": "0", "written": "0", "size": "", **work}

    def spec(work: Formulas, others: Mapping[str, OpSpec]) -> OpSpec:
        return OpSpec(
            family=family,
            kernels=kernels,
            dims=tuple(dims.split()),
            means=means,
            defaults={name: float(value) for name, value in defaults.items()},
            flop=formula(work["flop"]),
            read_bytes=formula(work["read"]),
            written_bytes=formula(work["written"]),
            size=formula(work["size"]) if work["size"] else None,
            one_of=one_of,
            holds=holds,
            directions=tuple(directions.split()),
            other_directions=others,
        )

    others = {each: spec({**usual, **work}, {}) for each, work in other_directions.items()}
    OPS.register(*names.split())(spec(usual, others))


def streaming(
    size: str, reads: str = "1", writes: str = "1", flop: str = "1", read_too: str = "0"
) -> Formulas:
    """The work of an op over `size` elements of the row's dtype: `reads`, `writes` and `flop` are
    per element, `read_too` are bytes on top (indices, offsets)."""
    return {
        "size": size,
        "flop": f"({flop})*({size})",
        "read": f"item*({reads})*({size}) + {read_too}",
        "written": f"item*({writes})*({size})",
    }


ROWS_COLS = "rows*cols"


_ITEM_BYTES = {
    "complex128": 16.0,
    **dict.fromkeys(("fp64", "int64", "complex64"), 8.0),
    **dict.fromkeys(("fp32", "tf32", "int32"), 4.0),
    **dict.fromkeys(("fp16", "bf16", "int16"), 2.0),
    **dict.fromkeys(("fp8", "fp8_static", "fp8_block", "int8", "uint8", "bool", "int8_wo"), 1.0),
    **dict.fromkeys(("nvfp4", "int4", "int4_wo"), 0.5),
}
"""Of an element as it is stored; of mixed schemes, of the weights."""


def item_bytes(dtype: str) -> float:
    """Bytes per element; raises `ModelError` for a dtype that is not known."""
    if dtype not in _ITEM_BYTES:
        raise ModelError(f"unknown dtype {dtype[:60]!r}; one of {', '.join(sorted(_ITEM_BYTES))}")
    return _ITEM_BYTES[dtype]


def is_known(dtype: str) -> bool:
    return dtype in _ITEM_BYTES


GPU_ALIGNMENT_BYTES, CPU_ALIGNMENT_BYTES = 16, 1
"""What FBGEMM rounds rows up to, on a GPU and on a CPU."""
_BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4, "int2": 2}
_SCALED = ("int8", "int4", "int2")
_SCALE_BYTES = 4
"""Scale and offset of a row, both fp16."""
QUANTISED = (*_SCALED, "fp8")
"""Types that a row can be read in, but not updated in."""


def row_bytes(dtype: str, dim: ArrayLike, *, alignment_bytes: int = GPU_ALIGNMENT_BYTES) -> Floats:
    """Bytes of a row of `dim` elements (any shape) of `dtype`, scale and padding with it.

    Raises `ModelError` for an unknown dtype and for a dim below 1.

    Source: pytorch/FBGEMM, src/split_embeddings_cache_cuda.cu: fp32 4 D, fp16 2 D, fp8 D, int8
    D + 4, int4 D / 2 + 4, int2 D / 4 + 4, rounded up to 16 on a GPU.
    """
    if dtype not in _BITS:
        raise ModelError(f"rows of dtype {dtype!r}: expected one of {', '.join(sorted(_BITS))}")
    elements = np.asarray(dim, np.float64)
    if not (elements >= 1).all():
        raise ModelError(f"rows of {float(elements.min()):g} elements: expected at least 1")
    needed = np.ceil(elements * _BITS[dtype] / 8) + (_SCALE_BYTES if dtype in _SCALED else 0)
    return np.asarray(np.ceil(needed / alignment_bytes) * alignment_bytes)


DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")

_NVJET = r"|nvjet_(sm\d+_)?"
_TENSILE = r"^Cijk_[A-Za-z]+_[A-Za-z]+_"
_PATTERNS: tuple[dict[str, str], ...] = (
    {
        "fp8": rf"[eE]4m3|[eE]5m2|fp8|FP8|[Ff]loat8|{_TENSILE}(F8|B8){_NVJET}q",
        "int8": rf"int8|imma|s8_?s8|i8i8|_i8_|i8816|i16832|{_TENSILE}I8",
        "tf32": rf"tf32|xf32|TF32|{_TENSILE}(S_MX|SB_MX|XS)|F32X{_NVJET}s(?!m\d)",
        "bf16": rf"bf16|[Bb][Ff]loat16|DF16b|{_TENSILE}(BBS|BSS|B_B|BB|B_){_NVJET}t",
        "fp16": r"fp16|(?<![bt])f16|[Hh]alf|hgemm|h884|h1688|h16816|[Ff]loat16|hcudnn"
        rf"|{_TENSILE}(HHS|HSS|H_|HB|HH)|DF16_|s884{_NVJET}h",
    },
    {  # Of what no name of a narrower type was found in.
        "tf32": r"tensorop_s1688|ampere_s1688|xmma_gemm_f32f32_tf32|tensorop_gemm_f32",
        "fp32": rf"sgemm|scudnn|f32|fp32|\bfloat\b|simt_s|{_TENSILE}S(B|_|S)|gcgemm|_f_",
    },
)
_TABLE = tuple((dtype, re.compile(text)) for each in _PATTERNS for dtype, text in each.items())
_TELLING_CHARACTERS = 300

_COMPOSABLE = re.compile(r"\bck(_tile)?::|^_ZN(2ck|7ck_tile)|^Device\w+(Xdl|Wmma|Dl|WMMA|XDL)")
_FIRST_TYPE = re.compile(
    r"(?P<bf16>\bunsigned short\b|bhalf|\bBF16\b|bfloat16|__bf16)"
    r"|(?P<fp16>\b_Float16\b|\bhalf_t|\bF16\b|__half\b)|(?P<int8>\bsigned char\b|\bint8_t|\bI8\b)"
    r"|(?P<fp8>(?<![a-z])b?f(p8|8_)|\b_BitInt\(8\)|\bB?F8\b)|(?P<fp32>\bfloat\b|\bF32\b)|(?P<none>f4x2|f6x)"
    r"|(?:[IE]|S[\dA-Z]*_)(?:(?P<bf16_>DF16b|t)|(?P<fp16_>DF16_)|(?P<fp8_>DB8_)|(?P<int8_>a)|(?P<fp32_>f))"
    r"(?=DF16|DB8|[tfai]|S)"
)
"""The first of a product's types in a name of Composable Kernel, demangled or not: of operand A."""


@lru_cache(maxsize=1 << 16)
def dtype_of_kernel(name: str) -> str | None:
    """`fp32 tf32 fp16 bf16 fp8 int8`, or None when the name does not tell.

    For matrix products and convolutions this is the type of the units that run them: `tf32` only
    for tensor cores fed with fp32, `fp32` for the vector units. What is stored may be another type.
    """
    telling = name[:_TELLING_CHARACTERS]
    if _COMPOSABLE.search(telling) and (first := _FIRST_TYPE.search(name)):
        word = str(first.lastgroup).rstrip("_")
        return word if word in DTYPES else None
    for dtype, pattern in _TABLE:
        if pattern.search(telling):
            return dtype
    return None


def dtypes_of_kernels(names: Iterable[str]) -> list[str | None]:
    """`dtype_of_kernel` of each name; every distinct name is matched once per process."""
    return [dtype_of_kernel(name) for name in names]


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
