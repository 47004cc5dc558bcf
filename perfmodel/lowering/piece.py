"""What an op becomes on a target: pieces, and the registries of rules by an op's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache, lru_cache
from math import prod
from types import MappingProxyType
from typing import Literal, TypeAlias

from perfmodel.ops.graph import Op, Tensor, argument
from perfmodel.ops.operators import OPERATORS, Operator
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.matmul import MATMUL
from perfmodel.registry import Registry

Kind = Literal["kernel", "copy", "collective", "host", "offload"]
Stream = Literal["compute", "comm"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One kernel, copy, collective or stretch of host work: a row of the measurement table.

    `blocks` says that the host waits for it (a copy to pageable memory, `item()`).
    """

    op: str
    dims: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    dtype: str = "fp32"
    direction: str = "fwd"
    kind: Kind = "kernel"
    stream: Stream = "compute"
    blocks: bool = False
    launches: int = 1
    """How many launches the row stands for (the passes of a sort, reductions behind a product)."""
    guessed: bool = False
    """A dim was not told by the op's arguments and stands at a plain guess."""


Lowering: TypeAlias = Callable[[Op], Sequence[Piece]]
"""From one op to its pieces in launch order; none for an op that launches nothing.

A pure function of the call: its name, its arguments (shapes, dtypes, devices, layouts, values) and
any of its attributes. Equal calls share one answer; the op that it gets has no place in a program
(`parent`, `step`, `thread`, `event`), its tensors no ids.
"""

LOWERINGS: Registry[Lowering] = Registry(
    "lowering", "perfmodel.lowerings", "perfmodel.lowering.rules"
)
"""By `TARGET/OP` (`cuda/aten::addmm`), or `any/OP` where targets do not differ; `*` in OP stands
for any text.

Such a rule gives what the op itself launches; what the ops that it calls become comes on top.
Under `TARGET/whole:OP` it gives all, whatever the op calls (but for recorded kernels); under
`TARGET/leaf:OP` it answers only where nothing that the op calls becomes anything (the graph may not
say what it calls). An op that has no rule and calls nothing becomes the fallback.
"""


def nothing(op: Op) -> Sequence[Piece]:
    """The rule of ops that launch nothing, whatever they are called with: most calls are views."""
    return ()


LEAF, WHOLE = "leaf:", "whole:"
TIER = "tier::"
"""What names of ops on rows outside the device begin with; all their dims are attributes."""
OF_PROFILE = "recorded::"
"""What names of a profile's kernels begin with that are ops of their own, since no rule stands for
them (`perfmodel.lowering.recorded`)."""


class MissingArguments(Exception):
    """A rule's answer when the arguments it needs are not in the graph: the fallback stands in."""


ANY = "any"


def entries(*names: str, target: str = ANY, scope: str = "") -> tuple[str, ...]:
    """Registry keys of ops by their names, in words; those without `::` are ATen's. `scope`: `LEAF
    WHOLE`."""
    words = (word for text in names for word in text.split())
    full = (word if "::" in word else f"aten::{word}" for word in words)
    return tuple(f"{target}/{scope}{name}" for name in full)


def with_inplace(*names: str) -> tuple[str, ...]:
    """Each ATen name, and the same with the underscore of the variant that works in place."""
    words = (word for text in names for word in text.split())
    return entries(*(variant for word in words for variant in (word, f"{word}_")))


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
        usual = next(iter(dtypes.values()))
        pieces: list[Piece] = []
        for row in record.rows:
            dims = {
                name: _dim(text, elements)
                for name, text in row.dims
                if ">" not in text or _dim(text, elements)
            }
            if OPS[row.op].family == MATMUL:
                dims[FRAMEWORK] = float(framework_code(TORCH))
            if dims.pop("if", 1.0) and all(dims[name] for name in OPS[row.op].dims):
                dtype = dtypes.get(row.dtype, row.dtype or usual)
                pieces.append(Piece(row.op, dims, dtype, row.direction, launches=row.launches))
        return pieces

    return rule


def tensor(op: Op, index: int) -> Tensor:
    """The tensor that is argument `index`; raises `MissingArguments` where it is none."""
    value = argument(op, index)
    if not isinstance(value, Tensor):
        raise MissingArguments
    return value


def _dim(text: str, elements: Mapping[str, float]) -> float:
    """A number, or a product of sizes."""
    if text.replace(".", "").isdigit():
        return float(text)
    name, above, limit = text.partition(">")
    if above:
        return float(elements[name] > float(limit))
    return prod(elements[each] for each in text.split("*"))
