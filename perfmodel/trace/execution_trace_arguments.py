"""The arguments of nodes: their JSON, and the tensors and collectives among them.

Spellings that JSON forbids are repaired: older PyTorch writes bare `inf` and `nan` among values,
every PyTorch up to 2.13 the names of user annotations without escaping control characters, and
Chakra's converter the arguments of a node as Python's `repr` of a list.

Tensors are found by the types that PyTorch writes with them. A type is `NAME`, `Tensor(DTYPE)`, or
`NAME[TYPE,TYPE,...]` for lists and tuples. Schema 1.0.0 has tensors of five integers, which only
the type tells from a list of five integers.

What `record_param_comms` says, in every layout it has had: arguments after the tensors are, before
schema 1.1.0, sequence, pointer of the group, rank, name, input splits, output splits; later
sequence (or a tuple that begins with it), (group name, description), rank, name, splits, first
rank, stride, group size. From 1.1.0 on, attributes say the same of collectives that have a group,
except that they shorten long split lists.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.errors import TraceError
from perfmodel.trace.columns import NONE, Strings
from perfmodel.trace.execution_trace_columns import Collective, ProcessGroup, Tensors

_BARE = re.compile(
    r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')|-?\b(?:inf|nan|Infinity|NaN)\b", re.DOTALL
)
"""Texts, and numbers outside of them that neither JSON nor Python's `repr` can be read with."""


def repair_json(content: bytes) -> bytes:
    """`content` as JSON: bare infinities and NaN quoted, control characters in texts escaped.

    Raises `ValueError`, `RecursionError` or `OverflowError` for what is none.
    """
    return msgspec.json.encode(json.loads(_quoted(content.decode()), strict=False))


def _quoted(text: str) -> str:
    return _BARE.sub(lambda found: found[1] or f'"{found[0]}"', text)


def json_list(text: str) -> bytes:
    """A list written as JSON or as Python's `repr`, as JSON; `[]` for no text at all.

    Raises `ValueError` when it is neither.
    """
    content = text.encode() or b"[]"
    try:
        msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.MsgspecError:
        try:
            found = ast.literal_eval(_quoted(text))
            content = msgspec.json.encode(msgspec.convert(found, list[Any]))
        except Exception as error:  # whatever Python says of a damaged text
            raise ValueError(f"no list: {type(error).__name__}") from None
    return content


TypeTree: TypeAlias = "str | tuple[TypeTree, ...] | None"
"""A tensor's dtype; the elements of a list or tuple that holds tensors; None without tensors."""

_BRACKETED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_TYPE_TOKEN = re.compile(
    rf"Tensor(?P<dtype>{_BRACKETED})|(?P<opened>[^\[\],()]*\[)|[^\[\],()]+(?:{_BRACKETED})?"
)


def parse_type(text: str) -> TypeTree:
    """The tensors inside one argument type; raises `ValueError` where it breaks the grammar."""
    if "Tensor(" not in text:
        return None
    try:
        return _tree(json.loads(_TYPE_TOKEN.sub(_token_as_json, text)))
    except (ValueError, RecursionError):
        raise ValueError(f"type {text[:60]!r} is none of an argument") from None


def _token_as_json(token: re.Match[str]) -> str:
    if token["dtype"]:
        return json.dumps(token["dtype"][1:-1])
    return "[" if token["opened"] else "null"


def _tree(parsed: Any) -> TypeTree:
    if not isinstance(parsed, list):
        return parsed  # type: ignore[no-any-return]
    elements = tuple(map(_tree, parsed))
    return elements if any(each is not None for each in elements) else None


Texts: TypeAlias = tuple[bytes, ...]
"""The inputs or outputs of a node: the JSON of its values, shapes, types and strides."""
PARTS = ("values", "shapes", "types", "strides")

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_TENSORS = {
    5: list[tuple[_Count, _Count, _Count, _Count, _Count]],
    6: list[tuple[_Count, _Count, _Count, _Count, _Count, str]],
}
"""By how many values a tensor has: id, storage, offset, elements, bytes of one, and its device."""
_values = msgspec.json.Decoder(list[Any])
_texts = msgspec.json.Decoder(list[str])


def read_tensors(
    arguments: Sequence[Texts], key: str, position: list[int], strings: Strings, where: str
) -> Tensors:
    """All tensors of the inputs or outputs of all nodes, which are in row order.

    `position` is each node's index in the file, for messages. Raises `TraceError` when values,
    shapes and types do not fit each other, or when a text is no JSON list.
    """
    leaves: list[Any] = []
    leaf_dtype: list[str] = []
    leaf_argument: list[int] = []
    plans: dict[bytes, tuple[int, list[tuple[int, TypeTree]]]] = {b"[]": (0, [])}
    sizes: dict[bytes, int] = {b"[]": 0}
    bounds = [0]
    part = ""
    for at, (values_text, shapes, types, strides) in zip(position, arguments, strict=True):
        try:
            part = "types"
            if types not in plans:
                trees = list(enumerate(map(parse_type, _texts.decode(types))))
                plans[types] = len(trees), [each for each in trees if each[1] is not None]
            count, tensors = plans[types]
            part = "strides"
            if strides not in sizes:
                sizes[strides] = _count_of_sizes(_values.decode(strides))
            part = "shapes"
            if shapes not in sizes:
                sizes[shapes] = _count_of_sizes(_values.decode(shapes))
            if sizes[shapes] != count:
                raise ValueError(f"{sizes[shapes]} shapes for {count} types")
            part = "values"
            if count or values_text != b"[]":
                values = _values.decode(values_text)
                if len(values) != count:
                    raise ValueError(f"{len(values)} values for {count} types")
                for argument, tree in tensors:
                    for leaf, dtype in _tensors_in(tree, values[argument]):
                        leaves.append(leaf)
                        leaf_dtype.append(dtype)
                        leaf_argument.append(argument)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{where}: nodes[{at}].{key}.{part}: {error}") from None
        bounds.append(len(leaves))
    width = len(leaves[0]) if leaves and isinstance(leaves[0], list) else 6
    try:
        rows = msgspec.convert(leaves, _TENSORS.get(width, _TENSORS[6]))
    except msgspec.ValidationError as error:
        index = int(re.findall(r"\$\[(\d+)\]", str(error))[0])
        at = position[bisect_right(bounds, index) - 1]
        raise TraceError(
            f"{where}: nodes[{at}].{key}.values: expected a tensor (5 integers from 0 up and a "
            f"device), got {leaves[index]!r:.80}"
        ) from None
    flat = np.fromiter(chain.from_iterable(row[:5] for row in rows), np.int64, 5 * len(rows))
    table = flat.reshape(-1, 5).T
    tensor_id, storage_id, _offset, elements, _item_bytes = map(np.ascontiguousarray, table)
    return Tensors(
        bounds=np.array(bounds, np.int64),
        argument=np.array(leaf_argument, np.int64),
        tensor_id=tensor_id,
        storage_id=storage_id,
        elements=elements,
        dtype=strings.of(leaf_dtype).astype(np.int64),
    )


def _tensors_in(tree: TypeTree, value: Any) -> Iterator[tuple[Any, str]]:
    """The tensors in one argument, as the file writes them, and their dtypes.

    Raises `ValueError` when it does not fit its type.
    """
    if isinstance(tree, str):
        yield value, tree
    elif tree is not None:
        if not isinstance(value, list) or len(value) != len(tree):
            raise ValueError(f"expected a list of {len(tree)}, got {value!r:.60}")
        for inner, element in zip(tree, value, strict=True):
            yield from _tensors_in(inner, element)


def _count_of_sizes(sizes: list[Any]) -> int:
    """How many there are; raises `ValueError` where one, at any depth, is no size."""
    for size in sizes:
        if type(size) is list:
            _count_of_sizes(size)
        elif type(size) is not int or not 0 <= size < 2**63:
            raise ValueError(f"expected sizes, got {size!r:.30}")
    return len(sizes)


RECORD_NAME = "record_param_comms"
"""Of the node that a collective leaves."""


class _Group(msgspec.Struct):
    pg_name: str = ""
    ranks: list[int] = []
    group_size: int = 0


def process_groups(values: bytes, warnings: list[str]) -> list[ProcessGroup]:
    """The groups that one `## process_group:init ##` node lists, a JSON text in its first input."""
    try:
        (text,) = _texts.decode(values)
        groups = msgspec.json.decode(text, type=list[_Group])
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        warnings.append(f"process groups cannot be read: {str(error).splitlines()[0]:.100}")
        return []
    return [ProcessGroup(g.pg_name, tuple(g.ranks), g.group_size) for g in groups]


def read_collective(
    texts: Texts,
    attributes: dict[str, Any],
    tensors: Sequence[tuple[Ints, Ints]],
    strings: Strings,
    place: str,
) -> Collective:
    """The collective that a node records. `tensors` are elements and dtypes of those of its inputs
    and of its outputs; `place` names the node in errors."""
    stated: dict[str, Any] = {}
    for key, (elements, _) in zip(("in_msg_nelems", "out_msg_nelems"), tensors, strict=True):
        stated[key] = int(elements.sum()) if len(elements) else NONE
    try:
        stated |= _from_arguments(texts[2], texts[0])
        for key in ("in_split", "out_split"):
            text = attributes.get(f"{key}_size")
            if key not in stated and isinstance(text, str) and "..." not in text:
                stated[key] = _values.decode(text or "[]")
        found = msgspec.convert(stated | attributes, Collective)
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        message = str(error).replace(" - at `$.", " in `")
        raise TraceError(f"{place} ({RECORD_NAME}): {message}") from None
    for dtype in np.concatenate([each for _, each in tensors])[:1].tolist():
        found.dtype = strings[dtype]
    return found


def _from_arguments(types_text: bytes, values_text: bytes) -> dict[str, Any]:
    """What the plain arguments say; nothing where the layout is not one of the known."""
    types, values = _texts.decode(types_text), _values.decode(values_text)
    while types and types[0] != "Int" and not types[0].startswith("Tuple[Int"):
        del types[0], values[0]
    if len(values) < 6 or types[3] != "String" or types[2] != "Int":
        return {}
    _sequence, group, _rank, name, in_split, out_split, *more = values
    if types[1] == "Tuple[String,String]":
        group, _description = group
    result = {
        "collective_name": name,
        "pg_name": group,
        "in_split": in_split,
        "out_split": out_split,
    }
    if len(more) >= 3 and types[6:9] == ["Int"] * 3:
        keys = ("global_rank_start", "global_rank_stride", "pg_size")
        result |= dict(zip(keys, more, strict=False))
    return result
