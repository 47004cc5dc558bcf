"""A rank's embedding tables: one `nn.EmbeddingBag` each, or all in one table-batched call."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Tensor
from perfmodel.workload.eager.arithmetic import LEARNING_RATE
from perfmodel.workload.eager.embedding_bag import add_sparse, embedding_bag, even_bags
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.table_batched import Batched, batched
from perfmodel.workload.eager.views import select
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, lookups

Bags = tuple[Tensor, ...]
"""Indices of one table: `[bags, pooling]` in one tensor, or flat with offsets in another."""


def weights(r: Recorder, run: Run) -> list[Tensor]:
    """The weights of this rank's tables."""
    made = [r.tensor((table.rows, table.dim)) for table in run.tables]
    if r.tape is not None:
        for weight in made:
            r.tape.parameter(weight)
    return made


def index_tensors(r: Recorder, run: Run) -> list[Tensor]:
    """The index tensors of a batch: one for all tables where all have the same whole pooling.

    Else flat indices and offsets per table.
    """
    bags = run.global_batch
    if is_even(run):
        pooling = int(run.tables[0].pooling)
        return [r.tensor((len(run.tables), bags, pooling), "int64")]
    return [
        r.tensor(shape, "int64")
        for table in run.tables
        for shape in ((table.lookups(bags),), (bags,))
    ]


def is_even(run: Run) -> bool:
    """Whether all tables of this rank take the same whole number of rows per sample."""
    poolings = {table.pooling for table in run.tables}
    return len(poolings) == 1 and float(next(iter(poolings))).is_integer()


def lookup(
    r: Recorder, run: Run, tables: Sequence[Tensor], indices: Sequence[Tensor]
) -> list[Tensor]:
    """Pooled rows `[global batch, dim]` of each table of this rank."""
    pooled = []
    even = is_even(run)
    for number, (weight, about) in enumerate(zip(tables, run.attributes, strict=True)):
        if even:
            flat, offsets = even_bags(r, select(r, indices[0], 0, number))
        else:
            flat, offsets = indices[2 * number : 2 * number + 2]
        pooled.append(embedding_bag(r, weight, flat, offsets, about))
    return pooled


def sparse_sgd(
    r: Recorder, run: Run, tables: Sequence[Tensor], gradients: dict[int, Tensor]
) -> None:
    """SGD on the rows that were looked up."""
    for weight, about in zip(tables, run.attributes, strict=True):
        add_sparse(r, weight, gradients[weight.tensor_id], -LEARNING_RATE, about)


def fused_tables(
    r: Recorder, run: Run, tables: tuple[Table, ...], batch: int, *, is_modern: bool
) -> Batched:
    """The operator for `tables`, each looked up for `batch` samples."""
    return batched(
        r,
        tuple(table.rows for table in tables),
        tuple(table.dim for table in tables),
        dtype=run.workload.implementation.table_precision,
        optimizer=run.workload.training.table_optimizer,
        is_modern=is_modern,
        attributes=lookups(tables, batch).to_attributes(),
    )


def fused_embeddings(r: Recorder, run: Run) -> tuple[Batched, Batched | None]:
    """The operators for the rank's own tables, and for those that every rank holds."""
    own = fused_tables(r, run, tables_of(run), run.global_batch, is_modern=True)
    if not run.replicas:
        return own, None
    return own, fused_tables(r, run, run.replicas, run.batch, is_modern=True)


def tables_of(run: Run) -> tuple[Table, ...]:
    """The tables of this rank, or one of a single row where it has none."""
    return run.tables or (Table(1, run.workload.dim, 1e-3),)


def total_lookups(tables: tuple[Table, ...], batch: int) -> int:
    """Rows that `batch` samples look up in all `tables`."""
    return sum(table.lookups(batch) for table in tables)
