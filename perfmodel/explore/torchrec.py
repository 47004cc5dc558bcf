"""TorchRec's formulas of what a shard costs; its sharding plans and ours, in and out, checked.

Formulas: pytorch/torchrec (a48cef79), distributed/planner/{constants,types,shard_estimators}.py, in
own words. Nothing overlaps, rates know no sizes, and constants are those of its defaults. Each
shard costs all of `shard_cost`, one part after the other; a plan is as good as its busiest rank.

Plans: the dataclasses ShardingPlan, ParameterSharding and ShardMetadata of pytorch/torchrec and
PyTorch; `table_N` is the workload's table N:

    {"MODULE": {"table_0": {"sharding_type": "column_wise", "compute_kernel": "fused",
                            "ranks": [0, 3], "sharding_spec": {"shards": [
        {"shard_offsets": [0, 0], "shard_sizes": [1000, 64], "placement": "rank:0/cuda:0"}, …]}}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes
from perfmodel.base.schema import section
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import Deployment
from perfmodel.designs.layouts.problem import NO_KIND, FixedTimes, Problem
from perfmodel.embedding import Placement, RowCache, Sharding, TablePlacement
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.ops.dtypes import item_bytes
from perfmodel.workload import Workload
from perfmodel.workload.sharding import plan_of_placement
from perfmodel.workload.tables import Table

GIB = float(1 << 30)
INDEX_BYTES = 8.0
MIN_WIDTH = 32
"""Narrower rows are read as if they had so many elements; only whole rows of a table are."""
UVM_SLOWDOWN, DENSE_FRAC = 10.0, 0.5
BACKWARD = 2.0
BATCHED_COPY, DENSE_OPTIMIZER = 2.455, 9.22


@dataclass(frozen=True)
class Topology:
    """Ranks, and bytes per second that the planner reckons with; its defaults."""

    ranks: int = 8
    local_ranks: int = 8
    hbm_bytes_per_s: float = 897 * GIB
    host_bytes_per_s: float = 32 * GIB
    """Between device and host memory."""
    intra_bytes_per_s: float = 600 * GIB
    inter_bytes_per_s: float = 12.5 * GIB
    batch_per_rank: int = 512
    cached_frac: float = 0.2

    def kernel_bytes_per_s(self, kernel: str) -> float:
        cached = self.cached_frac * self.hbm_bytes_per_s
        cached += (1 - self.cached_frac) * self.host_bytes_per_s
        return {
            "fused": self.hbm_bytes_per_s,
            "dense": DENSE_FRAC * self.hbm_bytes_per_s,
            "fused_uvm": self.host_bytes_per_s / UVM_SLOWDOWN,
            "fused_uvm_caching": cached / UVM_SLOWDOWN,
        }[kernel]


class ShardCost(NamedTuple):
    """Milliseconds per shard, `[shards]`; all of it one after the other."""

    forward_ms: Floats
    forward_comms_ms: Floats
    backward_ms: Floats
    backward_comms_ms: Floats

    @property
    def total_ms(self) -> Floats:
        return self.forward_ms + self.forward_comms_ms + self.backward_ms + self.backward_comms_ms


def shard_cost(
    rows: ArrayLike,
    columns: ArrayLike,
    pooling: ArrayLike,
    sharding: Sequence[str],
    kernel: Sequence[str],
    topology: Topology,
    item_bytes: float = 4.0,
    wire_bytes: float = 4.0,
) -> ShardCost:
    """One shard of each of `n` tables: their `rows`, the shard's `columns`, lookups per sample.

    Arguments are `[n]`; elements are stored in `item_bytes`, and sent in `wire_bytes`. Kernels are
    those of `Topology.kernel_bytes_per_s`, `sharding` as of TorchRec.
    """
    height, width, lookups = (np.asarray(each, np.float64) for each in (rows, columns, pooling))
    it, kinds = topology, np.array(sharding, object)
    rate = np.array([it.kernel_bytes_per_s(each) for each in kernel]) / 1e3
    intra, inter = it.intra_bytes_per_s / 1e3, it.inter_bytes_per_s / 1e3
    whole = np.isin(kinds, ("table_wise", "column_wise"))
    by_row, within = kinds == "row_wise", kinds == "table_row_wise"
    replicated = kinds == "data_parallel"
    batch, nodes = it.batch_per_rank, it.ranks / it.local_ranks
    parts = np.select([by_row, within], [float(it.ranks), float(it.local_ranks)], 1.0)
    senders = np.where(replicated, 1.0, float(it.ranks))

    read = batch * lookups / parts * senders
    row_bytes = np.where(whole, np.maximum(width, MIN_WIDTH), width) * item_bytes
    indices = np.where(whole, np.ceil(read * INDEX_BYTES), read * INDEX_BYTES)
    pooled = batch * senders * width * np.where(replicated, item_bytes, wire_bytes)
    narrow = np.select([width >= 128, width >= 64], [1.0, 1.15], 1.75)
    forward = (indices + read * row_bytes + pooled) * np.where(whole, narrow, 1.0) / rate

    far = batch * nodes * width * wire_bytes / inter if nodes > 1 else 0.0
    among_all = pooled / (intra if nodes <= 1 else inter)
    comms = np.select([replicated, within], [0.0, pooled / intra + far], among_all)
    copied = np.where(by_row | within, pooled * BATCHED_COPY / rate, 0.0)
    # Gradients of whole tables among all ranks, and their dense optimizer.
    table_bytes, two = height * width * item_bytes, min(nodes, 2.0)
    turns = (2 * two - 1) / two * (2 if nodes > 2 else 1)
    summed = table_bytes * (turns / (inter * it.local_ranks) + DENSE_OPTIMIZER / rate)
    backward_comms = np.where(replicated, summed, comms) + copied
    return ShardCost(forward, comms, BACKWARD * forward, backward_comms)


def topology_of(machine: Cluster, batch_per_rank: int = Topology.batch_per_rank) -> Topology:
    """The machine's ranks and own rates, as TorchRec's planner reckons with them."""
    node = machine.node
    inter = node.nic.gb_per_s * (node.nics or 0) / node.gpus if node.nic else node.peer_gb_per_s
    return Topology(
        ranks=machine.gpus,
        local_ranks=machine.linked_gpus,
        hbm_bytes_per_s=node.device.hbm_gb_per_s * BYTES_PER_GB,
        host_bytes_per_s=(node.device.pcie_gb_per_s or 1.0) * BYTES_PER_GB,
        intra_bytes_per_s=node.peer_gb_per_s * BYTES_PER_GB,
        inter_bytes_per_s=inter * BYTES_PER_GB,
        batch_per_rank=batch_per_rank,
    )


def with_formulas(problem: Problem, deployment: Deployment) -> Problem:
    """The problem with TorchRec's cost of each shard as its work, and nothing else; the machine's
    own rates are the topology."""
    tables = deployment.workload.tables
    topology = topology_of(deployment.machine, deployment.samples)
    wire = float(item_bytes([deployment.workload.implementation.exchange_precision])[0])
    total_ms = np.empty(len(problem.ways))
    for dtype in {way.dtype for way in problem.ways}:
        own = [number for number, way in enumerate(problem.ways) if way.dtype == dtype]
        mine = [problem.ways[number] for number in own]
        beside = ["fused" if way.tier == "hbm" else "fused_uvm_caching" for way in mine]
        total_ms[own] = shard_cost(
            [tables[way.number].rows for way in mine],
            [way.shard.dim for way in mine],
            [tables[way.number].pooling for way in mine],
            [way.sharding for way in mine],
            [
                "dense" if way.sharding == "data_parallel" else kernel
                for way, kernel in zip(mine, beside, strict=True)
            ],
            topology,
            float(item_bytes([dtype])[0]),
            wire,
        ).total_ms
    nothing = np.zeros(len(total_ms))
    return replace(
        problem,
        kind=np.full(len(total_ms), NO_KIND),
        work_us=total_ms * 1e3,
        sent_us=nothing,
        shared_us=nothing,
        summed_us=nothing,
        first_us=nothing,
        scattered_us=nothing,
        fixed_us=(),
        beside=FixedTimes(),
    )


SCHEMA = "perfmodel.plan/1"
MODULE = "sparse.embedding_bags"
KERNELS: dict[str, str] = dict.fromkeys(("fused", "fused_triton", "dense", "quant"), "hbm")
KERNELS |= dict.fromkeys(("fused_uvm", "quant_uvm"), "host")
KERNELS |= {"fused_uvm_caching": "host", "quant_uvm_caching": "host"}
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
    """The placement that TorchRec's plan means; tables with UVM caching share a cache for as much
    of their rows as their `load_factor` says, or a fifth, the default of its planner.

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
            number = number_of(name, workload, where)
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
                cached_bytes += _load_factor(about, where) * _size_bytes(workload, number, dtype)
            placed[number] = TablePlacement(kind, ranks, KERNELS[kernel], dtype, caches=caches)
    missing = [number for number in range(len(workload.tables)) if number not in placed]
    if missing:
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WorkloadError(f"table_{missing[0]} is missing{more}")
    in_order = tuple(placed[number] for number in range(len(workload.tables)))
    if not cached_bytes:
        return Placement(in_order)
    cache = RowCache(CACHE, "hbm", cached_bytes / machine.gpus)
    return Placement(in_order, (cache,))


def torchrec_document(placement: Placement, workload: Workload, machine: Cluster) -> dict[str, Any]:
    """The placement as TorchRec's plan, a shared cache as an even part of each of its tables.
    Raises `WorkloadError` for tables on drives, and hot rows, which it does not know."""
    tables, cached_bytes = {}, 0.0
    for number, about in enumerate(placement.tables):
        cached_bytes += _size_bytes(workload, number, about.dtype) if about.caches else 0.0
    cached = sum(cache.capacity_bytes for cache in placement.caches) * machine.gpus
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
                "placement": f"rank:{rank}/cuda:{rank % machine.linked_gpus}",
            }
            for rank, offsets, sizes in _shards(about, table)
        ]
        tables[f"table_{number}"] = {
            "sharding_type": about.sharding,
            "compute_kernel": kernel,
            "ranks": list(about.ranks),
            "sharding_spec": {"shards": shards} if about.sharding != "data_parallel" else None,
            "cache_params": {"load_factor": cached / cached_bytes} if about.caches else None,
        }
    return {MODULE: tables}


def _size_bytes(workload: Workload, number: int, dtype: str) -> float:
    table = workload.tables[number]
    return table.rows * table.dim * float(item_bytes([dtype])[0])


def _load_factor(about: dict[str, Any], where: str) -> float:
    cached = about.get("cache_params")
    frac = cached.get("load_factor") if isinstance(cached, dict) else cached
    frac = CACHED_FRAC if frac is None else frac
    if not isinstance(frac, (int, float)) or not 0 < frac <= 1:
        raise WorkloadError(f"{where}: load_factor {str(frac)[:30]}: expected above 0, at most 1")
    return float(frac)


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


def number_of(name: str, workload: Workload, where: str) -> int:
    """Of the table that a name means by the number at its end."""
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
