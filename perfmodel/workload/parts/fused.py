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


def total_lookups(tables: tuple[Table, ...], batch: int) -> int:
    """Rows that `batch` samples look up in all `tables`."""
    return sum(table.lookups(batch) for table in tables)
