"""What is known of collectives and of embedding lookups, as attributes of their op.

`collective` (`all_reduce all_to_all all_gather reduce_scatter broadcast reduce gather scatter send
recv barrier wait`), `process_group`, `group_size`, `group_ranks`, `dtype`, `in_elements`,
`out_elements`, `in_split`, `out_split` (elements or rows per peer; absent for equal parts). Lists
are numbers with commas between. A call (`c10d::alltoall_base_`) carries what its arguments tell,
the `record_param_comms` in it what the file says: where there is one, it is the collective.

Lookups: what attributes and recorded tensors say of their tables. Of all tables together in words
of the measurement table (`tables lookups batch dim hash_size lookup_dim pooling zipf_alpha
unique_rows longest_bag`: sums of lookups and of distinct rows, the largest mean bag, the mean width
of a row that is looked up, means of the others), and of each table in lists with commas
(`table_hash_size table_dim table_batch …`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import Argument, Op, tensors_in
from perfmodel.trace.columns import NONE, RankTrace

if TYPE_CHECKING:
    from perfmodel.trace.execution_trace_columns import ExecutionTrace


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
    *("aten::embedding_bag", "aten::_embedding_bag", "aten::_embedding_bag_forward_only"),
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


_COLLECTIVES = (
    *("reduce_scatter", "all_reduce", "all_to_all", "all_gather", "broadcast", "barrier", "wait"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
"""The first that is in a name, both without underscores, is its collective."""

Known = dict[str, str]


def collective_of(name: str) -> str:
    """`all_to_all` for `all_to_allv`, `alltoall_base_`, …; the name itself where none fits."""
    plain = name.lower().replace("_", "")
    return next((word for word in _COLLECTIVES if word.replace("_", "") in plain), name)


def of_node(trace: ExecutionTrace, record: int) -> Known:
    """What row `record` of the trace's collectives says."""
    table, text = trace.collectives, trace.strings
    word = text[int(table.dtype[record])]
    return _known(
        collective=collective_of(text[int(table.name[record])]),
        process_group=text[int(table.group[record])],
        group_size=int(table.group_size[record]),
        group_ranks=trace.group_ranks(record),
        dtype=dtype_of_torch(word) or word,
        in_elements=int(table.in_elements[record]),
        out_elements=int(table.out_elements[record]),
        in_split=table.in_split[record],
        out_split=table.out_split[record],
    )


def of_event(rank: RankTrace, row: int) -> Known:
    """What the `record_param_comms` event in `row` says."""
    text = rank.strings
    word = text[int(rank.collective_dtype[row])].strip('"')
    return _known(
        collective=collective_of(text[int(rank.collective[row])]),
        process_group=text[int(rank.process_group[row])],
        group_size=int(rank.group_size[row]),
        dtype=dtype_of_torch(word) or word,
        in_elements=int(rank.in_elements[row]),
        out_elements=int(rank.out_elements[row]),
        in_split=_numbers(text[int(rank.in_split[row])]),
        out_split=_numbers(text[int(rank.out_split[row])]),
    )


def of_call(name: str, inputs: tuple[Argument, ...], world_size: int) -> Known:
    """What the arguments of a call such as `c10d::allreduce_` say; its group is taken as all. Of
    any other call, nothing.

    Of `c10d::alltoall_base_` and its like the first tensor is the output.
    """
    if not name.startswith("c10d::"):
        return {}
    collective = collective_of(name.removeprefix("c10d::"))
    tensors = list(tensors_in(inputs))
    if collective not in _COLLECTIVES or not tensors:
        return {}
    has_output = collective in ("all_to_all", "all_gather", "reduce_scatter") and len(inputs) > 1
    sent = list(tensors_in(inputs[1 if has_output else 0])) or tensors
    got = list(tensors_in(inputs[0])) or tensors
    return _known(
        collective=collective,
        group_size=world_size,
        dtype=sent[0].dtype,
        in_elements=sum(tensor.elements for tensor in sent),
        out_elements=sum(tensor.elements for tensor in got),
    )


def _known(**about: str | int | Iterable[int]) -> Known:
    """The texts of what is known; -1, no text and no numbers are not."""
    known = {}
    for key, value in about.items():
        text = value if isinstance(value, str) else str(value)
        if not isinstance(value, (str, int)):
            text = ",".join(map(str, value))
        if text and value != NONE:
            known[key] = text
    return known


def _numbers(text: str) -> tuple[int, ...]:
    """The sizes in `"[2, 3]"`; none where the text is cut (`...`) or holds anything else."""
    parts = text.strip('"[] ').split(",")
    return tuple(map(int, parts)) if all(part.strip().isdigit() for part in parts) else ()
