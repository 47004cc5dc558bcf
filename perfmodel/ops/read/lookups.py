"""Embedding lookups of an op graph: what attributes and recorded tensors say of their tables.

Of all its tables together in words of the measurement table (`tables lookups batch dim hash_size
lookup_dim pooling zipf_alpha unique_rows longest_bag`: sums of lookups and of distinct rows, the
largest mean bag, the mean width of a row that is looked up, means of the others), and of each table
in lists with commas (`table_hash_size table_dim table_batch …`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.ops.graph import Op, Tensor, tensors_in

PREFIX = "table_"
_WHOLE = ("hash_size", "dim", "batch")
_REAL = ("pooling", "unique_rows", "alpha")


@dataclass(frozen=True)
class Lookups:
    """The lookups of one op, one entry per table.

    `pooling` is the mean number of rows per bag, `unique_rows` the expected number of distinct rows
    that all bags together touch, `alpha` the exponent of a Zipf distribution (0: uniform).
    """

    hash_size: tuple[int, ...]
    dim: tuple[int, ...]
    batch: tuple[int, ...]
    pooling: tuple[float, ...]
    unique_rows: tuple[float, ...]
    alpha: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.hash_size)

    @property
    def lookups(self) -> tuple[float, ...]:
        """Rows looked up in each table, repeats counted."""
        return tuple(bags * mean for bags, mean in zip(self.batch, self.pooling, strict=True))

    def to_attributes(self) -> dict[str, str]:
        """As attributes of an op."""
        total, tables, bags = sum(self.lookups), len(self), sum(self.batch)
        weighted = sum(a * n for a, n in zip(self.alpha, self.lookups, strict=True))
        elements = sum(width * n for width, n in zip(self.dim, self.lookups, strict=True))
        together = {
            "lookups": total,
            "batch": bags / tables,
            "dim": sum(self.dim) / tables,
            "lookup_dim": elements / total,
            "hash_size": sum(self.hash_size) / tables,
            "pooling": total / bags,
            "zipf_alpha": weighted / total,
            "unique_rows": sum(self.unique_rows),
            "longest_bag": max(self.pooling),
        }
        each = {
            PREFIX + name: ",".join(map(_short, getattr(self, name))) for name in (*_WHOLE, *_REAL)
        }
        return {
            "tables": str(tables),
            **{name: _short(value) for name, value in together.items()},
            **each,
        }


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


SPARSE = "sparse"
EMBEDDING_BAGS = (
    "aten::embedding_bag",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
)
SPARSE_CONSTRUCTOR = "aten::_sparse_coo_tensor"
UPDATES = ("aten::add_", "aten::add")


def with_recorded_lookups(ops: Sequence[Op]) -> list[Op]:
    """`ops`, with `tables lookups batch dim hash_size pooling` where shapes tell them.

    Of `nn.EmbeddingBag`: rows and dim of the weights, indices and offsets. Of an update by a sparse
    gradient: as many lookups as it has entries. How often rows repeat, tensors do not tell.
    """
    entries: dict[int, int] = {}
    completed = []
    for op in ops:
        if op.name.startswith(SPARSE_CONSTRUCTOR):
            _note_sparse_entries(op, entries)
        added = _lookup_attributes(op, entries) if "lookups" not in op.attributes else {}
        completed.append(replace(op, attributes={**op.attributes, **added}) if added else op)
    return completed


def _lookup_attributes(op: Op, entries: Mapping[int, int]) -> dict[str, str]:
    if op.name in EMBEDDING_BAGS and len(op.tensors) >= 3:
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


def _note_sparse_entries(op: Op, entries: dict[int, int]) -> None:
    """How many entries the sparse tensors have that `op` makes of indices and values."""
    values = [tensor for tensor in op.tensors if len(tensor.shape) > 1]
    for made in tensors_in(op.outputs):
        if values and made.layout == SPARSE:
            entries[made.tensor_id] = values[-1].shape[0]
