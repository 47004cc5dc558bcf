"""All tables of a rank in one table-batched lookup."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.batched import Batched, batched, look_up
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


def pooled_rows(
    r: Recorder, run: Run, tables: Batched, indices: Tensor, offsets: Tensor, batch: int
) -> Tensor:
    """Their pooled rows `[batch, total dim]`, in the precision that goes on the wire."""
    wire = run.workload.implementation.exchange_precision
    is_reduced = tables.is_modern and run.ranks > 1
    return look_up(r, tables, indices, offsets, batch, wire if is_reduced else "fp32")
