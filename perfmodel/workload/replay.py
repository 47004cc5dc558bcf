"""Recorded layers in a step: their ops once more, on the step's own tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import Argument, Op, Tensor
from perfmodel.workload.eager.recorder import Gradients, Recorder, Shape, contiguous
from perfmodel.workload.recorded_layers import RecordedLayers, storage_key
from perfmodel.workload.step import Run

CPU, UNNAMED = "cpu", ""


WithRows = Callable[[Tensor], Tensor | None]
"""From pooled rows to the loss, where the step is trained."""


class Replay:
    """Layers whose parameters a step made, run for one micro-batch after the other.

    On a tape their backward pass is a chain of nodes, each up to the next gradient of a parameter.
    The one behind which the gradients of all rows are there hands these to the tables, which come
    before the rest of the chain, as they do where each op has a node of its own.
    """

    def __init__(self, r: Recorder, recorded: RecordedLayers) -> None:
        self._recorded = recorded
        is_of_cpu = all(x.device == CPU for op in recorded.forward for x in op.tensors)
        self._held = _Names(r, is_of_cpu)
        self.parameters = [self._held.of(each) for each in recorded.parameters]

    def inputs(self, run: Run) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of what the host brings of a batch, indices of tables apart."""
        layers = self._recorded.at(run.batch)
        brought = (*layers.inputs, *layers.labels) if run.train else layers.inputs
        return [(each.shape, each.dtype) for each in brought]

    def until_rows(self, r: Recorder, run: Run, inputs: Sequence[Tensor]) -> WithRows:
        """What is done before pooled rows are there, and what is to be done with them."""
        layers, names = self._recorded.at(run.batch), self._held.copied()
        if run.train and not layers.backward:
            raise WorkloadError(f"{layers.source}: recorded without a backward pass")
        for recorded, given in zip((*layers.inputs, *layers.labels), inputs, strict=False):
            names.put(recorded, given)
        _run(r, names, layers.forward, 0, layers.lookups_at)
        middle, last = layers.row_gradients_at, len(layers.backward)
        link = self._chain(r, layers, names, middle, last) if run.train else None

        def with_rows(rows: Tensor) -> Tensor | None:
            for recorded in layers.rows:
                names.put(recorded, rows)
            end = len(layers.forward) if run.train else layers.loss_at
            _run(r, names, layers.forward, layers.lookups_at, end)
            return self._chain(r, layers, names, 0, middle, rows, link) if run.train else None

        return with_rows

    def _chain(
        self,
        r: Recorder,
        layers: RecordedLayers,
        names: _Names,
        first: int,
        last: int,
        rows: Tensor | None = None,
        link: Tensor | None = None,
    ) -> Tensor | None:
        """Nodes of the backward ops from `first` to `last`; the last of them hands gradients on to
        `rows`, and to the chain of `link`."""
        if first == last:
            return link
        ends = sorted({at for at in layers.gradients_at if first < at < last} | {last})
        for begin, end in reversed(list(zip([first, *ends], ends, strict=False))):
            link = self._node(r, layers, names, begin, end, [rows, link])
            rows = None
        return link

    def _node(
        self,
        r: Recorder,
        layers: RecordedLayers,
        names: _Names,
        begin: int,
        end: int,
        then: Sequence[Tensor | None],
    ) -> Tensor:
        rows, link = then
        here = [number for number, at in enumerate(layers.gradients_at) if at == end]

        def backward(_: Tensor) -> Gradients:
            _run(r, names, layers.backward, begin, end)
            of_rows = [] if rows is None else [_of_rows(r, names, layers, rows)]
            of_link = [] if link is None else [r.like(link)]
            return [*(names.of(layers.gradients[number]) for number in here), *of_rows, *of_link]

        given = (*(self.parameters[number] for number in here), *filter(None, then))
        return r.track(UNNAMED, given, r.tensor(()), backward)


class _Names:
    """The step's tensors by those that were recorded; `is_of_cpu`: on a machine without another
    device."""

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
        self._by_storage[storage_key(recorded)] = own

    def of(self, recorded: Tensor) -> Tensor:
        """The step's own; one that is not known is new. Which of them is which is unknown where it
        was recorded so."""
        r, key = self._r, storage_key(recorded)
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

    def all_of(self, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Arguments of an op with the step's own tensors."""
        return tuple(
            self.of(each)
            if isinstance(each, Tensor)
            else self.all_of(each)
            if isinstance(each, tuple)
            else each
            for each in arguments
        )


def _run(r: Recorder, names: _Names, ops: Sequence[Op], begin: int, end: int) -> None:
    """The ops from `begin` to `end`, callers around what they call."""
    calling: list[int] = []

    def leave(until: int) -> None:
        while calling and calling[-1] != until:
            op = ops[calling.pop()]
            r.end(*names.all_of(op.outputs), about=op.attributes)

    for at in range(begin, end):
        leave(ops[at].parent)
        r.begin(ops[at].name, *names.all_of(ops[at].inputs))
        calling.append(at)
    leave(-1)


def _of_rows(r: Recorder, names: _Names, layers: RecordedLayers, rows: Tensor) -> Tensor | None:
    """The gradient of all pooled rows, of those of single tables put together."""
    parts = tuple(names.of(each) for each in layers.row_gradients)
    if not parts:
        return None
    if len(parts) == 1 and parts[0].elements == rows.elements:
        return r.view(parts[0], rows.shape, contiguous(rows.shape))
    return r.made("aten::cat", (parts, -1), rows.shape, rows.dtype)
