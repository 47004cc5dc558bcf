"""Layers of any kind, as recorded operators: what a model does beside its embedding tables.

An op graph, of a module, of a trace or of a workload, is cut where rows are looked up. Forward: ops
that look up, what prepares indices for them alone, and collectives go; what others read of their
results are the model's pooled rows. Backward: their counterparts go, and the accumulation of
gradients with all that DDP does of it; a step puts its own in their places.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.batch import batch_of, rebatch
from perfmodel.ops.edits.leaves import Leaves
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    INPUT,
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
    Tensor,
    outermost_of,
    tensors_in,
)
from perfmodel.ops.read import op_graph
from perfmodel.ops.read.module import Call, graph_of_program, program_of
from perfmodel.trace.read import read
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

_ACCUMULATED = f"{AUTOGRAD_NODE}torch::autograd::AccumulateGrad"
_TABLE_WORDS, _REORDERED = ("embedding", "Embedding", "lookup", "Lookup"), "permute"
_OF_LOSS = "aten::ones_like"
_EXCHANGES = ("All2All_", "ReduceScatter_")
"""What TorchRec calls those of rows."""
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")


@dataclass(frozen=True, eq=False)
class RecordedLayers:
    """Layers at `batch` samples of one rank, without lookups; equal to themselves alone.

    Parents count within `forward` and within `backward`. The first `lookups_at` ops of `forward`
    run before rows are there, those from `loss_at` on for the loss alone. Behind the first
    `row_gradients_at` ops of `backward` the gradients of all rows are there, and behind the first
    `gradients_at` that of each parameter; without a backward pass there are none. The optimizer is
    that of the workload.
    """

    forward: tuple[Op, ...]
    backward: tuple[Op, ...]
    lookups_at: int
    loss_at: int
    row_gradients_at: int
    gradients_at: tuple[int, ...]
    parameters: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    """What the host brings of a batch, indices of tables and labels apart."""
    labels: tuple[Tensor, ...]
    rows: tuple[Tensor, ...]
    row_gradients: tuple[Tensor, ...]
    batch: int
    source: str
    """The file, or the workload, that they were recorded of."""
    notes: tuple[str, ...] = ()
    """What is guessed of them at this batch."""

    @property
    def stages(self) -> tuple[tuple[Op, ...], ...]:
        """Ops before lookups, and behind; backward up to the gradients of rows, and behind."""
        parts = []
        for ops, at in ((self.forward, self.lookups_at), (self.backward, self.row_gradients_at)):
            parts += [ops[:at], _moved(ops[at:], -at)]
        return tuple(parts)

    @property
    def parameter_elements(self) -> int:
        return sum(tensor.elements for tensor in self.parameters)

    @property
    def input_elements(self) -> float:
        """Of one sample, its label among them."""
        return sum(tensor.elements for tensor in (*self.inputs, *self.labels)) / self.batch

    def at(self, batch: int) -> RecordedLayers:
        """The same layers at another batch of a rank, followed through all ops. Raises
        `WorkloadError` as `perfmodel.ops.edits.batch.rebatch` does."""
        return self if batch == self.batch else _at(self, batch)


@lru_cache(maxsize=64)
def _at(layers: RecordedLayers, batch: int) -> RecordedLayers:
    back = len(layers.forward)
    ends = layers.inputs, layers.labels, layers.rows, layers.gradients, layers.row_gradients
    ops = (
        *(*layers.forward, *_moved(layers.backward, back)),
        Op("recorded::ends", ends),
        Op("recorded::update", layers.parameters, phase=OPTIMIZER),
    )
    found, skipped = rebatch(OpGraph(ops, source=layers.source), batch, layers.batch)
    *resized, known, _ = found.ops
    inputs, labels, *others = (tuple(tensors_in(each)) for each in known.inputs)
    rows, gradients, row_gradients = others
    return replace(
        layers,
        forward=tuple(resized[:back]),
        backward=_moved(resized[back:], -back),
        inputs=inputs,
        labels=labels,
        rows=rows,
        gradients=gradients,
        row_gradients=row_gradients,
        batch=batch,
        notes=tuple(f"{layers.source}: {each}" for each in skipped),
    )


def _moved(ops: Iterable[Op], by: int) -> tuple[Op, ...]:
    """`ops` that stand so many places further on."""
    return tuple(op if op.parent == NO_OP else replace(op, parent=op.parent + by) for op in ops)


def layers_of_source(source: str, folder: Path, batch: int | None = None) -> RecordedLayers:
    """The layers of a trace, or of a module in training (`FILE.py:CLASS`), at a path from `folder`.

    Raises `PerfmodelError` that names the file.
    """
    program = program_of(source)
    if program is None:
        return recorded_layers(op_graph(read(folder / source))[0], batch)
    program = replace(program, path=folder / program.path)
    return recorded_layers(graph_of_program(program, Call(training=True)), batch)


@dataclass(frozen=True, eq=False)
class _Call:
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
        return bool(self.tensors) and all(x.dtype in _INTEGERS for x in self.tensors)

    def looks_up(self, batch: int) -> bool:
        """Whether it reads rows of tables for a batch, or updates them; not for positions."""
        named = [op for op in self.ops if any(word in op.name for word in _TABLE_WORDS)]
        named = [op for op in named if _REORDERED not in op.name]
        ids = [x.elements for op in named for x in op.tensors if x.dtype in _INTEGERS]
        return bool(named) and max(ids, default=batch) >= batch

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All that it reads."""
        return [tensor for op in self.ops for tensor in op.tensors]

    @cached_property
    def read(self) -> set[int]:
        """Storages that it reads."""
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


def recorded_layers(graph: OpGraph, batch: int | None = None) -> RecordedLayers:
    """The layers of a step whose rank has `batch` samples (found where it is not given).

    Raises `WorkloadError` for a graph without lookups, or without anything else, and where no input
    shows the batch.
    """
    graph = _one_step(graph)
    batch = batch_of(graph) if batch is None else batch
    calls = _calls(graph.ops)
    backward = [call for call in calls if call.phase == BACKWARD]
    nodes = [number for number, call in enumerate(backward) if call.name.startswith(AUTOGRAD_NODE)]
    # behind the last node comes what DDP, or a pipeline, does
    back = _cut_backward(backward[: nodes[-1] + 1 if nodes else None], batch)
    start = next((number for number, call in enumerate(calls) if call.phase == BACKWARD), None)
    every = [call for call in calls[:start] if call.phase == FORWARD]
    lookups = [call for call in every if call.looks_up(batch)]
    if not lookups:
        raise WorkloadError(f"{graph.source}: no op looks up rows of tables for its batch")
    kept = _cut_forward(every, batch, set[int]().union(*(call.read for call in back.kept)))
    if not kept:
        raise WorkloadError(f"{graph.source}: no layers beside its lookups")
    gone = {key for call in every if call not in kept for key in call.written}
    brought = {key for call in calls if call.phase == INPUT for key in call.written}
    leaves = Leaves(graph, batch)
    rows, inputs, held = list[Tensor](), dict[int, Tensor](), list[Tensor]()
    for tensor, at, place in _read_first(kept):
        if tensor.storage_id in gone:
            rows.append(tensor)
        elif tensor.storage_id in brought or (
            tensor.shape and leaves.grows_at(at, place, tensor) is not None
        ):
            inputs[tensor.storage_id] = tensor
        elif tensor.dtype not in _INTEGERS:
            held.append(tensor)
    before_loss = _before_loss(kept, {x.storage_id for x in held}, set(inputs))
    features = {key for call in before_loss for key in call.read}
    ends, gradients = [at for at, _ in back.gradients], [tensor for _, tensor in back.gradients]
    return RecordedLayers(
        forward=_together(kept),
        backward=_together(back.kept),
        lookups_at=_length(call for call in kept if call.at < lookups[0].at),
        loss_at=_length(before_loss),
        row_gradients_at=back.row_gradients_at,
        gradients_at=tuple(ends),
        parameters=tuple(_parameters(gradients, held) if back.kept else held),
        gradients=tuple(gradients),
        inputs=tuple(each for key, each in inputs.items() if key in features),
        labels=tuple(each for key, each in inputs.items() if key not in features),
        rows=tuple(rows),
        row_gradients=tuple(back.row_gradients),
        batch=batch,
        source=graph.source,
    )


def _length(calls: Iterable[_Call]) -> int:
    return sum(len(call.ops) for call in calls)


def _before_loss(calls: Sequence[_Call], held: set[int], inputs: set[int]) -> Sequence[_Call]:
    """`calls` up to the first that makes but one number, or is given a label: an input that is read
    behind the last layer that holds anything."""
    last = max((number for number, call in enumerate(calls) if call.read & held), default=0)
    known = {key for call in calls[: last + 1] for key in call.read}
    for number, call in enumerate(calls[last + 1 :], last + 1):
        made = [x for op in call.ops[:1] for x in tensors_in(op.outputs)]
        if call.read & (inputs - known) or (made and not any(x.shape for x in made)):
            return calls[:number]
    return calls


def _one_step(graph: OpGraph) -> OpGraph:
    """The ops of the step that has most, of the threads that run layers."""
    threads = (MAIN_THREAD, AUTOGRAD_THREAD)
    (step, _), *_ = Counter(op.step for op in graph.ops).most_common(1)
    kept = [at for at, op in enumerate(graph.ops) if op.step == step and op.thread in threads]
    place = {old: new for new, old in enumerate(kept)}
    ops = [replace(graph.ops[at], parent=place.get(graph.ops[at].parent, NO_OP)) for at in kept]
    return replace(graph, ops=_told_apart(ops))


def _told_apart(ops: Sequence[Op]) -> tuple[Op, ...]:
    """`ops` with other ids: traces give those of freed tensors and storages to new ones. What an op
    returns on a storage that it was not given is new, but to the calls around it."""
    storages, tensors, numbers = dict[Any, int](), dict[Any, int](), count(1)
    made: defaultdict[int, set[Any]] = defaultdict(set)

    def place(tensor: Tensor) -> Any:
        return tensor.storage_id if tensor.storage_id >= 0 else ("alone", tensor.tensor_id)

    def named(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(map(named, argument))
        if not isinstance(argument, Tensor) or argument.tensor_id < 0:
            return argument
        storage = storages.setdefault(place(argument), next(numbers))
        which = argument.tensor_id, storage, argument.shape, argument.strides
        number = tensors.setdefault(which, next(numbers))
        return replace(argument, tensor_id=number, storage_id=storage)

    found = []
    for op, top in zip(ops, outermost_of(ops), strict=True):
        new = set(map(place, tensors_in(op.outputs))) - set(map(place, op.tensors)) - made[top]
        for each in new:
            storages[each] = next(numbers)
        made[top] |= new
        inputs, outputs = (tuple(map(named, each)) for each in (op.inputs, op.outputs))
        found.append(replace(op, inputs=inputs, outputs=outputs))
    return tuple(found)


def _calls(ops: Sequence[Op]) -> list[_Call]:
    """All calls but the one that makes the gradient of the loss."""
    members: defaultdict[int, list[int]] = defaultdict(list)
    for at, top in enumerate(outermost_of(ops)):
        members[top].append(at)
    calls = [_Call(tuple(own), tuple(ops[at] for at in own)) for own in members.values()]
    return [call for call in calls if call.name != _OF_LOSS or call.tensors[0].shape]


def _together(calls: Iterable[_Call]) -> tuple[Op, ...]:
    """The ops of all `calls`, one after the other."""
    place, placed = {NO_OP: NO_OP}, list[Op]()
    for call in calls:
        for at, op in zip(call.at, call.ops, strict=True):
            place[at] = len(placed)
            placed.append(replace(op, parent=place[op.parent], step=0, event=-1))
    return tuple(placed)


@dataclass
class _Backward:
    """Of a backward pass what stays, and behind how many of its ops which gradients are there."""

    kept: list[_Call] = field(default_factory=list)
    gradients: list[tuple[int, Tensor]] = field(default_factory=list)
    row_gradients: list[Tensor] = field(default_factory=list)
    row_gradients_at: int = 0


def _cut_backward(calls: Iterable[_Call], batch: int) -> _Backward:
    """Without what updates tables, collectives, and all that reads what these made. Gradients of
    parameters are for an engine to accumulate."""
    found, at = _Backward(), 0
    made, gone = set[int](), set[int]()
    for call in calls:
        is_gradient, looks_up = call.name.startswith(_ACCUMULATED), call.looks_up(batch)
        if is_gradient and call.tensors and call.tensors[0].storage_id not in gone:
            found.gradients.append((at, call.tensors[0]))
            made.discard(call.tensors[0].storage_id)
        elif not (is_gradient or looks_up or call.is_exchange or call.read & gone):
            if not call.is_of_ids:
                found.kept.append(call)
                at += len(call.ops)
                made |= call.written
            continue
        given = [x for x in call.tensors if x.storage_id in made and x.elements >= batch]
        if given or (looks_up and not is_gradient):
            found.row_gradients += given[:1]
            found.row_gradients_at = at
        gone |= call.written
    return found


def _cut_forward(calls: Sequence[_Call], batch: int, needed: set[int]) -> list[_Call]:
    """Without lookups, collectives, and what works for these alone; `needed`: storages that the
    backward pass reads."""
    kept, wanted = list[_Call](), set[int]()
    for call in reversed(calls):
        is_for_them = (call.written & wanted or call.is_of_ids) and not call.returned & needed
        if call.is_exchange or call.looks_up(batch) or is_for_them:
            wanted |= call.read
        else:
            kept.append(call)
            needed = needed | call.read
    return kept[::-1]


def _read_first(calls: Iterable[_Call]) -> Iterator[tuple[Tensor, int, int]]:
    """What `calls` read and none of them made: the tensor, the op that reads it, its place."""
    known = {NO_OP}
    for call in calls:
        for at, op in zip(call.at, call.ops, strict=True):
            for place, item in enumerate(op.inputs):
                for tensor in tensors_in(item):
                    if tensor.storage_id not in known:
                        known.add(tensor.storage_id)
                        yield tensor, at, place
            known.update(x.storage_id for x in tensors_in(op.outputs))


def _parameters(gradients: Iterable[Tensor], held: Sequence[Tensor]) -> Iterator[Tensor]:
    """Of each gradient a parameter that the layers hold, of its shape and type; of these, any two
    are as good. Where they hold none, one that nothing else reads."""
    left = list(held)
    for gradient in gradients:
        alike = [x for x in left if (x.shape, x.dtype) == (gradient.shape, gradient.dtype)]
        yield alike[-1] if alike else replace(gradient, tensor_id=NO_OP, storage_id=NO_OP)
        if alike:
            left.remove(alike[-1])
