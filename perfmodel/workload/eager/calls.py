"""The ops of a step as they are called, the tensors they make, and what autograd keeps of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from perfmodel.ops.graph import FORWARD, NO_OP, Argument, Op, Tensor

LEAF_SEQUENCE = 1 << 62
"""Gradients of parameters are accumulated before anything else that is ready."""
ACCUMULATE = "torch::autograd::AccumulateGrad"

Gradients: TypeAlias = "Sequence[Tensor | None]"
T = TypeVar("T", Tensor, tuple[Tensor, ...])


@dataclass(slots=True, eq=False)
class Node:
    """One node of the backward graph; `next` are those of its inputs that need a gradient."""

    name: str
    sequence: int
    inputs: tuple[Tensor, ...] = ()
    next: tuple[tuple[Node, int] | None, ...] = ()
    backward: Callable[[Any], Gradients] | None = None
    has_several: bool = False
    about: Mapping[str, str] = field(default_factory=dict)
    """Attributes of its op."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    waiting: int = 0


Tape = dict[int, tuple[Node, int]]
"""Which node made each tensor, and as which of its outputs; parameters have a node of their own."""
Shape = tuple[int, ...]
NOTHING: Mapping[str, str] = MappingProxyType({})


class CallRecorder:
    """Ops in program order, callers before what they call.

    `device` is `cpu` or `cuda`. `tape` is what autograd needs of the forward pass, or None;
    `is_bare` leaves out the nodes and wrappers of PyTorch's autograd engine around what they call,
    and its checks of indices.
    """

    def __init__(self, device: str) -> None:
        self.is_cpu = device == "cpu"
        self.place = "cpu" if self.is_cpu else "cuda:0"
        self.thread, self.phase = "main", FORWARD
        self.tape: Tape | None = None
        self.is_bare = False
        self.views: set[int] = set()
        self.sparse_parts: dict[int, tuple[Tensor, Tensor]] = {}
        self.common: Mapping[str, str] = NOTHING
        self.waiting: Mapping[str, str] = NOTHING
        """Attributes of what begins the next backward pass."""
        self._ops: list[Any] = []
        self._at = NO_OP
        self._parents: list[int] = []
        self._last_id = self._sequence = 0

    def ops(self) -> tuple[Op, ...]:
        """What was recorded; every op has ended."""
        return tuple(self._ops)

    def tensor(self, shape: Shape, dtype: str = "fp32", *, place: str = "") -> Tensor:
        """A new contiguous tensor with a storage of its own."""
        self._last_id = number = self._last_id + 2
        strides = contiguous(shape)
        return Tensor(shape, dtype, number, number + 1, place or self.place, "", strides)

    def like(self, x: Tensor) -> Tensor:
        return self.tensor(x.shape, x.dtype)

    def view(self, of: Tensor, shape: Shape, strides: Shape) -> Tensor:
        """Another tensor on the storage of `of`."""
        self._last_id = number = self._last_id + 2
        self.views.add(number)
        return Tensor(shape, of.dtype, number, of.storage_id, of.device, of.layout, strides)

    def begin(self, name: str, *inputs: Argument) -> None:
        """An op begins; those recorded until its `end` are called by it."""
        self._parents.append(self._at)
        self._at = len(self._ops)
        self._ops.append((name, inputs))

    def end(self, *outputs: Argument, about: Mapping[str, str] = NOTHING) -> None:
        """The op that began last ends; `about` are its attributes."""
        at = self._at
        name, inputs = self._ops[at]
        self._at = parent = self._parents.pop()
        self._ops[at] = self._op(name, inputs, outputs, parent, about)

    def leaf(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        *outputs: Argument,
        about: Mapping[str, str] = NOTHING,
    ) -> None:
        self._ops.append(self._op(name, inputs, outputs, self._at, about))

    def made(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        shape: Shape,
        dtype: str = "fp32",
        *,
        place: str = "",
        about: Mapping[str, str] = NOTHING,
    ) -> Tensor:
        """The new tensor that an op gives which calls no other."""
        out = self.tensor(shape, dtype, place=place)
        self._ops.append(self._op(name, inputs, (out,), self._at, about))
        return out

    def made_like(self, x: Tensor, name: str, *inputs: Argument) -> Tensor:
        """The same, of the shape and dtype of `x`."""
        return self.made(name, inputs, x.shape, x.dtype)

    def parameter(self, *tensors: Tensor) -> None:
        """From now on `tensors` get gradients, where the step is trained."""
        if self.tape is not None:
            for tensor in tensors:
                self.tape[tensor.tensor_id] = (Node(ACCUMULATE, LEAF_SEQUENCE, (tensor,)), 0)

    def needs_gradient(self, x: Tensor) -> bool:
        """Whether `x` is a parameter, or was made of one."""
        return self.tape is not None and x.tensor_id in self.tape

    def track(
        self,
        node: str,
        inputs: tuple[Tensor, ...],
        output: T,
        backward: Callable[[Any], Gradients],
        about: Mapping[str, str] = NOTHING,
    ) -> T:
        """`output`, made of `inputs`, whose gradients the `backward` of PyTorch's `node` gives from
        that of the output, or from those of several outputs that have one."""
        edges = tuple(self.tape.get(x.tensor_id) for x in inputs) if self.tape else ()
        if self.tape is not None and any(edges):
            self._sequence += 1
            outputs = output if isinstance(output, tuple) else (output,)
            has_several = outputs is output
            made = Node(node, self._sequence, inputs, edges, backward, has_several, about)
            for number, each in enumerate(outputs):
                self.tape[each.tensor_id] = (made, number)
        return output

    @contextmanager
    def of_engine(
        self, name: str, *inputs: Argument, about: Mapping[str, str] = NOTHING
    ) -> Iterator[None]:
        """An op of PyTorch's autograd engine around what is recorded meanwhile; of a node without a
        name, whose ops bring their own, none."""
        if self.is_bare or not name:
            yield
            return
        self.begin(name, *inputs)
        yield
        self.end(about=about)

    @contextmanager
    def _having(self, **changes: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in changes}
        vars(self).update(changes)
        yield
        vars(self).update(before)

    def untracked(self) -> AbstractContextManager[None]:
        """What is recorded meanwhile is differentiated as a whole, by who calls this."""
        return self._having(tape=None)

    def label(self, name: str) -> AbstractContextManager[None]:
        """An annotation around what is recorded meanwhile: no op, an attribute of those within."""
        return self.with_attributes({"annotation": name})

    def with_attributes(self, attributes: Mapping[str, str]) -> AbstractContextManager[None]:
        """Ops recorded meanwhile have `attributes` beside their own."""
        return self._having(common=MappingProxyType({**self.common, **attributes}))

    def during(self, phase: str, thread: str = "") -> AbstractContextManager[None]:
        """Ops recorded meanwhile belong to `phase`, and to another `thread` if one is named."""
        return self._having(phase=phase, thread=thread or self.thread)

    def _op(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        outputs: tuple[Argument, ...],
        parent: int,
        about: Mapping[str, str],
    ) -> Op:
        known = {**self.common, **about} if about and self.common else about or self.common
        return Op(name, inputs, outputs, parent, self.thread, self.phase, 0, -1, known)


@lru_cache(maxsize=1 << 16)
def contiguous(shape: Shape) -> Shape:
    """Strides of a contiguous tensor; a dim of 0 counts as 1, as PyTorch does."""
    sizes = (max(size, 1) for size in shape[:0:-1])
    return tuple(accumulate(sizes, mul, initial=1))[::-1] if shape else ()


def is_contiguous(tensor: Tensor) -> bool:
    """Whether the elements lie in the order of the dims without gaps; dims of 1 do not count."""
    usual = contiguous(tensor.shape)
    return tensor.strides == usual or all(
        size == 1 or stride == want
        for size, stride, want in zip(tensor.shape, tensor.strides, usual, strict=True)
    )
