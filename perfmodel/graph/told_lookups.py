"""Lookups that the tensors of a recorded op graph tell, as attributes of its embedding ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfmodel.graph.ops import Op, Tensor, tensors_in

SPARSE = "sparse"
FORWARD = ("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only")
MAKERS = "aten::_sparse_coo_tensor"
UPDATES = ("aten::add_", "aten::add")


def with_told_lookups(ops: Sequence[Op]) -> list[Op]:
    """`ops`, with `tables lookups batch dim hash_size pooling` where shapes tell them.

    Of `nn.EmbeddingBag`: rows and dim of the weights, indices and offsets. Of an update by a sparse
    gradient: as many lookups as it has entries. How often rows repeat, tensors do not tell.
    """
    entries: dict[int, int] = {}
    found = []
    for op in ops:
        if op.name.startswith(MAKERS):
            _remember(op, entries)
        told = _told(op, entries) if "lookups" not in op.attributes else {}
        found.append(replace(op, attributes={**op.attributes, **told}) if told else op)
    return found


def _told(op: Op, entries: Mapping[int, int]) -> dict[str, str]:
    if op.name in FORWARD and len(op.tensors) >= 3:
        weight, indices, offsets = op.tensors[:3]
        return _attributes(weight, indices.elements, offsets.elements)
    if op.name in UPDATES and len(op.tensors) >= 2:
        weight, gradient = op.tensors[:2]
        lookups = entries.get(gradient.tensor_id, 0)
        return _attributes(weight, lookups, lookups) if gradient.layout == SPARSE else {}
    return {}


def _attributes(weight: Tensor, lookups: int, bags: int) -> dict[str, str]:
    if len(weight.shape) != 2 or not lookups or not bags:
        return {}
    rows, dim = weight.shape
    numbers = {"tables": 1, "lookups": lookups, "batch": bags, "dim": dim, "hash_size": rows}
    return {**{key: str(value) for key, value in numbers.items()}, "pooling": f"{lookups / bags}"}


def _remember(op: Op, entries: dict[int, int]) -> None:
    """How many entries the sparse tensors have that `op` makes of indices and values."""
    values = [tensor for tensor in op.tensors if len(tensor.shape) > 1]
    for made in tensors_in(op.outputs):
        if values and made.layout == SPARSE:
            entries[made.tensor_id] = values[-1].shape[0]
