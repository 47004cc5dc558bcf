"""Sizes as functions of the batch: so much per sample, and so much whatever the batch is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod
from typing import NamedTuple, TypeAlias

from perfmodel.ops.graph import Argument, Op, Tensor


class Size(NamedTuple):
    """`per_sample` times the batch, plus `fixed`."""

    per_sample: Fraction | int
    fixed: int

    def at(self, batch: int) -> Fraction | int:
        """The size at a batch; a fraction where it does not come out whole."""
        return self.per_sample * batch + self.fixed


Dims: TypeAlias = tuple[Size, ...]


def fixed(shape: Iterable[int]) -> Dims:
    """Sizes that do not change."""
    return tuple(Size(0, size) for size in shape)


def per_sample(value: int, batch: int) -> Size:
    """A size in proportion to the batch."""
    whole, rest = divmod(value, batch)
    return Size(Fraction(value, batch) if rest else whole, 0)


def product(dims: Iterable[Size]) -> Size | None:
    """Number of elements; None where two sizes depend on the batch or one has both parts."""
    dims = tuple(dims)
    scaled = [size for size in dims if size.per_sample]
    if not scaled:
        return Size(0, prod(size.fixed for size in dims))
    if len(scaled) > 1:
        return None
    rest = prod(size.fixed for size in dims if not size.per_sample)
    return Size(scaled[0].per_sample * rest, scaled[0].fixed * rest)


def total(dims: Iterable[Size]) -> Size:
    """The sum of sizes."""
    dims = tuple(dims)
    return Size(sum(size.per_sample for size in dims), sum(size.fixed for size in dims))


def reshaped_sizes(dims: Dims, old: Sequence[int], new: Sequence[int], batch: int) -> Dims | None:
    """Sizes of a tensor of sizes `dims` (`old` at `batch`) that is seen as `new`.

    Neighbours that multiply to the same number stand for each other; of several that one size
    becomes, the one that is the batch itself scales, else the first that the batch divides, else
    the first. None where the numbers of elements differ.
    """
    if prod(old) != prod(new) or not prod(new):
        return None
    sizes: list[Size] = []
    low = high = 0
    while low < len(old) or high < len(new):
        ends = (low, high)
        left = right = 1
        while True:
            if left <= right and low < len(old) and (left < right or low == ends[0]):
                left *= old[low]
                low += 1
            elif high < len(new) and (right < left or high == ends[1]):
                right *= new[high]
                high += 1
            if left == right or (low == len(old) and high == len(new)):
                break
        sizes += _group(dims[ends[0] : low], tuple(new[ends[1] : high]), batch)
    return tuple(sizes)


def _group(dims: Dims, new: tuple[int, ...], batch: int) -> Dims:
    whole = product(dims)
    if whole is None:
        return dims if len(dims) == len(new) else fixed(new)
    if not whole.per_sample or not new:
        return fixed(new)
    if len(new) == 1:
        return (whole,)
    wide = [size for size in dims if size != Size(0, 1)]
    if len(wide) == 1 and sum(size > 1 for size in new) == 1:
        return tuple(wide[0] if size > 1 else Size(0, 1) for size in new)
    candidates = range(len(new))
    chosen = next(
        chain(
            (i for i in candidates if new[i] == batch),
            (i for i in candidates if new[i] % batch == 0),
            (i for i in candidates if new[i] > 1),
            candidates,
        )
    )
    rest = prod(new[:chosen]) * prod(new[chosen + 1 :])
    scaled = Size(Fraction(whole.per_sample) / rest, 0) if not whole.fixed else Size(0, new[chosen])
    return (*fixed(new[:chosen]), scaled, *fixed(new[chosen + 1 :]))


@dataclass(frozen=True)
class Call:
    """An op, the batch it was recorded at, and the sizes of its input tensors."""

    op: Op
    batch: int
    dims: tuple[tuple[Dims, ...], ...]
    """Per argument, of each tensor in it."""

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position, if it is one."""
        given = self.argument(position)
        return given if isinstance(given, Tensor) else None

    def sizes(self, position: int) -> Dims | None:
        """Sizes of the tensor at a position; None where there is no tensor."""
        return None if self.tensor(position) is None else self.dims[position][0]

    def listed(self, position: int) -> tuple[Dims, ...]:
        """Sizes of the tensors in the list at a position."""
        return self.dims[position] if position < len(self.dims) else ()

    def argument(self, position: int) -> Argument:
        """The argument at a position; None where there is none."""
        return self.op.inputs[position] if position < len(self.op.inputs) else None

    def integer(self, position: int, default: int = 0) -> int:
        """An integer argument."""
        given = self.argument(position)
        return given if type(given) is int else default

    def integers(self, position: int) -> tuple[int, ...]:
        """A list of integers, or one as a list; empty where it is none."""
        given = self.argument(position)
        if type(given) is int:
            return (given,)
        listed = given if isinstance(given, tuple) else ()
        numbers = tuple(item for item in listed if type(item) is int)
        return numbers if len(numbers) == len(listed) else ()

    @property
    def returned(self) -> tuple[Tensor | None, ...]:
        """The tensors that it returned, lists opened; None for what is no tensor."""
        return returned_by(self.op)


def returned_by(op: Op) -> tuple[Tensor | None, ...]:
    """The tensors that an op returned, lists opened; None for what is no tensor."""
    tensors: list[Tensor | None] = []
    for output in op.outputs:
        for item in output if isinstance(output, tuple) else (output,):
            tensors.append(item if isinstance(item, Tensor) else None)
    return tuple(tensors)
