"""All tables of a rank in one table-batched lookup."""

from __future__ import annotations

from perfmodel.workload.eager.batched import Batched, batched
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table, lookups


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
