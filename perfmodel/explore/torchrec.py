"""TorchRec's sharding plans and ours, in and out, checked.

The dataclasses ShardingPlan, ParameterSharding and ShardMetadata of pytorch/torchrec and PyTorch;
`table_N` is the workload's table N:

    {"MODULE": {"table_0": {"sharding_type": "column_wise", "compute_kernel": "fused",
                            "ranks": [0, 3], "sharding_spec": {"shards": [
        {"shard_offsets": [0, 0], "shard_sizes": [1000, 64], "placement": "rank:0/cuda:0"}, …]}}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

from perfmodel.base.files import read_bytes
from perfmodel.base.schema import section
from perfmodel.embedding import Placement, RowCache, Sharding, TablePlacement
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.ops.spec import item_bytes
from perfmodel.workload import Workload
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.tables import Table

T = TypeVar("T")
SCHEMA = "perfmodel.plan/1"
MODULE = "sparse.embedding_bags"
KERNELS: dict[str, str] = dict.fromkeys(("fused", "fused_triton", "dense", "quant"), "hbm")
KERNELS |= dict.fromkeys(("fused_uvm", "quant_uvm"), "host")
KERNELS |= {"fused_uvm_caching": "host", "quant_uvm_caching": "host"}
CACHED = ("fused_uvm_caching", "quant_uvm_caching")
CACHE, CACHED_FRAC = "uvm", 0.2
_SHARDINGS: dict[str, Sharding] = {each: each for each in get_args(Sharding)}
_SHARDINGS |= {"table_column_wise": "column_wise"}
_NAME = re.compile(r"(?:^|_)(\d{1,9})$")


def placement_of_torchrec(
    document: dict[str, Any], workload: Workload, machine: Cluster
) -> Placement:
    """The placement that TorchRec's plan means; tables with UVM caching share a cache for as much
    of their rows as their `load_factor` says, or a fifth, the default of its planner. Shards
    without rows count as none.

    Raises `WorkloadError` for tables that are missing, unknown, there twice or of another size, and
    for shardings and kernels that have no counterpart.
    """
    placed: dict[int, TablePlacement] = {}
    cached_bytes, dtype = 0.0, workload.implementation.table_precision
    for module, tables in document.items():
        if not isinstance(tables, dict):
            raise WorkloadError(f"{module}: expected its tables by name")
        for name, about in tables.items():
            where = f"{module[:60]}: {name[:60]}"
            if not isinstance(about, dict):
                raise WorkloadError(f"{where}: expected its sharding_type, ranks and so on")
            number = number_of(name, workload, where)
            if number in placed:
                raise WorkloadError(f"{where}: table_{number} is there twice")
            kind = known(_SHARDINGS, about.get("sharding_type"), f"{where}: sharding_type")
            kernel = about.get("compute_kernel", "fused")
            tier = known(KERNELS, kernel, f"{where}: compute_kernel")
            ranks = _ranks(about, kind, machine.gpus, workload.tables[number], where)
            caches = (CACHE,) if kernel in CACHED else ()
            if caches:
                cached_bytes += _load_factor(about, where) * _size_bytes(workload, number, dtype)
            placed[number] = TablePlacement(kind, ranks, tier, dtype, caches=caches)
    missing = [number for number in range(len(workload.tables)) if number not in placed]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WorkloadError(f"table_{missing[0]} is missing{more}")
    in_order = tuple(placed[number] for number in range(len(workload.tables)))
    if not cached_bytes:
        return Placement(in_order)
    return Placement(in_order, (RowCache(CACHE, "hbm", cached_bytes / machine.gpus),))


def torchrec_document(placement: Placement, workload: Workload, machine: Cluster) -> dict[str, Any]:
    """The placement as TorchRec's plan, a shared cache as an even part of each of its tables.
    Raises `WorkloadError` for what it does not know: tables on drives, hot rows, caches in
    adapters, columns in parts that are not equal."""
    tables, cached_bytes = {}, 0.0
    for number, about in enumerate(placement.tables):
        cached_bytes += _size_bytes(workload, number, about.dtype) if about.caches else 0.0
    cached = sum(cache.capacity_bytes for cache in placement.caches) * machine.gpus
    load = min(cached / cached_bytes, 1.0) if cached_bytes else 0.0
    elsewhere = {cache.name for cache in placement.caches if cache.at != "hbm"}
    for number, (about, table) in enumerate(zip(placement.tables, workload.tables, strict=True)):
        if about.tier not in KERNELS.values() or about.hot_rows or elsewhere & {*about.caches}:
            lacking = "drives, hot rows and caches in adapters"
            raise WorkloadError(f"tables[{number}]: TorchRec's plans have no {lacking}")
        replicated = about.sharding == "data_parallel"
        kernel = "dense" if replicated else "fused"
        if about.tier == "host":
            kernel = "fused_uvm_caching" if about.caches else "fused_uvm"
        columns = len(about.ranks) if about.sharding == "column_wise" else 1
        if table.dim % columns:
            raise WorkloadError(f"tables[{number}]: {table.dim} columns on {columns} ranks")
        rows = len(about.ranks) if "row" in about.sharding else 1
        height, width = -(-table.rows // rows), table.dim // columns
        shards = []
        for at, rank in enumerate(about.ranks):
            offsets = [at * height, 0] if rows > 1 else [0, at * width]
            sizes = [max(min(height, table.rows - offsets[0]), 0), width]
            place = f"rank:{rank}/cuda:{rank % machine.linked_gpus}"
            shards.append({"shard_offsets": offsets, "shard_sizes": sizes, "placement": place})
        tables[f"table_{number}"] = {
            "sharding_type": about.sharding,
            "compute_kernel": kernel,
            "ranks": list(about.ranks),
            "sharding_spec": None if replicated else {"shards": shards},
            "cache_params": {"load_factor": load} if about.caches else None,
        }
    return {MODULE: tables}


def _size_bytes(workload: Workload, number: int, dtype: str) -> float:
    table = workload.tables[number]
    return table.rows * table.dim * item_bytes(dtype)


def known(table: Mapping[str, T], word: Any, where: str) -> T:
    """What has that name in a table. Raises `WorkloadError`."""
    if not isinstance(word, str) or word not in table:
        raise WorkloadError(f"{where} {str(word)[:60]!r}: expected one of {', '.join(table)}")
    return table[word]


def _load_factor(about: dict[str, Any], where: str) -> float:
    cached = about.get("cache_params")
    frac = cached.get("load_factor") if isinstance(cached, dict) else cached
    frac = CACHED_FRAC if frac is None else frac
    if not isinstance(frac, (int, float)) or not 0 < frac <= 1:
        raise WorkloadError(f"{where}: load_factor {str(frac)[:30]}: expected above 0, at most 1")
    return float(frac)


def number_of(name: str, workload: Workload, where: str, names: Sequence[str] = ()) -> int:
    """Of the table that a name means: its place among `names`, or the number at its end."""
    if name in names:
        return list(names).index(name)
    match = None if names else _NAME.search(name)
    if match is None or int(match.group(1)) >= len(workload.tables):
        last = f"table_0 to table_{len(workload.tables) - 1}"
        expected = f"one of the {len(names)} names given" if names else last
        raise WorkloadError(f"{where}: {workload.name} has no such table: expected {expected}")
    return int(match.group(1))


def _ranks(
    about: dict[str, Any], kind: Sharding, ranks: int, table: Table, where: str
) -> tuple[int, ...]:
    """Those with rows. Shards, where the plan states them, together are the table's."""
    spec, given, sizes = about.get("sharding_spec"), about.get("ranks"), []
    try:
        for each in spec["shards"] if spec is not None else ():
            height, width = map(int, each["shard_sizes"])
            sizes.append(height * width)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise WorkloadError(f"{where}: sharding_spec: expected shards with shard_sizes") from None
    if spec is not None and sum(sizes) != table.rows * table.dim:
        raise WorkloadError(
            f"{where}: its shards have {sum(sizes)} elements, the table {table.rows} x "
            f"{table.dim}: a plan for other tables"
        )
    if kind == "data_parallel" or (kind == "row_wise" and not given):
        return tuple(range(ranks))
    if not isinstance(given, list) or not all(type(each) is int for each in given) or not given:
        raise WorkloadError(f"{where}: ranks: expected a list of whole numbers")
    if len(sizes) == len(given):
        given = [rank for rank, size in zip(given, sizes, strict=True) if size]
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
    modules = document.values() if isinstance(document, dict) else ()
    tables = chain.from_iterable(each.values() for each in modules if isinstance(each, dict))
    try:
        if any(isinstance(each, dict) and "sharding_type" in each for each in tables):  # TorchRec's
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
