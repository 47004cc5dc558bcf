"""Which rank holds which table."""

from __future__ import annotations

from perfmodel.errors import WorkloadError
from perfmodel.workload.model import Workload


def owners(workload: Workload, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Per rank, the numbers of the tables that it holds; every one on one rank, in turn."""
    tables = range(len(workload.tables))
    if ranks > len(tables):
        raise WorkloadError(
            f"{workload.name}: {len(tables)} tables cannot be shared out whole among {ranks} ranks"
        )
    return tuple(tuple(tables[rank::ranks]) for rank in range(ranks))
