"""Lookups of embedding tables: which ops they are, and what they say as attributes.

Of all tables together in words of the measurement table (`tables lookups batch dim hash_size
lookup_dim pooling zipf_alpha unique_rows longest_bag`: sums of lookups and of distinct rows, the
largest mean bag, the mean width of a row that is looked up, means of the others), and of each table
in lists with commas (`table_hash_size table_dim table_batch …`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.ops.graph import Op, tensors_in

EMBEDDING_BAGS = tuple(
    f"aten::{name}" for name in ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
)
TABLE_BATCHED = (
    "fbgemm::split_embedding_*lookup_*_function*",
    "fbgemm::dense_embedding_codegen_lookup_function*",
    "fbgemm::int_nbit_split_embedding*_lookup_function*",
    "fbgemm::ssd_embedding_codegen_lookup_*_function*",
)
"""Patterns of FBGEMM's calls that look up all tables of a rank."""
DENSE_LOOKUP = "fbgemm::dense_embedding_codegen_lookup_function"
DENSE_BACKWARD = "fbgemm::split_embedding_backward_codegen_dense"
"""FBGEMM's lookup of tables whose gradients are tensors, and the operator that makes these."""
_WORDS, _REORDERED = ("embedding", "Embedding", "lookup", "Lookup"), "permute"


@lru_cache(maxsize=1 << 12)
def is_lookup(name: str) -> bool:
    """Whether an op of that name reads rows of embedding tables, or updates them."""
    return any(word in name for word in _WORDS) and _REORDERED not in name


STATES_BYTES = "states_bytes"
"""Attribute of a lookup that trains: what the optimizer keeps of all its rows."""
PREFIX = "table_"
_WHOLE = ("hash_size", "dim", "batch")
_REAL = ("pooling", "unique_rows", "alpha")


@dataclass(frozen=True)
class Lookups:
    """The lookups of one op, one entry per table.

    `pooling` is the mean number of rows per bag, `unique_rows` the expected number of distinct rows
    that all bags together touch, `alpha` the exponent of a Zipf distribution (0: uniform),
    `most_repeated` the expected lookups of the most popular row (none: not known).
    """

    hash_size: tuple[int, ...]
    dim: tuple[int, ...]
    batch: tuple[int, ...]
    pooling: tuple[float, ...]
    unique_rows: tuple[float, ...]
    alpha: tuple[float, ...]
    most_repeated: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.hash_size)

    @property
    def lookups(self) -> tuple[float, ...]:
        """Rows looked up in each table, repeats counted."""
        return tuple(bags * mean for bags, mean in zip(self.batch, self.pooling, strict=True))

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> Lookups | None:
        """What `to_attributes` wrote; None where it did not."""
        kinds: dict[str, type] = dict.fromkeys(_WHOLE, int) | dict.fromkeys(_REAL, float)
        if any(PREFIX + name not in attributes for name in kinds):
            return None
        texts = {name: attributes[PREFIX + name].split(",") for name in kinds}
        return cls(**{name: tuple(map(kind, texts[name])) for name, kind in kinds.items()})

    def to_attributes(self) -> dict[str, str]:
        total, tables, bags = sum(self.lookups), len(self), sum(self.batch)
        weighted = sum(a * n for a, n in zip(self.alpha, self.lookups, strict=True))
        elements = sum(width * n for width, n in zip(self.dim, self.lookups, strict=True))
        together: dict[str, float] = {
            "tables": tables,
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
        if self.most_repeated:
            together["most_repeated"] = max(self.most_repeated)
        each = {
            PREFIX + name: ",".join(map(_short, getattr(self, name))) for name in (*_WHOLE, *_REAL)
        }
        return {name: _short(value) for name, value in together.items()} | each


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


SPARSE = "sparse"
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
        is_told = op.name in (*EMBEDDING_BAGS, *UPDATES) or op.name.startswith(SPARSE_CONSTRUCTOR)
        tensors, lookups, bags = op.tensors if is_told else (), 0, 0
        if op.name.startswith(SPARSE_CONSTRUCTOR):
            values = [tensor for tensor in tensors if len(tensor.shape) > 1]
            made = (tensor for tensor in tensors_in(op.outputs) if tensor.layout == SPARSE)
            entries |= {t.tensor_id: values[-1].shape[0] for t in made if values}
        elif op.name in EMBEDDING_BAGS and len(tensors) >= 3:
            lookups, bags = tensors[1].elements, tensors[2].elements
        elif op.name in UPDATES and len(tensors) >= 2 and tensors[1].layout == SPARSE:
            lookups = bags = entries.get(tensors[1].tensor_id, 0)
        if lookups and bags and len(tensors[0].shape) == 2 and "lookups" not in op.attributes:
            rows, dim = tensors[0].shape
            known = {"tables": 1, "lookups": lookups, "batch": bags, "dim": dim, "hash_size": rows}
            texts = {key: str(value) for key, value in known.items()}
            about = {**op.attributes, **texts, "pooling": f"{lookups / bags}"}
            op = replace(op, attributes=about)
        completed.append(op)
    return completed
