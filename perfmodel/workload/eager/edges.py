"""Which op made what another reads: by the storages they touch, the innermost writer counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.graph.ops import NO_OP, Argument, Op, Tensor, tensors_in

COLLECTIVE = "c10d::"
RECORDED = "record_param_comms"
"""What NCCL records below a collective: the tensor that it fills stands last."""
ITSELF = frozenset(("aten::to", "aten::resolve_conj", "aten::broadcast_tensors"))
"""Ops that may return what they were given, untouched."""


def data_edges(ops: Sequence[Op], views: set[int]) -> NDArray[np.int64]:
    """`[E, 2]`: (producer, consumer) by index of `ops`; `views` are tensors that views returned.

    An op reads the storages of its inputs when it is called. When it returns it has written those
    of its outputs that are no views, of inputs that it returns (it worked in place), and, a
    collective, of its first argument.
    """
    writer: dict[int, int] = {}
    producers: list[int] = []
    consumers: list[int] = []
    writing: list[tuple[int, list[int]]] = []
    for index, op in enumerate(ops):
        while writing and writing[-1][0] > op.parent:
            _returned(writer, *writing.pop())
        given = _tensors(op.inputs)
        if given:
            sources = [writer[key] for key in map(_key, given) if key in writer]
            if len(sources) > 1:
                sources = sorted(set(sources))
            producers += sources
            consumers += [index] * len(sources)
        written = _written(op, given, views)
        if written:
            writing.append((index, written))
    return np.array([producers, consumers], np.int64).T


def _returned(writer: dict[int, int], op: int, written: list[int]) -> None:
    for key in written:
        if writer.get(key, NO_OP) < op:
            writer[key] = op


def _written(op: Op, given: list[Tensor], views: set[int]) -> list[int]:
    made = _tensors(op.outputs)
    if op.name == RECORDED:
        return [_key(given[-1])] if given else []
    if not made:
        is_collective = op.name.startswith(COLLECTIVE)
        return [_key(x) for x in tensors_in(op.inputs[0])] if is_collective else []
    if op.name in ITSELF:
        ids = [x.tensor_id for x in given]
        return [_key(x) for x in made if x.tensor_id not in ids]
    return [
        _key(x)
        for x in made
        if x.tensor_id not in views or any(x.tensor_id == one.tensor_id for one in given)
    ]


def _tensors(arguments: tuple[Argument, ...]) -> list[Tensor]:
    found: list[Tensor] = []
    for argument in arguments:
        if type(argument) is Tensor:
            if 0 not in argument.shape:
                found.append(argument)
        elif type(argument) is tuple and argument and type(argument[-1]) is Tensor:
            found += tensors_in(argument)
    return found


def _key(tensor: Tensor) -> int:
    return tensor.storage_id or -tensor.tensor_id
