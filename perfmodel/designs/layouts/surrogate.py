"""The planner's problem of a deployment: what every way of every table adds to a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Literal

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.durations import durations_of
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.problem import (
    ANY,
    CACHED_FRACS,
    EVERY,
    MEMORIES,
    FixedTimes,
    Problem,
    Way,
    ways,
)
from perfmodel.embedding import RowDtype, Sharding, TableAccess, TablePlacement, steady_use
from perfmodel.hardware import Cluster
from perfmodel.lowering.piece import Piece
from perfmodel.lowering.rules.cpu import rows_of
from perfmodel.lowering.rules.fbgemm import rows_in_order
from perfmodel.lowering.rules.indexing import bits_of
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import item_bytes
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import shard_bytes
from perfmodel.workload.sharding import busiest_part
from perfmodel.workload.tables import FP32_BYTES, Table, state_bytes
from perfmodel.workload.training import optimizer_passes

MAX_TOGETHER = 16
"""Shards that one call is reckoned with, at most; more change little."""
Shape = tuple[Table, RowDtype, int, int, str, Sharding]
"""A shard, the type of its rows, samples that look it up, shards in one call with it, the op, and
how it is sharded."""
OVER_BUS = "tbe_host"
End = Literal["duration_us", "low_us", "high_us"]
"""What is summed: durations, or an end of the interval of each."""


def lookup_us(deployment: Deployment, ways: Sequence[Way], end: End = "duration_us") -> Floats:
    """Per way, what one shard adds to its rank's lookups and, in training, to their backward pass:
    its share of a call over as many alike as a rank has. `[ways]`."""
    shapes = [_shape(deployment, way) for way in ways]
    distinct = list(dict.fromkeys(shapes))
    pieces = [_pieces(deployment, shape) for shape in distinct]
    owner = np.repeat(np.arange(len(distinct)), [len(own) for own in pieces])
    every = list(chain(*pieces))
    resident = [replace(each, op="tbe") if each.op == OVER_BUS else each for each in every]
    rows = rows_of([*every, *resident])  # over the bus it is the same kernel, which waits longer
    taken = np.maximum(*np.split(getattr(durations_of(rows, deployment.machine), end), 2))
    together = np.array([shape[3] for shape in distinct], np.float64)
    each = np.bincount(owner, taken, len(distinct)) / together
    times_us = dict(zip(distinct, each.tolist(), strict=True))
    return np.array([times_us[shape] for shape in shapes])


def missed_us(deployment: Deployment, ways: Sequence[Way]) -> Floats:
    """Per way behind a cache, time of rows that it misses in the steady state over the bus, in
    training of as many back; else 0. `[ways]`."""
    seen: dict[tuple[Table, RowDtype, float], tuple[float, float]] = {}
    missed, row_bytes = np.zeros(len(ways)), np.ones(len(ways))
    for number, way in enumerate(ways):
        if not way.cached_frac:
            continue
        key = way.shard, way.dtype, way.cached_frac
        if key not in seen:
            shard, placed = way.shard, TablePlacement("table_wise", (0,), dtype=way.dtype)
            size = shard_bytes(shard, placed, None)
            row, lookups = size / shard.rows, shard.lookups(deployment.batch)
            access = TableAccess(popularity=shard.popularity(), lookups=lookups, row_bytes=row)
            use = steady_use([access], max(way.cached_frac * size, row))
            seen[key] = float(use.fetched_rows[0]), row
        missed[number], row_bytes[number] = seen[key]
    bus = (deployment.machine.node.device.pcie_gb_per_s or 1.0) * 1e3
    turns = 2.0 if deployment.train else 1.0
    return np.asarray(missed * row_bytes * turns / bus)


def _shape(deployment: Deployment, way: Way) -> Shape:
    samples = deployment.samples if way.sharding == "data_parallel" else deployment.batch
    share = {ANY: 1, EVERY: deployment.ranks}.get(way.reach, deployment.machine.linked_gpus)
    per_rank = round(len(deployment.placement.tables) * share / deployment.ranks)
    together = min(max(per_rank, 1), MAX_TOGETHER)
    op = "tbe" if way.tier == "hbm" or way.cached_frac else OVER_BUS
    if deployment.workload.sequence.layers:
        rows = replace(way.shard, pooling=1.0), way.dtype, way.shard.lookups(samples)
        return *rows, together, op, way.sharding
    return way.shard, way.dtype, samples, together, op, way.sharding


def _pieces(deployment: Deployment, shape: Shape) -> list[Piece]:
    """Kernels of one call over `together` such tables, and of its backward."""
    table, dtype, samples, together, op, sharding = shape
    looked_up = float(table.lookups(samples) * together)
    dims = {
        "tables": float(together),
        "batch": float(samples),
        "lookups": looked_up,
        "dim": float(table.dim),
        "hash_size": float(table.rows),
        "unique_rows": table.unique_rows(samples) * together,
        "longest_bag": max(table.pooling, 1.0),
    }
    bags, is_fused = samples * together, sharding != "data_parallel"
    pieces = [Piece(op, dims, dtype)]
    about = deployment.workload
    if is_fused and deployment.ranks > 1 and not about.sequence.layers:
        moved = {"elements": looked_up, "segments": float(bags)}
        pieces.append(Piece("jagged_permute", moved, about.implementation.key_dtype))
    if not deployment.train:
        return pieces
    # Replicas are updated by the dense optimizer, which `_copied_us` has.
    optimizer = about.training.table_optimizer if is_fused else "sgd"
    updated = Piece(op, {**dims, "state_bytes": state_bytes(table, optimizer)}, dtype, "bwd")
    in_order = rows_in_order(round(looked_up), bags, bits_of(table.rows * together))
    return [*pieces, *in_order, updated]


def exchange_line(
    machine: Cluster, end: End, op: str, ranks: int, size_bytes: float, nodes: int | None = None
) -> tuple[float, float]:
    """Microseconds of `op` among `ranks`, from an empty message to `size_bytes` as nccl-tests
    define it: a fixed part and one per byte."""
    if ranks <= 1 or size_bytes <= 0:
        return 0.0, 0.0
    asked = {"op": op, "ranks": float(ranks)} | ({} if nodes is None else {"nodes": float(nodes)})
    sizes = [1.0, 1.0 + size_bytes]
    rows = place_collectives(Rows.of([{**asked, "size_bytes": size} for size in sizes]), machine)
    fixed_us, whole_us = getattr(durations_of(rows, machine), end).tolist()
    return fixed_us, max(whole_us - fixed_us, 0.0) / size_bytes


LENGTH_BYTES = 4.0


def keys_us(
    deployment: Deployment, here: Sequence[Way], end: End = "duration_us"
) -> tuple[Floats, float]:
    """Per way what a shard's keys, and how many each bag has, take of their exchange, `[ways]`,
    beside its fixed part."""
    batch, ranks, about = deployment.batch, deployment.ranks, deployment.workload
    each = item_bytes(about.implementation.key_dtype)
    lengths = 0.0 if about.sequence.layers else batch * LENGTH_BYTES
    usual = sum(it.lookups(batch) * each + lengths for it in about.tables) / ranks
    own = np.array([way.shard.lookups(batch) * each + lengths for way in here])
    fixed_us, per_byte = exchange_line(deployment.machine, end, "all_to_all", ranks, usual)
    return own * [way.sharding != "data_parallel" for way in here] * per_byte, fixed_us


POOLED, COLUMNS, REDUCED, WITHIN, SUMMED = KINDS = range(5)
"""Exchanges; each that some table needs has a fixed part of its own."""
KIND = {"table_wise": POOLED, "column_wise": COLUMNS, "row_wise": REDUCED}
KIND |= {"table_row_wise": WITHIN, "data_parallel": SUMMED}
STREAM_FRAC = 0.85
"""assumed: of the peak of device memory, what copies reach."""
DECIMALS = 6
"""Of microseconds: models may differ in the last bits from call to call, plans must not."""
FILLED = 0.9
"""Where tables fill more of device memory, the hosts' is considered."""


RESERVED_FRACS = (0.0, 0.03, 0.1, 0.2)
"""Of a device's memory, what searches keep free, one after the other, until the best layout's step
fits: what its activations take is known only then."""


def problems(
    deployment: Deployment, beside: bool = True, cached_fracs: Sequence[float] = CACHED_FRACS
) -> Iterator[Problem]:
    """The problem of laying out the deployment's tables, with more and more of each device's memory
    kept free, as long as the tables may fit. Where they nearly fill it, they may lie in the host's
    memory `beside` it, behind caches there of `cached_fracs` of a shard."""
    other_bytes = deployment.beside_bytes
    about, tables = deployment.workload.sequence, deployment.workload.tables
    if about.layers and about.index_dedup and about.unique_frac:  # lookups that leave a rank
        each = zip(tables, about.unique_frac, strict=True)
        tables = tuple(replace(table, pooling=table.pooling * frac) for table, frac in each)
        deployment = replace(deployment, workload=replace(deployment.workload, tables=tables))
    node, ranks = deployment.machine.node, deployment.ranks
    host_bytes = (node.host_memory_bytes or 0) / node.gpus if beside else 0.0
    whole = sum(it.size_bytes for it in ways(deployment) if it.sharding == "table_wise")
    known: dict[bool, Problem] = {}
    for reserved in RESERVED_FRACS:
        hbm_bytes = max((1 - reserved) * node.device.hbm_bytes - other_bytes, 1.0)
        if whole > (hbm_bytes + host_bytes) * ranks:
            return
        on_host = host_bytes > 0 and whole > FILLED * hbm_bytes * ranks
        if on_host not in known:
            fracs = cached_fracs if on_host else ()
            known[on_host] = timed(deployment, tuple(ways(deployment, fracs)))
        yield replace(known[on_host], room_bytes=(hbm_bytes, max(host_bytes, 1.0)))


def timed(deployment: Deployment, here: tuple[Way, ...], end: End = "duration_us") -> Problem:
    """The problem of choosing among these ways, in memories without end."""
    machine, ranks = deployment.machine, deployment.ranks
    busiest = list(here)
    for at, way in enumerate(here):
        if "row_wise" in way.sharding:
            whole = deployment.workload.tables[way.number]
            busiest[at] = replace(way, shard=busiest_part(whole, way.parts))
    both = [*here, *busiest]
    rows, most = np.split(lookup_us(deployment, both, end) + missed_us(deployment, both), 2)
    excess = np.round(most - rows, DECIMALS)  # of the busiest part over the mean one
    work = np.round(rows + _copied_us(deployment, here), DECIMALS)
    in_blocks = np.array([way.shard.ids == "by_popularity" for way in here])
    kind, exchanged, fixed_us = _exchange_us(deployment, here, end)
    sent, shared, summed = (np.round(each, DECIMALS) for each in exchanged)
    return Problem(
        *(here, kind, work, sent, shared, summed, excess * in_blocks, excess * ~in_blocks, ranks),
        linked=machine.linked_gpus if ranks % machine.linked_gpus == 0 else ranks,
        room_bytes=(np.inf,) * len(MEMORIES),
        fixed_us=tuple(np.round(fixed_us, DECIMALS).tolist()),
        beside=_beside(deployment),
        forward_frac=0.5 if deployment.train else 1.0,
    )


def _elements(deployment: Deployment, tables: Iterable[Table]) -> Floats:
    """Of a batch, what comes back from each table, or shard of one."""
    unpooled = deployment.workload.sequence.layers > 0
    per_sample = [it.dim * it.pooling if unpooled else it.width for it in tables]
    return deployment.batch * np.array(per_sample, np.float64)


def _carried(deployment: Deployment, here: tuple[Way, ...]) -> tuple[Ints, Floats, Floats]:
    """Per way its kind of exchange, and of each shard the elements that it carries, and the bytes
    of one: rows of a batch on the wire, or a replica's gradients as its rows are. Rows of sequences
    travel as they are, wherever they lie."""
    unpooled = deployment.workload.sequence.layers > 0
    kind = np.array([POOLED if unpooled else KIND[way.sharding] for way in here])
    table = np.array([way.shard.rows * way.shard.dim for way in here], np.float64)
    elements = np.where(kind == SUMMED, table, _elements(deployment, (way.shard for way in here)))
    wire = deployment.workload.implementation.exchange_precision
    dtypes = (way.dtype if way.sharding == "data_parallel" else wire for way in here)
    return kind, elements, np.array([*map(item_bytes, dtypes)])


def _exchange_us(
    deployment: Deployment, here: tuple[Way, ...], end: End
) -> tuple[Ints, tuple[Floats, Floats, Floats], Floats]:
    """Per way its kind of exchange; per shard what it sends, what all exchange, and sums of
    gradients, both ways together; what each kind adds however little it carries."""
    machine, ranks, linked = deployment.machine, deployment.ranks, deployment.machine.linked_gpus
    kind, elements, items = _carried(deployment, here)
    wire_bytes = item_bytes(deployment.workload.implementation.exchange_precision)
    every = float((_elements(deployment, deployment.workload.tables) * wire_bytes).sum())
    replicas = float((elements * items)[kind == SUMMED].sum())
    groups, back = max(ranks // linked, 1), float(deployment.train)
    nodes, usual, of_group = min(groups, machine.nodes), every / ranks, every / groups
    terms = (
        (POOLED, 1 + back, 1.0, ("all_to_all", ranks, usual)),
        (COLUMNS, 1 + back, 1.0, ("all_to_all", ranks, usual)),
        (REDUCED, 1.0, 1.0, ("reduce_scatter", ranks, every)),
        (REDUCED, back, 1.0, ("all_gather", ranks, every)),
        (WITHIN, 1.0, 1.0, ("reduce_scatter", linked, of_group)),
        (WITHIN, back, 1.0, ("all_gather", linked, of_group)),
        (WITHIN, 1 + back, 1 / linked, ("all_to_all", groups, usual, nodes)),
        (SUMMED, back, 1.0, ("all_reduce", ranks, replicas)),  # as one
    )
    us_per_byte, fixed_us = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    for at, times, share, of in terms:
        fixed, per_byte = exchange_line(machine, end, *of)
        us_per_byte[at] += times * share * per_byte
        fixed_us[at] += times * fixed
    taken_us = elements * items * us_per_byte[kind]
    parts = ((POOLED, COLUMNS, WITHIN), (REDUCED,), (SUMMED,))
    sent, shared, summed = (np.where(np.isin(kind, part), taken_us, 0.0) for part in parts)
    # The fixed part of keys' exchanges is hidden by others of the step before.
    rows_keys = np.array([sent, keys_us(deployment, here, end)[0]])
    return kind, (rows_keys, shared, summed), fixed_us


def _copied_us(deployment: Deployment, here: tuple[Way, ...]) -> Floats:
    """Per way and shard, copies of what is exchanged, both ways together; of a replica its gradient
    and its optimizer's step, kernels of every rank, which its sum alone runs beside."""
    kind, elements, items = _carried(deployment, here)
    train = float(deployment.train)
    every = (FP32_BYTES + items) * (1 + train) + 2 * FP32_BYTES * train
    sent = every + 2 * items
    # A replica's gradient begins as zeros, and goes into its bucket.
    passes = 3 + optimizer_passes(deployment.workload.training.dense_optimizer)
    copied_bytes = np.choose(kind, [sent, sent, every, every, passes * items * train])
    rate = STREAM_FRAC * deployment.machine.node.device.hbm_gb_per_s * 1e3
    return np.asarray(elements * copied_bytes * (deployment.ranks > 1) / rate)


def _beside(deployment: Deployment) -> FixedTimes:
    """Layers before lookups and behind them, both ways, and the sum of their gradients. Of recorded
    layers only that sum is known before they are scheduled."""
    workload, train = deployment.workload, float(deployment.train)
    bottom = top = 0.0
    if not workload.recorded:
        precision, count = workload.implementation.precision, len(workload.model.bottom_mlp)
        taken = mlp_us(workload, deployment.machine, deployment.samples, precision)
        bottom, top = float(taken[:count].sum()), float(taken[count:].sum())
    top_back, bottom_back = 2.0 * top, 2.0 * bottom  # two products each
    size = workload.dense_parameters * FP32_BYTES
    about = "all_reduce", deployment.ranks, size
    fixed, per_byte = exchange_line(deployment.machine, "duration_us", *about)
    reduced_us = (fixed + per_byte * size) if deployment.train else 0.0
    times = top + train * top_back, bottom, train * bottom_back, top, reduced_us
    dense_us, bottom, bottom_back, top, reduced_us = np.round(times, DECIMALS).tolist()
    return FixedTimes(dense_us, (bottom, bottom_back), top, reduced_us)


def mlp_us(workload: Workload, machine: Cluster, samples: int, dtype: str) -> Floats:
    """Microseconds of the forward product of each layer in `dtype`: of the bottom MLP, then of the
    top; `samples` of one device. Casts between layers of several types are left out."""
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    linear = {"op": "linear", "m": float(samples), "dtype": dtype}
    rows = Rows.of([{**linear, "n": float(n), "k": float(k)} for k, n in widths])
    return durations_of(rows, machine).duration_us
