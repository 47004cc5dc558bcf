"""Recorded layers in a step: their ops once more, on the step's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import NO_OP, Argument, Op, Tensor, with_tensors
from perfmodel.workload.eager.calls import Gradients, Shape, contiguous
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.recorded_layers import RecordedLayers
from perfmodel.workload.step import Run

CPU, UNNAMED = "cpu", ""
WithRows = Callable[[Tensor], Tensor | None]
"""From pooled rows to the loss, where the step is trained."""


class Replay:
    """Layers whose parameters a step made, run for one micro-batch after the other."""

    def __init__(self, r: Recorder, recorded: RecordedLayers) -> None:
        self._recorded = recorded
        is_of_cpu = all(x.device == CPU for op in recorded.forward for x in op.tensors)
        self._held = _Names(r, is_of_cpu)
        self.parameters = [self._held.known(each) for each in recorded.parameters]

    def inputs(self, run: Run) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of what the host brings of a batch, indices of tables apart."""
        layers = self._recorded.at(run.batch)
        brought = (*layers.inputs, *layers.labels) if run.train else layers.inputs
        return [(each.shape, each.dtype) for each in brought]

    def until_rows(self, r: Recorder, run: Run, inputs: Sequence[Tensor]) -> WithRows:
        """What is done before pooled rows are there, and what is to be done with them."""
        part = _Part(r, self._recorded.at(run.batch), self._held.copied(), self.parameters)
        layers = part.layers
        if run.train and not layers.backward:
            raise WorkloadError(f"{layers.source}: recorded without a backward pass")
        for recorded, given in zip((*layers.inputs, *layers.labels), inputs, strict=False):
            part.names.put(recorded, given)
        part.run(layers.forward, 0, layers.lookups_at)
        middle, last = layers.row_gradients_at, len(layers.backward)
        link = part.chain(middle, last) if run.train else None

        def with_rows(rows: Tensor) -> Tensor | None:
            for recorded in layers.rows:
                part.names.put(recorded, rows)
            end = len(layers.forward) if run.train else layers.loss_at
            part.run(layers.forward, layers.lookups_at, end)
            return part.chain(0, middle, rows, link) if run.train else None

        return with_rows


@dataclass(frozen=True)
class _Part:
    """The layers for a micro-batch.

    On a tape their backward pass is a chain of nodes, each up to the next gradient of a parameter.
    The one behind which the gradients of all rows are there hands these to the tables, which come
    before the rest of the chain, as they do where each op has a node of its own.
    """

    r: Recorder
    layers: RecordedLayers
    names: _Names
    parameters: Sequence[Tensor]

    def run(self, ops: Sequence[Op], begin: int, end: int) -> None:
        """The ops from `begin` to `end`, callers around what they call."""
        calling: list[int] = []

        def leave(until: int) -> None:
            while calling and calling[-1] != until:
                op = ops[calling.pop()]
                self.r.end(*self.names.all_of(op.outputs), about=op.attributes)

        for at in range(begin, end):
            leave(ops[at].parent)
            self.r.begin(ops[at].name, *self.names.all_of(ops[at].inputs))
            calling.append(at)
        leave(NO_OP)

    def chain(
        self, first: int, last: int, rows: Tensor | None = None, link: Tensor | None = None
    ) -> Tensor | None:
        """Nodes of the backward ops from `first` to `last`; the last of them hands gradients on to
        `rows`, and to the chain of `link`."""
        if first == last:
            return link
        ends = sorted({at for at in self.layers.gradients_at if first < at < last} | {last})
        for begin, end in reversed(list(zip([first, *ends], ends, strict=False))):
            link, rows = self._node(begin, end, rows, link), None
        return link

    def _node(self, begin: int, end: int, rows: Tensor | None, link: Tensor | None) -> Tensor:
        layers = self.layers
        here = [number for number, at in enumerate(layers.gradients_at) if at == end]

        def backward(_: Tensor) -> Gradients:
            self.run(layers.backward, begin, end)
            of_rows = [] if rows is None else [self._of_rows(rows)]
            of_link = [] if link is None else [self.r.like(link)]
            own = (self.names.known(layers.gradients[number]) for number in here)
            return [*own, *of_rows, *of_link]

        given = (*(self.parameters[number] for number in here), *filter(None, (rows, link)))
        return self.r.track(UNNAMED, given, self.r.tensor(()), backward)

    def _of_rows(self, rows: Tensor) -> Tensor:
        """The gradient of all pooled rows, of those of single tables put together."""
        parts = tuple(self.names.known(each) for each in self.layers.row_gradients)
        if len(parts) == 1 and parts[0].elements == rows.elements:
            return self.r.view(parts[0], rows.shape, contiguous(rows.shape))
        if not parts:  # not recorded which they are
            return self.r.like(rows)
        return self.r.made("aten::cat", (parts, -1), rows.shape, rows.dtype)


class _Names:
    """The step's tensors by those recorded; `is_of_cpu`: on a machine without another device."""

    def __init__(self, r: Recorder, is_of_cpu: bool) -> None:
        self._r, self._is_of_cpu = r, is_of_cpu
        self._by_id: dict[int, Tensor] = {}
        self._by_storage: dict[int, Tensor] = {}

    def copied(self) -> _Names:
        other = _Names(self._r, self._is_of_cpu)
        other._by_id, other._by_storage = dict(self._by_id), dict(self._by_storage)
        return other

    def put(self, recorded: Tensor, own: Tensor) -> None:
        """`own` holds what `recorded` did."""
        self._by_storage[recorded.storage_id] = own

    def of(self, recorded: Tensor) -> Tensor:
        """The step's own; one that is not known is new. Which of them is which is unknown where it
        was recorded so."""
        r, key = self._r, recorded.storage_id
        on_host = r.is_cpu or (recorded.device == CPU and not self._is_of_cpu)
        place = CPU if on_host else r.place
        if recorded.tensor_id < 0:
            return replace(recorded, device=place)
        if recorded.tensor_id not in self._by_id:
            shape, strides = recorded.shape, recorded.strides or contiguous(recorded.shape)
            held = self._by_storage.get(key)
            made = r.tensor(shape, place=place) if held is None else r.view(held, shape, strides)
            self._by_storage.setdefault(key, made)
            self._by_id[recorded.tensor_id] = made
        own = self._by_id[recorded.tensor_id]
        return replace(recorded, tensor_id=own.tensor_id, storage_id=own.storage_id, device=place)

    def known(self, recorded: Tensor) -> Tensor:
        """The same, but a new one where it was not recorded which it is."""
        is_known = recorded.tensor_id >= 0
        return self.of(recorded) if is_known else self._r.tensor(recorded.shape, recorded.dtype)

    def all_of(self, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Arguments of an op with the step's own tensors."""
        return with_tensors(arguments, self.of)
