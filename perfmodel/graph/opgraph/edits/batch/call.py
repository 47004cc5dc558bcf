"""One call while the sizes of its tensors are followed through the graph."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.opgraph.edits.batch.sizes import Dims
from perfmodel.graph.ops import Argument, Op, Tensor


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
    found: list[Tensor | None] = []
    for output in op.outputs:
        for item in output if isinstance(output, tuple) else (output,):
            found.append(item if isinstance(item, Tensor) else None)
    return tuple(found)
