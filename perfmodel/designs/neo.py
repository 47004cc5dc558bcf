"""Neo on ZionEX: tables sharded in four dimensions, all rows in a hierarchy of memories.

A table is replicated where its gradients are fewer bytes than its rows' exchange would be; in rows
where one rank's memory, or a node's, is too small for it; in columns where it is more work than a
rank's share; else whole. Shards then go, the largest first, where there is least work and room;
what finds no room there goes in rows to a node, or to all.
Source: the four dimensions and their reasons, Mudigere et al., Neo (ISCA 2022), in own words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment, Design
from perfmodel.embedding import Placement, RowCache, RowDtype, Sharding
from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import item_bytes
from perfmodel.workload.memory_tiers import CONTEXT_BYTES, shard_bytes
from perfmodel.workload.tables import Table

TABLES_FRAC = 0.75
"""assumed: of device memory beside the driver's, what tables may fill beside activations."""
MAX_HALVINGS = 8  # of the share that the cache has, where device memory is short
LARGE_FRAC = 0.5  # assumed: a table of more than so much of a rank's memory is split
MIN_COLUMNS, GRADIENT_BYTES = 32, 4.0
CACHE = "rows"


def balanced(deployment: Deployment, cache_frac: float) -> Placement:
    """The deployment's tables laid out; those looked up least per byte go to host memory until the
    others fit. Raises `WorkloadError` where hosts are too small as well, by how much."""
    node, ranks = deployment.machine.node, deployment.ranks
    tables = deployment.workload.tables
    optimizer = deployment.workload.training.table_optimizer if deployment.train else None
    whole = deployment.placement.edited(lambda *_: {"sharding": "table_wise", "ranks": (0,)})
    pairs = zip(tables, whole.tables, strict=True)
    sizes = np.array([shard_bytes(*pair, optimizer) for pair in pairs])
    room = TABLES_FRAC * (node.device.hbm_bytes - CONTEXT_BYTES)
    hosted, cached = _hosted(deployment, sizes, room, cache_frac)
    work = np.array([(table.pooling + 1) * table.dim for table in tables])
    mean = float(work.sum()) / ranks
    host_bytes = node.host_memory_bytes or np.inf
    # Bytes of each table in device memory, and in the host's.
    held = np.stack([np.where(hosted, cached * sizes, sizes), np.where(hosted, sizes, 0.0)])
    full = np.max(held / [[room], [TABLES_FRAC * host_bytes / node.gpus]], axis=0)
    kinds = [
        _kind(deployment, table, float(full[number]), float(work[number]) / mean)
        for number, table in enumerate(tables)
    ]
    rooms = np.array([[room], [host_bytes / node.gpus]])
    busy, filled = np.zeros(ranks), np.zeros((2, ranks))
    placed, cached_bytes = dict[int, dict[str, Any]](), np.zeros(ranks)
    split = {"row_wise": 0, "data_parallel": 0, "table_row_wise": 1}
    order = sorted(
        range(len(kinds)), key=lambda n: (split.get(kinds[n][0], 2), -work[n] / kinds[n][1])
    )
    for number in order:
        for sharding, parts in _wider(deployment, *kinds[number]):
            shards = 1 if sharding == "data_parallel" else parts
            shard = held[:, number, None] / shards
            is_full = np.max(filled + shard - rooms, axis=0) > 0
            own = _ranks(ranks, sharding, parts, busy, is_full)
            if not is_full[own].any():
                break
        busy[own] += 0.0 if sharding == "data_parallel" else float(work[number]) / parts
        filled[:, own] += shard
        kept = (CACHE,) if hosted[number] and cached else ()
        where = {"sharding": sharding, "ranks": tuple(own.tolist())}
        place = {"tier": "host" if hosted[number] else "hbm", "caches": kept}
        placed[number] = {"pooled_on": "device", "hot_rows": 0, **where, **place}
        if hosted[number]:
            cached_bytes[own] += shard[0]
    largest = float(cached_bytes.max())
    caches = (RowCache(CACHE, "hbm", largest),) if largest else ()
    edited = deployment.placement.edited(lambda number, _: placed[number], caches=caches)
    return Placement(edited.tables, caches)


def _hosted(
    deployment: Deployment, sizes: Floats, room: float, cache_frac: float
) -> tuple[NDArray[np.bool_], float]:
    """Which tables go to host memory, those looked up least per byte, as few bytes as may be; and
    what share of their rows a cache of at most `cache_frac` then has."""
    use = np.array([table.pooling * table.dim for table in deployment.workload.tables]) / sizes
    order = np.argsort(use, kind="stable").tolist()
    host = (deployment.machine.node.host_memory_bytes or 0) * deployment.machine.nodes
    missing = np.inf
    for halvings in range(MAX_HALVINGS):
        cached = cache_frac / 2**halvings
        hosted = np.zeros(len(sizes), bool)
        over = float(sizes.sum()) - room * deployment.ranks
        for number in order:
            if over <= 0:
                break
            hosted[number] = True
            over -= (1 - cached) * float(sizes[number])
        missing = min(missing, max(over, float(sizes[hosted].sum()) - host))
        if missing <= 0:
            return hosted, cached
    raise WorkloadError(
        f"neo: {deployment.workload.name}: tables of {sizes.sum() / BYTES_PER_GB:.4g} GB need "
        f"{missing / BYTES_PER_GB:.4g} GB more than device and host memory have for them"
    )


def _kind(deployment: Deployment, table: Table, full: float, share: float) -> tuple[Sharding, int]:
    """Sharding and number of shards; its bytes over a rank's room, its work over a rank's share."""
    ranks, linked = deployment.ranks, deployment.machine.linked_gpus
    if ranks == 1:
        return "table_wise", 1
    software = deployment.workload.implementation
    dtypes = software.exchange_precision, software.key_dtype
    wire, key = (float(each) for each in item_bytes(dtypes))
    exchanged = deployment.batch / ranks * (2 * wire + table.pooling * key / table.dim)
    if deployment.train and 2 * table.rows * GRADIENT_BYTES < exchanged:
        return "data_parallel", ranks
    if full > LARGE_FRAC and table.rows >= ranks:
        grouped = 1 < linked < ranks and full <= LARGE_FRAC * linked
        return ("table_row_wise", linked) if grouped else ("row_wise", ranks)
    parts = 1
    while share > parts and 2 * parts <= ranks and table.dim % (2 * parts) == 0:
        if table.dim // (2 * parts) < MIN_COLUMNS:
            break
        parts *= 2
    return ("column_wise", parts) if parts > 1 else ("table_wise", 1)


def _wider(
    deployment: Deployment, sharding: Sharding, parts: int
) -> Iterator[tuple[Sharding, int]]:
    """This sharding, then those among more ranks, each the less full."""
    yield sharding, parts
    linked = deployment.machine.linked_gpus
    if sharding in ("table_wise", "column_wise") and 1 < linked < deployment.ranks:
        yield "table_row_wise", linked
    if sharding not in ("data_parallel", "row_wise") and deployment.ranks > 1:
        yield "row_wise", deployment.ranks


def _ranks(
    ranks: int, sharding: str, parts: int, busy: Floats, full: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The ranks of the shards: those with least work, and with room where any have it."""
    if parts == ranks:
        return np.arange(ranks)
    load = busy + np.where(full, busy.max() + 1.0, 0.0)
    if sharding == "table_row_wise":
        start = int(load.reshape(-1, parts).sum(axis=1).argmin()) * parts
        return np.arange(start, start + parts)
    return np.sort(np.argsort(load, kind="stable")[:parts])


MIN_FRAC = 0.005
BEYOND = "tables that device memory does not hold"
Layout = Literal["balanced", "as_deployed"]
Wire = Literal["fp32", "fp16", "bf16"]
WIRES: tuple[Wire, ...] = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Neo(settings.Checked, of="neo"):
    """Neo: 4D sharding, fused row-wise optimizer, device memory as a cache, quantised exchange.

    `sharding` `balanced` lays tables out by bytes and work per rank (table-, row-, column-wise,
    data-parallel, row-wise within a node); `as_deployed` keeps the layout, such as a plan's.
    `rows` are stored, and pooled rows sent (`wire`, both ways), in 16 bits. Tables beyond device
    memory lie in the hosts', behind a cache with at most `cache_frac` of their rows (0: none).
    `own_groups`: a process group each for keys, pooled rows and dense gradients; TorchRec has one
    for all, and one for keys as an option (github.com/meta-pytorch/torchrec, pull request 812).
    Source: Mudigere et al., Neo (ISCA 2022); formats and cache as recalled; the share is FBGEMM's
    default.
    """

    sharding: Layout = settings.step(
        "balanced",
        plain="as_deployed",
        start={"sharding": "table_wise"},
        acts_on="ranks that whole tables load unevenly",
    )
    rows: RowDtype = settings.step("fp16", plain="fp32", start={"table_precision": "fp32"})
    wire: Wire = settings.step("fp16", plain="fp32", start={"exchange_precision": "fp32"})
    cache_frac: settings.Share = settings.step(0.2, plain=0.0, acts_on=BEYOND)
    input_ahead: bool = settings.step(True, plain=False, start={"prefetch": False})
    rows_ahead: bool = settings.step(True, plain=False, acts_on=BEYOND)
    own_groups: bool = settings.step(False, plain=False)

    def apply(self, deployment: Deployment) -> Deployment:
        """The deployment with Neo's formats, layout and pipeline."""
        if deployment.machine.node.device.target == "cpu":
            raise WorkloadError("neo: a machine of CPUs has no device memory to shard tables over")
        optimizer = deployment.workload.training.table_optimizer
        workload = deployment.workload.with_(
            implementation__exchange_precision=self.wire,
            training__table_optimizer="rowwise_adagrad" if optimizer == "adagrad" else optimizer,
        )
        stored = deployment.placement.edited(lambda _number, _placed: {"dtype": self.rows})
        told = ["neo: rowwise_adagrad in the place of adagrad"] * (optimizer == "adagrad")
        deployed = deployment.with_(*told, workload=workload, placement=stored)
        if self.sharding == "balanced":
            deployed = deployed.with_(placement=balanced(deployed, self.cache_frac))
        has_slow = any(placed.tier != "hbm" for placed in deployed.placement.tables)
        pipeline = replace(
            deployed.pipeline,
            input_ahead=self.input_ahead,
            rows_ahead=self.rows_ahead and has_slow,
            own_groups=self.own_groups,
        )
        return deployed.with_(pipeline=pipeline)

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With a smaller cache, and so with more whole tables in device memory; with pooled rows as
        wide, or tables where they were, or both: casts and another kind of exchange are kernels to
        launch, which a step that waits for launches pays for."""
        wire = deployment.workload.implementation.exchange_precision
        wires = (self.wire, *(each for each in WIRES if each == wire != self.wire))
        shardings: dict[Layout, None] = dict.fromkeys((self.sharding, "as_deployed"))
        ways = [replace(self, wire=w, sharding=s) for s in shardings for w in wires]
        caches = [
            replace(self, cache_frac=frac) for frac in settings.halved(self.cache_frac, MIN_FRAC)
        ]
        return [*ways[1:], *caches]
