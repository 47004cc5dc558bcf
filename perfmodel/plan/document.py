"""Plans as JSON: read and checked for a workload, of this package or of TorchRec."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.files import read_bytes
from perfmodel.hardware import Cluster
from perfmodel.placement import Placement, RowCache, TablePlacement
from perfmodel.plan.planned import SCHEMA
from perfmodel.plan.torchrec_document import is_torchrec, placement_of_torchrec
from perfmodel.workload import Workload
from perfmodel.workload.shards import placed

MAX_BYTES = 20_000_000
TABLE_KEYS = ("sharding", "ranks", "tier", "dtype", "hot_rows", "caches")
DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")
SHARDINGS = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise")
TIERS = ("hbm", "host", "storage")
CHOICES = {"sharding": SHARDINGS, "tier": TIERS, "dtype": DTYPES}


def read_plan(path: str | Path, workload: Workload, machine: Cluster) -> Placement:
    """The placement of a plan's file for `workload` on `machine`.

    Raises `WorkloadError` that names the file and the place for what is no plan, and for one of
    other tables or more ranks.
    """
    try:
        document = json.loads(read_bytes(Path(path), max_bytes=MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
    try:
        if is_torchrec(document):
            found = placement_of_torchrec(document, workload, machine)
        else:
            found = _placement(document, workload)
        placed(workload, found, machine.gpus, machine.linked_gpus)
    except PerfmodelError as error:
        raise WorkloadError(f"{path}: {error}") from None
    return found


def _placement(document: Any, workload: Workload) -> Placement:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise WorkloadError(f"no plan: expected the schema {SCHEMA}, or TorchRec's sharding plan")
    rows, caches = document.get("tables"), document.get("caches", [])
    if not isinstance(rows, list) or not isinstance(caches, list):
        raise WorkloadError("tables, caches: expected lists")
    for number, (row, table) in enumerate(zip(rows, workload.tables, strict=False)):
        for key, value in (("rows", table.rows), ("dim", table.dim)):
            if isinstance(row, dict) and row.get(key, value) != value:
                raise WorkloadError(
                    f"tables[{number}]: {key} {row[key]}, but {workload.name} has {value}: "
                    "a plan for other tables"
                )
    names = {each.name for each in fields(RowCache)}
    try:
        kept = tuple(RowCache(**{k: v for k, v in each.items() if k in names}) for each in caches)
    except (TypeError, AttributeError):
        raise WorkloadError("caches: expected name, at, capacity_bytes, policy of each") from None
    return Placement(tuple(_table(row, number) for number, row in enumerate(rows)), kept)


def _table(row: Any, number: int) -> TablePlacement:
    where = f"tables[{number}]"
    if not isinstance(row, dict) or not {"sharding", "ranks"} <= set(row):
        raise WorkloadError(f"{where}: expected sharding and ranks")
    given = {key: row[key] for key in TABLE_KEYS if key in row}
    for key, known in CHOICES.items():
        if given.get(key, known[0]) not in known:
            raise WorkloadError(
                f"{where}: {key} {given[key]!r}: expected one of {', '.join(known)}"
            )
    ranks = given["ranks"]
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        raise WorkloadError(f"{where}: ranks: expected a list of whole numbers")
    if type(given.get("hot_rows", 0)) is not int:
        raise WorkloadError(f"{where}: hot_rows: expected a whole number")
    given |= {"ranks": tuple(ranks), "caches": tuple(given.get("caches", ()))}
    return TablePlacement(**given)
