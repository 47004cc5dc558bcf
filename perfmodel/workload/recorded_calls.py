"""The calls of one step of an op graph: outermost ops, with all that each calls.

What they read and write is told by tensors and storages; a graph without ids tells neither.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    NO_OP,
    Op,
    OpGraph,
    Tensor,
    outermost_of,
    tensors_in,
    with_tensors,
)
from perfmodel.ops.lookups import is_lookup
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

_OF_LOSS = "aten::ones_like"
_EXCHANGES = ("All2All_", "ReduceScatter_")
"""What TorchRec calls those of rows."""
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True, eq=False)
class OuterCall:
    """An op that no other called, with all that it calls: their places, in order."""

    at: tuple[int, ...]
    ops: tuple[Op, ...]

    @property
    def name(self) -> str:
        return self.ops[0].name

    @property
    def phase(self) -> str:
        return self.ops[0].phase

    @property
    def is_exchange(self) -> bool:
        is_named = self.name.removeprefix(AUTOGRAD_NODE).startswith(_EXCHANGES)
        return is_named or any("collective" in op.attributes for op in self.ops)

    @property
    def is_of_ids(self) -> bool:
        """Whether all that it reads are numbers of rows, of bags, of ranks."""
        return bool(self.tensors) and all(x.dtype in INTEGERS for x in self.tensors)

    def looks_up(self, batch: int) -> bool:
        """Whether it reads rows of tables for a batch, or updates them; not for positions."""
        named = [op for op in self.ops if is_lookup(op.name)]
        ids = [x.elements for op in named for x in op.tensors if x.dtype in INTEGERS]
        return bool(named) and max(ids, default=batch) >= batch

    @cached_property
    def tensors(self) -> list[Tensor]:
        return [tensor for op in self.ops for tensor in op.tensors]

    @cached_property
    def read(self) -> set[int]:
        return {x.storage_id for x in self.tensors} - {NO_OP}

    @cached_property
    def returned(self) -> set[int]:
        """Storages of what it makes, views among it."""
        return {x.storage_id for op in self.ops for x in tensors_in(op.outputs)} - {NO_OP}

    @cached_property
    def written(self) -> set[int]:
        """Of these, all but what an op was given and returned as another tensor: a view."""
        keys: set[int] = set()
        for op in self.ops:
            ids, given = {x.tensor_id for x in op.tensors}, {x.storage_id for x in op.tensors}
            made = tensors_in(op.outputs)
            keys |= {x.storage_id for x in made if x.tensor_id in ids or x.storage_id not in given}
        return keys - {NO_OP}


def one_step(ops: Sequence[Op]) -> list[Op]:
    """The ops of one whole step: of the profiler's steps, else from one forward pass behind a
    backward pass to the next, the one with most ops, of equal ones the last."""
    keys, number, is_behind = [op.step for op in ops], 0, False
    if len(set(keys)) == 1:
        for index, op in enumerate(ops):
            is_next = is_behind and op.phase == FORWARD and op.parent == NO_OP
            is_next = is_next and op.thread == MAIN_THREAD
            is_behind = op.phase == BACKWARD or (is_behind and not is_next)
            number += is_next
            keys[index] = number
    best = max(Counter(keys).items(), key=lambda each: (each[1], each[0]))[0]
    return _alone(ops, [index for index, key in enumerate(keys) if key == best])


def _alone(ops: Sequence[Op], kept: Sequence[int]) -> list[Op]:
    place = {old: new for new, old in enumerate(kept)}
    return [replace(ops[at], parent=place.get(ops[at].parent, NO_OP)) for at in kept]


def ops_of_layers(graph: OpGraph) -> tuple[Op, ...]:
    """Those of one step on the threads that run layers, with ids of their own: traces give those of
    freed tensors and storages to new ones. What an op returns on a storage that it was not given is
    new, but to the calls around it."""
    step = one_step(graph.ops)
    threads = (MAIN_THREAD, AUTOGRAD_THREAD)
    ops = _alone(step, [at for at, op in enumerate(step) if op.thread in threads])
    storages, tensors, numbers = dict[Any, int](), dict[Any, int](), count(1)
    made: defaultdict[int, set[Any]] = defaultdict(set)

    def place(tensor: Tensor) -> Any:
        return tensor.storage_id if tensor.storage_id >= 0 else ("alone", tensor.tensor_id)

    def named(tensor: Tensor) -> Tensor:
        if tensor.tensor_id < 0:
            return tensor
        storage = storages.setdefault(place(tensor), next(numbers))
        which = tensor.tensor_id, storage, tensor.shape, tensor.strides
        number = tensors.setdefault(which, next(numbers))
        return replace(tensor, tensor_id=number, storage_id=storage)

    found = []
    for op, top in zip(ops, outermost_of(ops), strict=True):
        new = set(map(place, tensors_in(op.outputs))) - set(map(place, op.tensors)) - made[top]
        for each in new:
            storages[each] = next(numbers)
        made[top] |= new
        inputs, outputs = (with_tensors(each, named) for each in (op.inputs, op.outputs))
        found.append(replace(op, inputs=inputs, outputs=outputs))
    return tuple(found)


def calls_of(ops: Sequence[Op]) -> list[OuterCall]:
    """All calls but the one that makes the gradient of the loss."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    for at, top in enumerate(outermost_of(ops)):
        members[top].append(at)
    calls = [OuterCall(tuple(own), tuple(ops[at] for at in own)) for own in members.values()]
    return [call for call in calls if call.name != _OF_LOSS or call.tensors[0].shape]


def together(calls: Iterable[OuterCall]) -> tuple[Op, ...]:
    """The ops of all `calls`, one after the other."""
    place, placed = {NO_OP: NO_OP}, list[Op]()
    for call in calls:
        for at, op in zip(call.at, call.ops, strict=True):
            place[at] = len(placed)
            about = dict(op.attributes)  # which can be pickled
            op = replace(op, parent=place[op.parent], step=0, event=-1, attributes=about)
            placed.append(op)
    return tuple(placed)
