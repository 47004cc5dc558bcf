"""What an op becomes on a target: pieces, and the registry of rules by an op's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from perfmodel.base.registry import Registry
from perfmodel.ops.graph import Op

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


def rule(
    *names: str, target: str = ANY, scope: str = "", library: str = "aten::"
) -> Callable[[Lowering], Lowering]:
    """A decorator: the rule of ops by their names, in words; those without `::` are of `library`.
    `target`: one, or several in words; `scope`: `LEAF WHOLE`."""
    words = (word for text in names for word in text.split())
    full = [word if "::" in word else f"{library}{word}" for word in words]
    keys = (f"{each}/{scope}{name}" for each in target.split() for name in full)
    return LOWERINGS.register(*keys)
