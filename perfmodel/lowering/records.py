"""What operators launch by their records (`perfmodel.ops.operators`), and which rule is whose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cache, lru_cache
from math import prod

from perfmodel.lowering.arguments import (
    broadcast,
    bytes_of,
    layout_dims,
    output,
    rows_cols,
    size,
    tensor,
    tensor_bytes,
)
from perfmodel.lowering.piece import ANY, LOWERINGS, Lowering, MissingArguments, Piece
from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.operators import ALL, OPERATORS, OUTPUT, STREAM, Operator
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import MATMUL


@lru_cache(maxsize=1 << 14)
def rule_of(name: str, target: str, scope: str = "") -> Lowering | None:
    """The rule of an op, the target's own before that for all and that of its record; None where
    there is none."""
    full = f"{scope}{name}"
    for where in (target, ANY):
        rule = LOWERINGS.get(f"{where}/{full}")
        if rule is not None:
            return rule
    record = OPERATORS.get(full)
    if record is not None and record.launches is not None:
        return by_record(record)
    return next((rule for pattern, rule in _patterns(target) if pattern.fullmatch(full)), None)


@lru_cache(maxsize=8)
def _patterns(target: str) -> list[tuple[re.Pattern[str], Lowering]]:
    """The entries with a `*`, the target's own first."""
    patterns = []
    for where in (target, ANY):
        keys = [key for key in LOWERINGS if key.startswith(f"{where}/") and "*" in key]
        patterns += [(translate(key[len(where) + 1 :]), LOWERINGS[key]) for key in keys]
    patterns += [(translate(key), by_record(OPERATORS[key])) for key in OPERATORS if "*" in key]
    return [(re.compile(pattern), rule) for pattern, rule in patterns]


@cache
def by_record(record: Operator) -> Lowering:
    """The rule that a record states; nothing is launched over no elements."""

    def rule(op: Op) -> Sequence[Piece]:
        sizes = record.bind(op, lambda place: tensor(op, place).shape or (1,))
        if sizes is None:
            raise MissingArguments
        elements = {name: float(prod(each)) for name, each in sizes.items()}
        elements |= record.flags(op)
        dtypes = {name: tensor(op, place).dtype for name, (place, _) in record.tensors.items()}
        pieces: list[Piece] = []
        for row in record.rows:
            if row.op == STREAM:
                streamed = dict(row.dims)
                reads, writes = (_operands(record, op, streamed.get(side, "")) for side in SIDES)
                pieces += pointwise(reads, writes, float(streamed.get("flop", 1.0)))
                continue
            dims = {
                name: _dim(text, elements)
                for name, text in row.dims
                if ">" not in text or _dim(text, elements)
            }
            if OPS[row.op].family == MATMUL:
                dims[FRAMEWORK] = float(framework_code(TORCH))
            if dims.pop("if", 1.0) and all(dims[name] for name in OPS[row.op].dims):
                dtype = dtypes.get(row.dtype, row.dtype or next(iter(dtypes.values())))
                pieces.append(Piece(row.op, dims, dtype, row.direction, launches=row.launches))
        return pieces

    return rule


SIDES = ("reads", "writes")


def _operands(record: Operator, op: Op, text: str) -> list[Tensor]:
    """The tensors that a row streams: arguments by name, of another dtype where one is named."""
    return [each for word in filter(None, text.split(",")) for each in _named(record, op, word)]


def _named(record: Operator, op: Op, word: str) -> Iterator[Tensor]:
    name, _, dtype = word.partition(":")
    if name == ALL and dtype:
        yield Tensor(broadcast(op.tensors), dtype)
    elif name == ALL:
        yield from op.tensors
    elif name == OUTPUT:
        yield made(op, tensor(op, 0).dtype)
    else:
        held = tensor(op, record.tensors[name][0])
        yield Tensor(held.shape, dtype) if dtype else held


def made(op: Op, dtype: str) -> Tensor:
    """The first output, else one of `dtype` that the inputs broadcast to."""
    return output(op) or Tensor(broadcast(op.tensors), dtype)


def _dim(text: str, elements: Mapping[str, float]) -> float:
    """A number, or a product of sizes."""
    if text.replace(".", "").isdigit():
        return float(text)
    name, above, limit = text.partition(">")
    if above:
        return float(elements[name] > float(limit))
    return prod(elements[each] for each in text.split("*"))


def pointwise(
    reads: Sequence[Tensor], writes: Sequence[Tensor], flop: float = 1.0
) -> Sequence[Piece]:
    """One kernel that streams these tensors; nothing where they are empty."""
    tensors = [*reads, *writes]
    elements = max((size(t.shape) for t in tensors), default=0)
    if not elements:
        return ()
    dtype = max(tensors, key=tensor_bytes).dtype
    full = elements * bytes_of(dtype)
    dims = {
        "elements": float(elements),
        "reads": sum(map(tensor_bytes, reads)) / full,
        "writes": sum(map(tensor_bytes, writes)) / full,
        "flop_per_element": flop,
    }
    dims |= layout_dims(tensors, max((t.shape for t in tensors), key=size))
    return (Piece("elementwise", dims, dtype),)


def fill_of(filled: Tensor) -> Sequence[Piece]:
    """One kernel that writes a tensor."""
    if not size(filled.shape):
        return ()
    if layout_dims([filled], filled.shape):
        return pointwise([], [filled], flop=0.0)
    return (Piece("fill", rows_cols(filled.shape), filled.dtype),)
