"""Kernel families: each file registers the shapes of its families and how to run one of them.

What is measured first says most about all: shapes cover their ranges evenly, families take turns.

A new family is one new file here; `FAMILIES` finds it, and so does an installed plug-in of the
entry-point group `perfmodel.collect.families`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, zip_longest
from math import prod
from typing import Any, TypeVar

from perfmodel.base.registry import Registry
from perfmodel.collect.backend import Backend

_DTYPES = {
    "fp64": (8, "float64"),
    "fp32": (4, "float32"),
    "tf32": (4, "float32"),
    "bf16": (2, "bfloat16"),
    "fp16": (2, "float16"),
    "fp8": (1, "float8_e4m3fn"),
    "int8": (1, "int8"),
    "int64": (8, "int64"),
}
DTYPE_BYTES = {name: size for name, (size, _) in _DTYPES.items()}
RANDOM_BLOCK = 1 << 20


@dataclass(frozen=True)
class Scope:
    """What a machine can be asked for: its kind, its dtypes, and how large a case may be."""

    kind: str
    dtypes: tuple[str, ...] = ("fp32",)
    max_bytes: float = 1.2e8
    max_flop: float = 4e9

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"

    def among(self, names: tuple[str, ...]) -> list[str]:
        """Those dtypes of `names` that the machine has, in the order of `names`."""
        return [name for name in names if name in self.dtypes]


@dataclass(frozen=True)
class Case:
    """One kernel to time: op, dtype, direction, variant and dims as in the measurement table."""

    op: str
    dtype: str
    dims: dict[str, float | str] = field(hash=False)
    direction: str = "fwd"
    variant: str = ""
    size_bytes: float = 0.0

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Cases of one group differ in dims only, but for the layout of their operands."""
        layout = str(self.dims.get("layout", ""))
        return (self.op, self.dtype, self.direction, self.variant or layout)

    def dim(self, name: str) -> int:
        return int(self.dims[name])


@dataclass(frozen=True)
class Prepared:
    """A case ready to run; `facts` are columns that only its data tell, such as `unique_rows`."""

    run: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """The cases of a family, in order of information, and how to prepare one of them."""

    cases: Callable[[Scope], Iterator[Case]]
    prepare: Callable[[Backend, Case], Prepared]


FAMILIES: Registry[Family] = Registry(
    "kernel family", "perfmodel.collect.families", "perfmodel.collect.families"
)


def scope_of(backend: Backend) -> Scope:
    """The dtypes that this machine computes in, and sizes that take it milliseconds."""
    torch = backend.torch
    int8 = ("int8",) if hasattr(torch, "_int_mm") else ()
    if not backend.is_gpu:
        supported = getattr(getattr(torch.ops, "mkldnn", None), "_is_mkldnn_bf16_supported", None)
        bf16 = ("bf16",) if supported is not None and supported() else ()
        return Scope("cpu", ("fp32", *bf16, *int8), max_bytes=min(1.2e8, backend.free_bytes() / 16))
    major, minor = torch.cuda.get_device_capability(backend.index)
    hip = getattr(torch.version, "hip", None) is not None
    ampere = not hip and major >= 8
    fp8 = hasattr(torch, "_scaled_mm") and (hip or (major, minor) >= (8, 9))
    tensor = (("tf32", "bf16") if ampere else ("bf16",) if hip else ()) + ("fp16",)
    dtypes = ("fp32", *tensor, *(("fp8",) if fp8 else ()), *int8)
    return Scope("cuda", dtypes, max_bytes=min(8e9, backend.free_bytes() / 8), max_flop=4e12)


def torch_dtype(backend: Backend, name: str) -> Any:
    return getattr(backend.torch, _DTYPES[name][1])


def random_tensor(backend: Backend, shape: tuple[int, ...], dtype: str) -> Any:
    """Random values on the device, normal or small integers: constant data draws less power.

    On a CPU a large tensor repeats one random block: drawing gigabytes would take the budget.
    """
    torch, size = backend.torch, prod(shape)
    if dtype == "int8":
        return torch.randint(-100, 100, shape, dtype=torch.int8, device=backend.device)
    if backend.is_gpu or size <= RANDOM_BLOCK:
        values = torch.randn(shape, device=backend.device)
    else:
        values = torch.randn(RANDOM_BLOCK).repeat(-(-size // RANDOM_BLOCK))[:size].reshape(shape)
    return values.to(torch_dtype(backend, dtype))


ALIGNMENT = 64
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)


def kronecker(index: int, dims: int) -> tuple[float, ...]:
    """Element `index` (from 0) of an additive recurrence in at most ten dimensions, in (0, 1).

    Its steps are the square roots of primes, which no short period comes near: it fills a box
    evenly. Source: Richtmyer 1951; Niederreiter 1978, "Quasi-Monte Carlo methods".
    """
    return tuple((0.5 + (index + 1) * prime**0.5) % 1 for prime in _PRIMES[:dims])


def log_between(low: float, high: float, fraction: float) -> float:
    """The value at `fraction` of the way from `low` to `high` on a log scale."""
    return float(low * (high / low) ** fraction)


def log_points(ranges: dict[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Endless points in the box `ranges` (inclusive), log-uniform.

    Every second point is aligned: its dims above the alignment are multiples of it. The others
    are as they fall, which is rarely a multiple of anything.
    """
    for index in count():
        point = {}
        fractions = kronecker(index, len(ranges))
        for fraction, (name, (low, high)) in zip(fractions, ranges.items(), strict=True):
            value = round(log_between(low, high, fraction))
            if index % 2 == 0 and value > ALIGNMENT:
                value = round(value / ALIGNMENT) * ALIGNMENT
            point[name] = min(max(value, low), high)
        yield point


def shapes(
    ranges: dict[str, tuple[int, int]], points: int, first: Iterable[Sequence[int]] = ()
) -> Iterator[dict[str, int]]:
    """Dims of `ranges`: those of the shapes `first`, then `points` that fill the box."""
    for shape in first:
        yield dict(zip(ranges, shape, strict=True))
    yield from islice(log_points(ranges), points)


T = TypeVar("T")


def round_robin(sequences: Iterable[Sequence[T]]) -> Iterator[T]:
    """The first of each sequence, then the second of each, and so on until all are used up."""
    missing = object()
    for layer in zip_longest(*sequences, fillvalue=missing):
        for item in layer:
            if item is not missing:
                yield item  # type: ignore[misc]


def informative_order(families: dict[str, Sequence[Case]]) -> list[tuple[str, Case]]:
    """Cases with their family, so that every beginning of the list says most about all.

    All groups (op, dtype, direction, variant) take turns, so that each gets as many cases as any
    other; within a group the order is the family's own, and neighbours are of different families.
    """
    turns = []
    for name, cases in families.items():
        groups: dict[tuple[str, ...], list[tuple[str, Case]]] = {}
        for case in cases:
            groups.setdefault(case.group, []).append((name, case))
        turns.append(list(groups.values()))
    return list(round_robin(round_robin(turns)))
