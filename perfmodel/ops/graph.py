"""The op graph: what a program does, the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.calls import subtree_last

NO_OP = -1
FORWARD, BACKWARD, OPTIMIZER, INPUT = ("forward", "backward", "optimizer", "input")
"""What a step consists of; `input` is what brings the batch (copies, permutes of its indices)."""
LAUNCHED_ALONE: Mapping[str, str] = MappingProxyType({"graph": "none"})
"""Attribute of an op that its program leaves out of its CUDA graphs."""
DEVICE_WIDE: Mapping[str, str] = MappingProxyType({"waits_for": "device"})
"""Attribute of an op behind which the host waits for all that the device was given."""

WAITING = (
    *("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::unique", "aten::_unique2"),
    *("aten::masked_select", "aten::equal", "torch::cuda::synchronize"),
)
"""Ops during which the host waits for what the device makes: no CUDA graph can hold them."""
AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
"""Begins the name of an op that is a node of the backward pass, with all that it calls."""
HOST_US = "host_us"
"""Attribute of an op that launches nothing: what it takes on the host of a profile."""
TRITON = "triton_"
"""What names of kernels that Inductor makes begin with; they are ops of their own."""
MODULE = "module"
"""Attribute of an op: the path of the innermost module that it, or its forward pass, belongs to."""
BACK_TO_BACK = "back_to_back"
"""Attribute of a library's call, which does nothing on the host between its launches."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as an argument: shape, dtype (words of `perfmodel.ops.spec`), and identity.

    `tensor_id` and `storage_id` are -1 where it is unknown which tensor it is. `layout` is `""`,
    `"sparse"` or `"jagged"`; `strides` is empty where unknown (then contiguous is taken).
    """

    shape: tuple[int, ...]
    dtype: str = "fp32"
    tensor_id: int = -1
    storage_id: int = -1
    device: str = ""
    layout: str = ""
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Product of the shape; 1 for a scalar tensor."""
        return prod(self.shape)


Argument: TypeAlias = "Tensor | int | float | bool | str | tuple[Argument, ...] | None"
Arguments: TypeAlias = tuple[Argument, ...]
"""What a call was given, or what it returned."""


@dataclass(frozen=True, slots=True)
class Op:
    """One call of an operator, with what it was given; `aten::addmm`, `AddmmBackward0`, …

    `parent` is the index of the op that called it in the same graph, or `NO_OP`; ops stand in
    program order, callers before what they call. `event` is its row in the trace it came from.
    """

    name: str
    inputs: Arguments = ()
    outputs: Arguments = ()
    parent: int = NO_OP
    thread: str = "main"
    phase: str = FORWARD
    step: int = 0
    event: int = -1
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What else is known: `module`, `process_group`, `backend`, …"""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors among the inputs, lists opened, in order."""
        return tuple(_opened(self.inputs))


@dataclass(frozen=True)
class OpGraph:
    """The ops of one rank, in program order, and which produced what another reads."""

    ops: tuple[Op, ...]
    data: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """`[E, 2]`: (producer, consumer) by index of `ops`."""
    waits: NDArray[np.int64] | None = None
    """`[E, 2]`: (op, op of another stream that waits for it), where a profile shows; else None."""
    rank: int = 0
    world_size: int = 1
    source: str = ""
    """Where it came from: a file, or a workload's name."""
    notes: tuple[str, ...] = ()
    """What was dropped, guessed or could not be determined."""
    removed: tuple[Op, ...] = ()
    """What an edit took out of the calls of ops that stay: nothing stands in for that work. A
    `parent` counts through `ops`, then through these."""
    tf32: bool | None = None
    """Whether products of fp32 tensors run in TF32 on a device that has it; None: not known."""
    held: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """Storages that the program holds longer than its ops read them, to the last op until then."""
    given: tuple[Tensor, ...] = ()
    """What a call of a module is given anew each time."""
    cuda_graphs: bool = False
    """Whether each step is launched as CUDA graphs: as few as hold what they can."""
    others: tuple[OpGraph, ...] = ()
    """The same under other assumptions, which an interval covers as well."""

    def __len__(self) -> int:
        return len(self.ops)

    def top_level(self) -> Iterator[int]:
        return (index for index, op in enumerate(self.ops) if op.parent == NO_OP)


def tensors_in(argument: Argument) -> Iterator[Tensor]:
    """The tensors in an argument, lists and tuples opened, in order."""
    return iter(_opened((argument,)))


def _opened(arguments: Arguments) -> list[Tensor]:
    opened: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            opened.append(argument)
        elif isinstance(argument, tuple):
            opened += _opened(argument)
    return opened


def with_tensors(arguments: Arguments, new: Callable[[Tensor], Tensor]) -> Arguments:
    """The arguments, lists in them too, with what is `new` in place of each tensor, in order."""

    def replaced(each: Argument) -> Argument:
        if isinstance(each, tuple):
            return tuple(map(replaced, each))
        return new(each) if isinstance(each, Tensor) else each

    return tuple(map(replaced, arguments))


def argument(op: Op, index: int) -> Argument:
    """Argument `index` of an op, None where it has fewer."""
    return op.inputs[index] if 0 <= index < len(op.inputs) else None


def integer(op: Op, index: int) -> int | None:
    """The integer that is argument `index`, or None where it is unknown."""
    value = argument(op, index)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def integers(op: Op, index: int) -> tuple[int, ...] | None:
    """The list of integers that is argument `index`, or None where it is unknown."""
    value = argument(op, index)
    items = value if isinstance(value, tuple) else (value,)
    found = tuple(item for item in items if isinstance(item, int))
    return None if isinstance(value, bool) or len(found) < len(items) else found


def outermost_of(ops: Sequence[Op]) -> list[int]:
    """Per op, the one around it that no other called."""
    outermost = list(range(len(ops)))
    for index, op in enumerate(ops):
        if op.parent != NO_OP:
            outermost[index] = outermost[op.parent]
    return outermost


def last_called(ops: Sequence[Op]) -> list[int]:
    """Per op, the last that it calls, directly or not; itself where it calls none."""
    return subtree_last([op.parent for op in ops]).tolist()  # type: ignore[no-any-return]


def dtype_notes(unknown: Counter[str]) -> list[str]:
    """One note per type word that is not known."""
    counts = sorted(unknown.items())
    return [f"{count} tensors have the unknown type {word!r}" for word, count in counts]
