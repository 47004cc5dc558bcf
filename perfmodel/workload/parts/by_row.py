"""PyTorch's update of a table on a CPU as its releases of 2020 have it: row by row, on one thread.

The sparse gradient is coalesced; then each distinct row of it is cut out, as is its row of the
table, and added by an operator's call. Later releases add lookup by lookup without such calls
(`kernels.models.cpu_embedding`), 20 to 30 times as fast where all rows are distinct.

Source: `add_out_dense_sparse_cpu`, ATen/native/sparse/SparseTensorMath.cpp of PyTorch 1.6 and 1.7;
`traces/sparse_updates.csv`.
"""

from __future__ import annotations

from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.one_thread import one_thread
from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table

LOOKUP_US, ROW_US = 0.023, 1.03
"""Per lookup, to coalesce, and per distinct row: fitted to ten sizes of PyTorch 1.6.0 (July 2020),
`traces/sparse_updates.csv`, all within 20 %; rows in caches, of 16 and of 64 elements."""


def adds_by_row(run: Run) -> bool:
    """Whether a run's software does it so."""
    return run.workload.implementation.sparse_update == "by_row"


def added_by_row(r: Recorder, table: Table, samples: int) -> None:
    """The gradient of `samples` lookups of `table` added to it; nothing else happens meanwhile."""
    lookups, distinct = table.lookups(samples), table.unique_rows(samples)
    one_thread(r, lookups * LOOKUP_US + distinct * ROW_US)
