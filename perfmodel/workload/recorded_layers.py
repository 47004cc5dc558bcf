"""Layers of any kind, as recorded operators: what a model does beside its embedding tables.

An op graph, of a module, of a trace or of a workload, is cut where rows are looked up. Forward: ops
that look up, what prepares indices for them alone, and collectives go; what others read of their
results are the model's pooled rows. Backward: their counterparts go, and the accumulation of
gradients with all that DDP does of it; a step puts its own in their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from perfmodel.errors import WorkloadError
from perfmodel.lowering import lower
from perfmodel.lowering.observed import with_placement
from perfmodel.lowering.piece import OF_PROFILE
from perfmodel.lowering.recorded import with_recorded
from perfmodel.ops.edits.batch import batch_of, rebatch
from perfmodel.ops.edits.leaves import Leaves
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    INPUT,
    NO_OP,
    OPTIMIZER,
    Op,
    OpGraph,
    Tensor,
    tensors_in,
)
from perfmodel.ops.read import op_graph
from perfmodel.timeline.graph.build import build_rank
from perfmodel.trace import Trace
from perfmodel.workload.recorded_calls import INTEGERS, OuterCall, calls_of, ops_of_layers, together

AS_RECORDED = " kernels that no rule stands for take as long as recorded, on any device"
_ACCUMULATED = f"{AUTOGRAD_NODE}torch::autograd::AccumulateGrad"


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
    """What is taken as recorded, and what is guessed of them at this batch."""

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
        notes=(*layers.notes, *(f"{layers.source}: {each}" for each in skipped)),
    )


def _moved(ops: Iterable[Op], by: int) -> tuple[Op, ...]:
    """`ops` that stand so many places further on."""
    return tuple(op if op.parent == NO_OP else replace(op, parent=op.parent + by) for op in ops)


def traced_graphs(trace: Trace) -> list[OpGraph]:
    """The ops of each rank, and the kernels of its profile that no rule stands for (of compiled
    regions), which take as long as recorded on any device. Raises `TraceError` without shapes."""
    graphs, every = list(op_graph(trace)), zip(trace.ranks, trace.links, strict=True)
    profiles = {pair[0].rank: pair for pair in every if len(pair[1].device_rows)}
    for at, graph in enumerate(graphs):
        if graph.rank in profiles:
            rank, links = profiles[graph.rank]
            lowered = lower(with_placement(graph, rank, links), "cuda")
            graphs[at] = with_recorded(lowered, rank, links, build_rank(rank, links)).graph
    return graphs


def recorded_layers(graph: OpGraph, batch: int | None = None) -> RecordedLayers:
    """The layers of a step whose rank has `batch` samples (found where it is not given).

    Raises `WorkloadError` for a graph without lookups, or without anything else, and where no input
    shows the batch.
    """
    graph = replace(graph, ops=ops_of_layers(graph))
    batch = batch_of(graph) if batch is None else batch
    calls = calls_of(graph.ops)
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
        elif tensor.dtype not in INTEGERS:
            held.append(tensor)
    before_loss = _before_loss(kept, {x.storage_id for x in held}, set(inputs))
    features = {key for call in before_loss for key in call.read}
    order = {x.tensor_id: number for number, x in enumerate(held)}
    learned = sorted(
        zip(_parameters([x for _, x in back.gradients], held), back.gradients, strict=True),
        key=lambda pair: order.get(pair[0].tensor_id, len(held)),
    )
    as_recorded = [
        op for call in (*kept, *back.kept) for op in call.ops if op.name.startswith(OF_PROFILE)
    ]
    return RecordedLayers(
        forward=together(kept),
        backward=together(back.kept),
        lookups_at=sum(len(call.ops) for call in kept if call.at < lookups[0].at),
        loss_at=sum(len(call.ops) for call in before_loss),
        row_gradients_at=back.row_gradients_at,
        gradients_at=tuple(at for _, (at, _) in learned),
        parameters=tuple(x for x, _ in learned) if back.kept else tuple(held),
        gradients=tuple(x for _, (_, x) in learned),
        inputs=tuple(each for key, each in inputs.items() if key in features),
        labels=tuple(each for key, each in inputs.items() if key not in features),
        rows=tuple(rows),
        row_gradients=tuple(back.row_gradients),
        batch=batch,
        source=graph.source,
        notes=(f"{graph.source}: {len(as_recorded)}{AS_RECORDED}",) if as_recorded else (),
    )


def _before_loss(
    calls: Sequence[OuterCall], held: set[int], inputs: set[int]
) -> Sequence[OuterCall]:
    """`calls` up to the first that makes but one number, or is given a label: an input that is read
    behind the last layer that holds anything."""
    last = max((number for number, call in enumerate(calls) if call.read & held), default=0)
    known = {key for call in calls[: last + 1] for key in call.read}
    for number, call in enumerate(calls[last + 1 :], last + 1):
        made = [x for op in call.ops[:1] for x in tensors_in(op.outputs)]
        if call.read & (inputs - known) or (made and not any(x.shape for x in made)):
            return calls[:number]
    return calls


@dataclass
class _Backward:
    """Of a backward pass what stays, and behind how many of its ops which gradients are there."""

    kept: list[OuterCall] = field(default_factory=list)
    gradients: list[tuple[int, Tensor]] = field(default_factory=list)
    row_gradients: list[Tensor] = field(default_factory=list)
    row_gradients_at: int = 0


def _cut_backward(calls: Iterable[OuterCall], batch: int) -> _Backward:
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


def _cut_forward(calls: Sequence[OuterCall], batch: int, needed: set[int]) -> list[OuterCall]:
    """Without lookups, collectives, and what works for these alone; `needed`: storages that the
    backward pass reads."""
    kept, wanted = list[OuterCall](), set[int]()
    for call in reversed(calls):
        is_for_them = (call.written & wanted or call.is_of_ids) and not call.returned & needed
        if call.is_exchange or call.looks_up(batch) or is_for_them:
            wanted |= call.read
        else:
            kept.append(call)
            needed = needed | call.read
    return kept[::-1]


def _read_first(calls: Iterable[OuterCall]) -> Iterator[tuple[Tensor, int, int]]:
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
