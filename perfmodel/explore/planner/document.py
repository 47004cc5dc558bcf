"""Sharding plans in and out: of this package and of TorchRec, checked for a workload.

    {"MODULE": {"table_0": {"sharding_type": "column_wise", "compute_kernel": "fused",
                            "ranks": [0, 3], "sharding_spec": {"shards": [
        {"shard_offsets": [0, 0], "shard_sizes": [1000, 64], "placement": "rank:0/cuda:0"}, …]}}}}

`table_N` is the workload's table N. Source: the dataclasses ShardingPlan, ParameterSharding and
ShardMetadata of pytorch/torchrec and PyTorch.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

from perfmodel.base.files import read_bytes
from perfmodel.base.schema import section
from perfmodel.embedding import Placement, RowCache, Sharding, TablePlacement
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.explore.planner.planned import SCHEMA
from perfmodel.hardware import Cluster
from perfmodel.workload import Workload
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.tables import Table

MODULE = "sparse.embedding_bags"
KERNELS: dict[str, str] = {"fused": "hbm", "dense": "hbm", "quant": "hbm"}
KERNELS |= {"fused_uvm": "host", "fused_uvm_caching": "host", "quant_uvm_caching": "host"}
CACHED = ("fused_uvm_caching", "quant_uvm_caching")
CACHE, CACHED_FRAC = "uvm", 0.2
_NAME = re.compile(r"(?:^|_)(\d{1,9})$")


def is_torchrec(document: Any) -> bool:
    """Whether a JSON document looks like modules with tables that have a `sharding_type`."""
    return isinstance(document, dict) and any(
        isinstance(tables, dict)
        and any(isinstance(each, dict) and "sharding_type" in each for each in tables.values())
        for tables in document.values()
    )


def placement_of_torchrec(
    document: dict[str, Any], workload: Workload, machine: Cluster
) -> Placement:
    """The placement that TorchRec's plan means; tables with UVM caching share a cache for a fifth
    of the rows, the default of its planner.

    Raises `WorkloadError` for tables that are missing, unknown, there twice or of another size, and
    for shardings and kernels that have no counterpart.
    """
    placed: dict[int, TablePlacement] = {}
    cached_bytes = 0.0
    dtype = workload.implementation.table_precision
    for module, tables in document.items():
        if not isinstance(tables, dict):
            raise WorkloadError(f"{module}: expected its tables by name")
        for name, about in tables.items():
            where = f"{module[:60]}: {name[:60]}"
            if not isinstance(about, dict):
                raise WorkloadError(f"{where}: expected its sharding_type, ranks and so on")
            number = _number(name, workload, where)
            if number in placed:
                raise WorkloadError(f"{where}: table_{number} is there twice")
            _require_size(about, workload.tables[number], where)
            kernel = str(about.get("compute_kernel", "fused"))
            kind: Any = about.get("sharding_type")
            if kind not in get_args(Sharding):
                raise WorkloadError(f"{where}: sharding_type {kind!r} has no counterpart here")
            if kernel not in KERNELS:
                raise WorkloadError(f"{where}: compute_kernel {kernel!r} has no counterpart here")
            ranks = _ranks(about, kind, machine.gpus, where)
            caches = (CACHE,) if kernel in CACHED else ()
            if caches:
                table = workload.tables[number]
                cached_bytes += CACHED_FRAC * table.rows * table.dim * (2 if dtype == "fp16" else 4)
            placed[number] = TablePlacement(kind, ranks, KERNELS[kernel], dtype, caches=caches)
    missing = [number for number in range(len(workload.tables)) if number not in placed]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WorkloadError(f"table_{missing[0]} is missing{more}")
    in_order = tuple(placed[number] for number in range(len(workload.tables)))
    if not cached_bytes:
        return Placement(in_order)
    cache = RowCache(CACHE, "hbm", cached_bytes / machine.gpus, "set_associative")
    return Placement(in_order, (cache,))


def torchrec_document(placement: Placement, workload: Workload, linked: int) -> dict[str, Any]:
    """The placement as TorchRec's plan; links join `linked` ranks each. Raises `WorkloadError` for
    tables on drives or in expansion memory, and hot rows, which it does not know."""
    tables = {}
    for number, (about, table) in enumerate(zip(placement.tables, workload.tables, strict=True)):
        if about.tier not in KERNELS.values() or about.hot_rows:
            raise WorkloadError(f"tables[{number}]: TorchRec's plans have no drives and hot rows")
        kernel = "dense" if about.sharding == "data_parallel" else "fused"
        if about.tier == "host":
            kernel = "fused_uvm_caching" if about.caches else "fused_uvm"
        shards = [
            {
                "shard_offsets": offsets,
                "shard_sizes": sizes,
                "placement": f"rank:{rank}/cuda:{rank % linked}",
            }
            for rank, offsets, sizes in _shards(about, table)
        ]
        tables[f"table_{number}"] = {
            "sharding_type": about.sharding,
            "compute_kernel": kernel,
            "ranks": list(about.ranks),
            "sharding_spec": {"shards": shards} if about.sharding != "data_parallel" else None,
        }
    return {MODULE: tables}


def _shards(about: TablePlacement, table: Table) -> list[tuple[int, list[int], list[int]]]:
    """(rank, offsets, sizes) of each."""
    count = len(about.ranks)
    if about.sharding == "column_wise":
        width = table.dim // count
        return [(r, [0, at * width], [table.rows, width]) for at, r in enumerate(about.ranks)]
    height = -(-table.rows // count) if "row" in about.sharding else table.rows
    return [
        (r, [at * height, 0], [max(min(height, table.rows - at * height), 0), table.dim])
        for at, r in enumerate(about.ranks)
    ]


def _number(name: str, workload: Workload, where: str) -> int:
    match = _NAME.search(name)
    if match is None or int(match.group(1)) >= len(workload.tables):
        raise WorkloadError(
            f"{where}: {workload.name} has no such table: expected table_0 to "
            f"table_{len(workload.tables) - 1}"
        )
    return int(match.group(1))


def _require_size(about: dict[str, Any], table: Table, where: str) -> None:
    """Shards, where the plan states them, together have the table's rows and columns."""
    spec = about.get("sharding_spec")
    if spec is None:
        return
    try:
        sizes = [each["shard_sizes"] for each in spec["shards"]]
        elements = sum(int(rows) * int(columns) for rows, columns in sizes)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise WorkloadError(f"{where}: sharding_spec: expected shards with shard_sizes") from None
    if elements != table.rows * table.dim:
        raise WorkloadError(
            f"{where}: its shards have {elements} elements, the table {table.rows} x {table.dim}: "
            "a plan for other tables"
        )


def _ranks(about: dict[str, Any], kind: str, ranks: int, where: str) -> tuple[int, ...]:
    given = about.get("ranks")
    if kind == "data_parallel" or (kind == "row_wise" and not given):
        return tuple(range(ranks))
    if not isinstance(given, list) or not all(type(each) is int for each in given) or not given:
        raise WorkloadError(f"{where}: ranks: expected a list of whole numbers")
    return tuple(given)


MAX_BYTES = 20_000_000
TOLD = (
    *("table", "rows", "dim", "pooling"),
    *("hbm_gb", "work_us", "added_us", "instead", "instead_us", "why"),
)
"""What a plan says of a table beside where it lies."""


def read_plan(path: str | Path, workload: Workload, machine: Cluster) -> Placement:
    """The placement of a plan's file for `workload` on `machine`.

    Raises `WorkloadError` that names the file and the place for what is no plan, and for one of
    other tables or ranks.
    """
    try:
        document = json.loads(read_bytes(Path(path), max_bytes=MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
    try:
        if is_torchrec(document):
            placement = placement_of_torchrec(document, workload, machine)
        else:
            placement = _placement(document, workload, machine)
        plan_of_placement(workload, placement, machine.gpus, machine.linked_gpus)
    except PerfmodelError as error:
        raise WorkloadError(f"{path}: {error}") from None
    return placement


def _placement(document: Any, workload: Workload, machine: Cluster) -> Placement:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise WorkloadError(f"no plan: expected the schema {SCHEMA}, or TorchRec's sharding plan")
    rows, caches = document.get("tables"), document.get("caches", [])
    if not isinstance(rows, list) or not isinstance(caches, list):
        raise WorkloadError("tables, caches: expected lists")
    if (ranks := document.get("ranks", machine.gpus)) != machine.gpus:
        raise WorkloadError(f"ranks {str(ranks)[:30]}, but {machine.name} has {machine.gpus}")
    for number, (row, table) in enumerate(zip(rows, workload.tables, strict=False)):
        for key, value in (("table", number), ("rows", table.rows), ("dim", table.dim)):
            if isinstance(row, dict) and row.get(key, value) != value:
                raise WorkloadError(
                    f"tables[{number}]: {key} {str(row[key])[:30]}, but {workload.name} has "
                    f"{value}: a plan for other tables"
                )
    kept = [
        section(RowCache, each, f"caches[{at}]", WorkloadError) for at, each in enumerate(caches)
    ]
    return Placement(tuple(_table(row, number) for number, row in enumerate(rows)), tuple(kept))


def _table(row: Any, number: int) -> TablePlacement:
    if isinstance(row, dict):
        row = {key: value for key, value in row.items() if key not in TOLD}
    return section(TablePlacement, row, f"tables[{number}]", WorkloadError)
