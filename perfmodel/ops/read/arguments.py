"""What a call was given, from the texts of execution traces and profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from perfmodel.errors import TraceError
from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import Argument, Tensor
from perfmodel.trace.execution_trace_arguments import TypeTree, parse_type

_decode = msgspec.json.decode
_UNDEFINED = "nullptr"
_NOTHING = "<None>"
_NUMBERS = {"inf", "-inf", "nan", "-nan", "Infinity", "-Infinity", "NaN"}
_LIST_OF_TENSORS = "TensorList"


class ExecutionTraceArguments:
    """Arguments of the nodes of one execution trace, by its four texts; each is decoded once."""

    def __init__(self, documents: tuple[bytes, ...]) -> None:
        self._documents = documents
        self._types: dict[int, list[TypeTree]] = {}
        self._lists: dict[int, list[Any]] = {}
        self._found: dict[tuple[int, int, int, int], tuple[Argument, ...]] = {}
        self.unknown_dtypes: Counter[str] = Counter()

    def of(self, values: int, shapes: int, types: int, strides: int) -> tuple[Argument, ...]:
        """The arguments of the node with these documents."""
        key = (values, shapes, types, strides)
        arguments = self._found.get(key)
        if arguments is None:
            plans = self._types.get(types)
            if plans is None:
                texts = self._list(types)
                plans = self._types[types] = [parse_type(text) for text in texts]
            stride_list = self._list(strides)
            if len(stride_list) != len(plans):
                stride_list = [None] * len(plans)
            arguments = self._found[key] = tuple(
                map(self._argument, plans, self._list(values), self._list(shapes), stride_list)
            )
        return arguments

    def _list(self, document: int) -> list[Any]:
        decoded = self._lists.get(document)
        if decoded is None:
            decoded = self._lists[document] = _decode(self._documents[document])
        return decoded

    def _argument(self, plan: TypeTree, value: Any, shape: Any, strides: Any) -> Argument:
        if plan is None:
            return _plain(value)
        if isinstance(plan, str):
            return self._tensor(plan, value, shape, strides)
        many = [None] * len(plan)
        return tuple(map(self._argument, plan, value, shape or many, strides or many))

    def _tensor(self, word: str, value: list[Any], shape: Any, strides: Any) -> Tensor | None:
        if word.startswith(_UNDEFINED):
            return None
        dtype = dtype_of_torch(word)
        if dtype is None:
            self.unknown_dtypes[word] += 1
            dtype = word
        tensor_id, storage_id = value[0], value[1]
        return Tensor(
            tuple(shape or ()),
            dtype,
            tensor_id,
            storage_id or -1,
            value[5] if len(value) > 5 else "",
            "" if storage_id else "sparse",
            tuple(strides or ()),
        )


def _plain(value: Any) -> Argument:
    if type(value) is list:
        return tuple(map(_plain, value))
    if type(value) is str:
        return None if value == _NOTHING else float(value) if value in _NUMBERS else value
    return str(value) if type(value) is dict else value


class ProfileArguments:
    """Arguments of a profile's ops, by the indices of their four texts; each set is decoded once.

    Old profiles give no shapes for lists of tensors and no types for their members.
    """

    def __init__(self, text: Callable[[int], str], where: str, usual_dtype: str) -> None:
        self._text = text
        self._where = where
        self._usual_dtype = usual_dtype
        self._found: dict[tuple[int, int, int, int], tuple[Argument, ...]] = {}
        self.unknown_dtypes: Counter[str] = Counter()

    def of(self, shapes: int, types: int, values: int, strides: int) -> tuple[Argument, ...]:
        """The arguments of an op; index -1 is a text that the file does not have."""
        key = (shapes, types, values, strides)
        arguments = self._found.get(key)
        if arguments is None:
            arguments = self._found[key] = self._read(*key)
        return arguments

    def _read(self, shapes: int, types: int, values: int, strides: int) -> tuple[Argument, ...]:
        try:
            dims = _decode(self._text(shapes) or "[]", type=list[Any])
            words = _decode(self._text(types) or "[]", type=list[str])
            concrete = _decode(self._text(values) or "[]", type=list[str])
            steps = _decode(self._text(strides) or "[]", type=list[Any])
        except msgspec.MsgspecError as error:
            raise TraceError(f"{self._where}: Input Dims or types of an op: {error}") from None
        count = len(words)
        concrete = concrete if len(concrete) == count else [""] * count
        steps = steps if len(steps) == count else [()] * count
        if len(dims) != count:
            raise TraceError(
                f"{self._where}: an op has {len(dims)} Input Dims for {count} Input types"
            )
        tensor_dtype = next((d for d in map(dtype_of_torch, words) if d), self._usual_dtype)
        return tuple(
            self._argument(*about, tensor_dtype)
            for about in zip(words, dims, concrete, steps, strict=True)
        )

    def _argument(self, word: str, dims: Any, value: str, strides: Any, dtype: str) -> Argument:
        if not isinstance(dims, list):
            dims = [dims] if isinstance(dims, int) else []
        if any(isinstance(each, list) for each in dims):
            fit = isinstance(strides, list) and len(strides) == len(dims)
            steps = strides if fit else [()] * len(dims)
            return tuple(_profiled(d, dtype, s) for d, s in zip(dims, steps, strict=True))
        if word == _LIST_OF_TENSORS:
            return (_profiled(dims, dtype, strides),) if dims else ()
        known = dtype_of_torch(word)
        if known is not None:
            return _profiled(dims, known, strides)
        if dims:
            self.unknown_dtypes[word] += 1
            return _profiled(dims, word or dtype, strides)
        return _concrete(value)


def _profiled(dims: Any, dtype: str, strides: Any) -> Tensor:
    """A tensor of a profile; what is no list of sizes, or strides that do not fit, say nothing."""
    sizes, steps = (
        tuple(given) if all(isinstance(each, int) for each in given) else ()
        for given in (each if isinstance(each, list) else [each] for each in (dims, strides))
    )
    return Tensor(sizes, dtype, strides=steps if len(steps) == len(sizes) else ())


@lru_cache(maxsize=1 << 14)
def _concrete(text: str) -> Argument:
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    if text[0] == "[":
        inner = text[1:-1].strip()
        return tuple(_concrete(item.strip()) for item in inner.split(",")) if inner else ()
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


def usual_dtype(type_texts: Iterable[str]) -> str:
    """The floating type that most tensors of a profile have; fp32 where none is named."""
    count: Counter[str] = Counter()
    for text in type_texts:
        for word in _decode(text or "[]"):
            count[dtype_of_torch(word) or ""] += 1
    return max(("fp32", "fp16", "bf16", "fp64"), key=lambda dtype: count[dtype])
