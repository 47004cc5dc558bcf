"""The tensors among the arguments of nodes, found by the types that PyTorch writes beside them.

A type is `NAME`, `Tensor(DTYPE)`, or `NAME[TYPE,TYPE,...]` for lists and tuples. Schema 1.0.0 has
tensors of five integers, which only the type tells from a list of five integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from perfmodel.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.columns import Strings
from perfmodel.trace.execution_trace_columns import Tensors

MAX_DEPTH = 16

TypeTree: TypeAlias = "str | tuple[TypeTree, ...] | None"
"""A tensor's dtype; the elements of a list or tuple that holds tensors; None without tensors."""

_TENSOR = "Tensor("


def parse_type(text: str) -> TypeTree:
    """The tensors inside one argument type; raises `ValueError` where it breaks the grammar."""
    if _TENSOR not in text:
        return None
    shape, end = _parse(text, 0, 0)
    if end != len(text):
        raise ValueError(f"unexpected {text[end : end + 20]!r} in type {text[:60]!r}")
    return shape


def _parse(text: str, start: int, depth: int) -> tuple[TypeTree, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"type {text[:60]!r} is nested deeper than {MAX_DEPTH}")
    if text.startswith(_TENSOR, start):
        end = _closing(text, start + len(_TENSOR))
        return text[start + len(_TENSOR) : end], end + 1
    end = start
    while end < len(text) and text[end] not in "[],(":
        end += 1
    if end == len(text) or text[end] in "],":
        return None, end
    if text[end] == "(":
        return None, _closing(text, end + 1) + 1
    if text.startswith("]", end + 1):
        return None, end + 2
    elements: list[TypeTree] = []
    while True:
        element, end = _parse(text, end + 1, depth + 1)
        elements.append(element)
        if end == len(text) or text[end] not in "],":
            raise ValueError(f"a ']' is missing in type {text[:60]!r}")
        if text[end] == "]":
            return (tuple(elements) if any(e is not None for e in elements) else None), end + 1


def _closing(text: str, start: int) -> int:
    depth = 1
    for end in range(start, len(text)):
        if text[end] == "(":
            depth += 1
        elif text[end] == ")":
            depth -= 1
            if not depth:
                return end
    raise ValueError(f"a ')' is missing in type {text[:60]!r}")


_INT64_MAX = 2**63 - 1
_WITHOUT_DEVICE, _WITH_DEVICE = 5, 6
_Plan: TypeAlias = "tuple[int, list[tuple[int, TypeTree]]]"
_values = msgspec.json.Decoder(list[Any])
_texts = msgspec.json.Decoder(list[str])


class RawArguments(NamedTuple):
    """The inputs or outputs of all nodes: JSON texts of four parallel lists for each node."""

    values: list[bytes]
    shapes: list[bytes]
    types: list[bytes]
    strides: list[bytes]

    def reordered(self, order: list[int]) -> RawArguments:
        return RawArguments(*([texts[i] for i in order] for texts in self))


class InternedTexts:
    """Interned JSON texts (bytes), each kept once."""

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}

    @property
    def texts(self) -> list[bytes]:
        return list(self._index)

    def add(self, texts: list[bytes]) -> Ints:
        index = self._index
        return np.array([index.setdefault(text, len(index)) for text in texts], np.int64)


def _tensors_in(shape: TypeTree, value: Any) -> Iterator[tuple[Any, str]]:
    """The tensors in one argument, as the file writes them, and their dtypes.

    Raises `ValueError` when it does not fit its type.
    """
    if isinstance(shape, str):
        yield value, shape
    elif shape is not None:
        if not isinstance(value, list) or len(value) != len(shape):
            raise ValueError(f"expected a list of {len(shape)}, got {value!r:.60}")
        for inner, element in zip(shape, value, strict=True):
            if inner is not None:
                yield from _tensors_in(inner, element)


def read_tensors(
    arguments: RawArguments, key: str, position: list[int], strings: Strings, where: str
) -> Tensors:
    """All tensors of `arguments`, which are in row order.

    `position` is each node's index in the file, for messages. Raises `TraceError` when values,
    shapes and types do not fit each other, or when a text is no JSON list.
    """
    leaves: list[Any] = []
    leaf_dtype: list[str] = []
    leaf_argument: list[int] = []
    plans: dict[bytes, _Plan] = {b"[]": (0, [])}
    sizes: dict[bytes, int] = {b"[]": 0}
    bounds = [0]
    part = ""
    for at, values_text, shapes, types, strides in zip(position, *arguments, strict=True):
        try:
            part = "types"
            plan = plans.get(types)
            if plan is None:
                plan = plans[types] = _plan(types)
            part = "strides"
            if strides not in sizes:
                sizes[strides] = _count_of_sizes(_values.decode(strides))
            part = "shapes"
            if shapes not in sizes:
                sizes[shapes] = _count_of_sizes(_values.decode(shapes))
            count, tensors = plan
            if sizes[shapes] != count:
                raise ValueError(f"{sizes[shapes]} shapes for {count} types")
            part = "values"
            if count or values_text != b"[]":
                values = _values.decode(values_text)
                if len(values) != count:
                    raise ValueError(f"{len(values)} values for {count} types")
                for argument, shape in tensors:
                    for leaf, dtype in _tensors_in(shape, values[argument]):
                        leaves.append(leaf)
                        leaf_dtype.append(dtype)
                        leaf_argument.append(argument)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{where}: nodes[{at}].{key}.{part}: {error}") from None
        bounds.append(len(leaves))
    try:
        table = _table(leaves)
    except (ValueError, TypeError, OverflowError):
        raise _tensor_error(leaves, bounds, key, position, where) from None
    tensor_id, storage_id, _offset, elements, _item_bytes = map(np.ascontiguousarray, table.T)
    return Tensors(
        bounds=np.array(bounds, np.int64),
        argument=np.array(leaf_argument, np.int64),
        tensor_id=tensor_id,
        storage_id=storage_id,
        elements=elements,
        dtype=np.array([strings.intern(text) for text in leaf_dtype], np.int64),
    )


def _table(values: list[Any]) -> Ints:
    """`[T, 5]` numbers, the devices left out; raises on any that is no tensor."""
    if not set(map(type, values)) <= {list}:
        raise TypeError
    widths = set(map(len, values))
    if not widths:
        return np.zeros((0, _WITHOUT_DEVICE), np.int64)
    (width,) = widths
    flat = list(chain.from_iterable(values))
    devices = flat[_WITHOUT_DEVICE::width] if width == _WITH_DEVICE else []
    if devices:
        del flat[_WITHOUT_DEVICE::width]
    if not set(map(type, flat)) <= {int} or not set(map(type, devices)) <= {str}:
        raise TypeError
    table = np.array(flat, np.int64).reshape(-1, _WITHOUT_DEVICE)
    if len(table) != len(values) or (table < 0).any():
        raise ValueError
    return table


def _tensor_error(
    values: list[Any], bounds: list[int], key: str, position: list[int], where: str
) -> TraceError:
    """The error that names the first tensor at which `_table` stumbled."""
    index = next(i for i, value in enumerate(values) if not _fits(value, values[0]))
    at = position[bisect_right(bounds, index) - 1]
    wanted = f"{_WITHOUT_DEVICE} integers from 0 up and a device"
    return TraceError(
        f"{where}: nodes[{at}].{key}.values: expected a tensor ({wanted}), "
        f"got {values[index]!r:.80}"
    )


def _fits(value: Any, first: Any) -> bool:
    try:
        _table([value])
        return len(value) == len(first)
    except (ValueError, TypeError, OverflowError):
        return False


def _plan(types: bytes) -> _Plan:
    shapes = [parse_type(text) for text in _texts.decode(types)]
    return len(shapes), [(i, shape) for i, shape in enumerate(shapes) if shape is not None]


def _count_of_sizes(sizes: list[Any]) -> int:
    """How many there are; raises `ValueError` where one, at any depth, is no size."""
    for size in sizes:
        if type(size) is list:
            _count_of_sizes(size)
        elif type(size) is not int or not 0 <= size <= _INT64_MAX:
            raise ValueError(f"expected sizes, got {size!r:.30}")
    return len(sizes)
