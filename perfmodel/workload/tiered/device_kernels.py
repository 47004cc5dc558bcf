"""Tables read by the device: in its memory, over the bus, in a cache that it keeps; their hot rows
in network adapters as well.

What it stands for: FBGEMM's table-batched embeddings with weights in unified memory that stays on
the host (`EmbeddingLocation.MANAGED`), the optimizer's state with them.

And the frequency-aware cache of CachedEmbedding, kept by PyTorch's operators step by step. All
tables are one, its rows numbered by how often the data has them. Before a step: the distinct rows
of the batch, those of them that the cache has not, as many that it can do without, these to the
host, those from there. The host waits at every count. Source: hpcaitech/ColossalAI,
colossalai/legacy/nn/parallel/layers/cache_embedding/cache_mgr.py, `prepare_ids` without buffer and
without asynchronous copies; `torch.isin` by sorting, as PyTorch does where both sides are many.

Of rows that adapters hold as well, that of the rank that asks looks into its cache before keys go
out; the device of the rank that holds a table looks up the rest. Source: Guo et al. 2023 (ICS), as
far as its abstract goes; what it leaves open is assumed: partial sums added in the adapter, which
works row by row beside the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from perfmodel.embedding.placement import HBM
from perfmodel.errors import WorkloadError
from perfmodel.lowering.arguments import HOST
from perfmodel.lowering.rules.fbgemm import HOST_STATE
from perfmodel.ops.graph import Tensor
from perfmodel.ops.spec import item_bytes
from perfmodel.ops.vocabulary.embedding import HOST_MEMORY
from perfmodel.workload.adapter_caches import AdapterUse, adapter_use
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.embedding_bag import (
    Batched,
    add_sparse,
    batched,
    embedding_bag,
    embedding_bag_backward,
    look_up,
    look_up_dense,
)
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.jagged import Jagged, offsets, record_row_op
from perfmodel.workload.step import Run
from perfmodel.workload.tables import lookup_attributes, lookups
from perfmodel.workload.tiered.source import (
    TIERED,
    Group,
    RowCacheUse,
    Source,
    prefetch_attributes,
    row_cache_use,
)
from perfmodel.workload.training import LEARNING_RATE


@dataclass(frozen=True)
class DeviceTables(Source):
    tables: Batched

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.tables.weights,)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        about = lookup_attributes(group.tables, group.samples) | dict(group.known)
        starts = offsets(r, keys)
        tables = self.tables.described(about)
        if r.tape is not None and is_replica(group):
            return look_up_dense(r, tables, keys.values, starts, group.samples)
        return look_up(r, tables, keys.values, starts, group.samples)


def is_replica(group: Group) -> bool:
    """Whether the gradients of these tables are summed over all ranks, for the dense optimizer."""
    return group.replicated and group.run.world > 1 and group.placed.tier == HBM


def table_batched(r: Recorder, group: Group) -> Batched:
    about, training = lookups(group.tables, group.samples), group.run.workload.training
    return batched(r, about, dtype=group.placed.dtype, optimizer=training.table_optimizer)


def average_copies(r: Recorder, run: Run, pairs: Iterable[tuple[Source, Group]]) -> None:
    """Rows of this rank's shards, and the optimizer's state, become the mean over all copies; the
    step waits for it. Raises `WorkloadError` for tables beyond device memory.

    Source: TorchRec, `DMPCollection.sync`: an all-reduce (mean) of weights, one of states.
    """
    place = f"copies of {run.rank}"
    for source, group in pairs:
        if group.replicated:
            continue
        if type(source) is not DeviceTables or group.placed.tier != HBM:
            raise WorkloadError("placement: copies of tables beyond device memory are not averaged")
        weights = source.tables.weights
        items = float(item_bytes("fp32") / item_bytes(weights.dtype))
        states = [round(state.elements * items) for state in source.tables.states]
        for elements in (weights.elements, *states):  # which lie with the rows
            held = r.view(weights, (elements,), (1,))
            r.all_reduce(held, run.copies, group=place, nodes=run.copies_nodes)
        first = r.view(weights, (1,), (1,))
        r.leaf("aten::mul_", (first, 1), first)  # stands for the wait


FETCH_STREAM = "fetch"  # of TorchRec's prefetch pipeline
WAYS = 32  # places of a set. Source: FBGEMM, `DEFAULT_ASSOC`: a warp of NVIDIA's GPUs


@dataclass(frozen=True)
class KernelCache(DeviceTables):
    state: Tensor  # per place of the cache the row that it holds, and when it was last used
    host_rows: Tensor

    @classmethod
    def of(cls, r: Recorder, group: Group) -> Self:
        tables, use, dtype = table_batched(r, group), device_use(group), group.placed.dtype
        slots = max(round(use.held_rows), WAYS)
        cached = r.tensor((slots * max(round(use.row_bytes / 4), 1),), dtype)
        rows = r.tensor(tables.weights.shape, dtype, place=HOST)
        held = replace(tables, weights=cached, states=())  # which lie on the host
        return cls(held, r.tensor((slots, 2), "int64"), rows)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        use = device_use(group)
        sizes, weights = self.tables.hash_sizes, self.tables.weights
        kind = "lfu" if use.cache.policy in ("lfu", "static") else "lru"
        with r.with_attributes(prefetch_attributes(group, FETCH_STREAM)):
            linear = r.tensor(keys.values.shape, "int64")
            given = (self.host_rows, sizes, linear, self.state, weights)
            r.leaf("fbgemm::linearize_cache_indices", (sizes, keys.values), linear)
            about = _about(use, self.state)
            r.leaf(f"fbgemm::{kind}_cache_populate", given, weights, about=about)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        places, about = r.tensor(keys.values.shape, "int32"), _about(device_use(group), self.state)
        r.leaf("fbgemm::lxu_cache_lookup", (keys.values, self.state), places, about=about)
        return super().look_up(r, replace(group, known={**group.known, HOST_STATE: "1"}), keys)


def device_use(group: Group) -> RowCacheUse:
    """What a batch finds in the first of the caches, the device's."""
    return row_cache_use(group, group.placed.caches[0])


def _about(use: RowCacheUse, state: Tensor) -> dict[str, str]:
    names = ("lookups", "unique_rows", "missed_rows", "row_bytes")
    figures = {name: getattr(use, name) for name in names}
    figures |= {"sets": float(max(state.shape[0] // WAYS, 1)), "ways": float(WAYS)}
    return {name: repr(value) for name, value in figures.items()}


@dataclass(frozen=True)
class OperatorCache(Source):
    """See `source.Source`; the maps have an int64 for every row there is."""

    cache: Tensor
    held: Tensor  # per place of the cache, the row that it holds
    number_of: Tensor
    place_of: Tensor
    host_rows: Tensor

    @classmethod
    def of(cls, r: Recorder, group: Group) -> OperatorCache:
        dims = {table.dim for table in group.tables}
        if len(dims) > 1:
            raise WorkloadError("a cache kept by operators holds rows of one width: tables differ")
        if group.run.workload.training.table_optimizer != "sgd":
            raise WorkloadError("a cache kept by operators holds no optimizer state: use sgd")
        dim, dtype = dims.pop(), group.placed.dtype
        places, rows = max(round(device_use(group).held_rows), 1), sum(t.rows for t in group.tables)
        return cls(
            r.tensor((places, dim), dtype),
            r.tensor((places,), "int64"),
            r.tensor((rows,), "int64"),
            r.tensor((rows,), "int64"),
            r.tensor((rows, dim), dtype, place=HOST),
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.cache,)

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows of one batch into the cache."""
        use = device_use(group)
        unique, missed = max(round(use.unique_rows), 1), round(use.missed_rows)
        held = self.held
        numbers = _select(r, self.number_of, keys.values)
        distinct, repeats = (r.tensor((unique,), "int64") for _ in range(2))
        r.leaf("aten::_unique2", (numbers, True, False, True), distinct, None, repeats)
        absent = _is_in(r, distinct, held)
        wanted = _masked(r, distinct, absent, max(missed, 1))
        counts = _masked(r, r.tensor((unique,), "int64"), absent, max(missed, 1))
        r.made("aten::sum", (counts,), (), "int64")
        if not missed:
            return
        wanted_host = r.to_device(wanted, HOST)
        dims = {"lookups": float(missed), "row_bytes": use.row_bytes}
        on_host = partial(record_row_op, r, stream=HOST_MEMORY, dims=dims, blocks=True)
        # As many of the least frequent rows as come, none of the batch's, back to the host.
        in_batch, kept = _is_in(r, held, distinct), max(unique - missed, 1)
        barred = r.made("aten::nonzero", (in_batch,), (kept,), "int64")
        saved = _masked(r, held, in_batch, kept)
        r.made("aten::clone", (saved, None), saved.shape, "int64")
        r.leaf("aten::index_fill_", (held, 0, barred, -2), held)
        values, leaving = r.tensor((missed,), "int64"), r.tensor((missed,), "int64")
        r.leaf("aten::topk", (held, missed, -1, True, True), values, leaving)
        r.leaf("aten::index_copy_", (held, 0, barred, saved), held)
        numbers = _select(r, held, leaving)
        rows = r.to_device(_select(r, self.cache, leaving), HOST)
        r.to_device(numbers, HOST)
        on_host("host_scatter", (rows, self.host_rows), self.host_rows)
        r.leaf("aten::index_fill_", (held, 0, leaving, -1), held)
        r.leaf("aten::index_fill_", (self.place_of, 0, numbers, -1), self.place_of)
        # Those that are wanted, by way of pinned memory to the device and their places.
        is_free = r.made("aten::eq", (held, -1), held.shape, "bool")
        slots = r.made("aten::nonzero", (is_free,), (missed,), "int64")
        shape, dtype = (missed, self.cache.shape[1]), self.cache.dtype
        gathered, pinned = (r.tensor(shape, dtype, place=HOST) for _ in range(2))
        on_host("host_gather", (self.host_rows, wanted_host), gathered)
        on_host("host_gather", (gathered,), pinned)
        came = r.to_device(pinned, r.place, non_blocking=True)
        for to, at, what in (
            (self.cache, slots, came),
            (self.held, slots, wanted),
            (self.place_of, wanted, slots),
        ):
            r.leaf("aten::index_copy_", (to, 0, at, what), to)

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        places = _select(r, self.place_of, _select(r, self.number_of, keys.values))
        about = lookup_attributes(group.tables, group.samples)
        with r.untracked():
            bags = r.view(offsets(r, keys), (group.bags,), (1,))
            pooled = embedding_bag(r, self.cache, places, bags, about)
            by_table = r.reshape(pooled, (len(group.tables), group.samples, -1))
            out = r.reshape(r.transpose(by_table, 0, 1), (group.samples, -1))

        def backward(gradient: Tensor) -> Gradients:
            """A sparse gradient of the rows in the cache, and SGD on them."""
            by_sample = r.reshape(gradient, (group.samples, len(group.tables), -1))
            each = r.reshape(r.transpose(by_sample, 0, 1), (group.bags, -1))
            nothing = r.tensor((0,), "int64")
            saved = (places, bags, nothing, bags, nothing)
            sparse = embedding_bag_backward(r, each, self.cache, saved, about)
            add_sparse(r, self.cache, sparse, -LEARNING_RATE, about)
            return [None]

        return r.track("EmbeddingBagBackward0", (self.cache,), out, backward)


def _select(r: Recorder, table: Tensor, index: Tensor) -> Tensor:
    shape = (index.shape[0], *table.shape[1:])
    return r.made("aten::index_select", (table, 0, index), shape, table.dtype)


def _is_in(r: Recorder, x: Tensor, among: Tensor) -> Tensor:
    """Which of the distinct `x` are `among`: both made distinct, sorted together, compared.

    Source: aten/src/ATen/native/TensorCompare.cpp, `isin_sorting`.
    """
    n, both = x.shape[0], x.shape[0] + among.shape[0]
    r.begin("aten::isin", x, among, False, True)
    inverse = r.tensor((n,), "int64")
    r.leaf("aten::_unique2", (x, False, True, False), r.tensor((n,), "int64"), inverse, None)
    r.leaf("aten::_unique2", (among, False, False, False), r.tensor(among.shape, "int64"))
    joined, ordered, order = (r.tensor((both,), "int64") for _ in range(3))
    r.leaf("aten::cat", ((x, among), 0), joined)
    r.leaf("aten::sort", (joined, True, 0, False), ordered, order)
    same, mask = r.tensor((both - 1,), "bool"), r.tensor((both,), "bool")
    left, right = (r.view(ordered, (both - 1,), (1,)) for _ in range(2))
    r.leaf("aten::ne", (left, right), same)
    r.leaf("aten::index_copy_", (mask, 0, order, mask), mask)
    out = r.made("aten::index_select", (mask, 0, inverse), (n,), "bool")
    r.end(out)
    return out


def _masked(r: Recorder, x: Tensor, mask: Tensor, count: int) -> Tensor:
    """`x[mask]`: where the mask is true, counted by the host, then those values."""
    places = r.made("aten::nonzero", (mask,), (count,), "int64")
    return r.made("aten::index", (x, (places,)), (count,), x.dtype)


@dataclass(frozen=True)
class AdapterCachedTables(DeviceTables):
    use: AdapterUse

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        run, placement = group.run, group.run.placement
        own = run.linked / run.ranks  # samples whose keys pass no adapter
        numbers = [shard.table for shard in run.plan.shards[run.rank]]
        mine = [n for n in numbers if placement.tables[n].caches == group.placed.caches]
        pooling, unique = [], []
        for table, number in zip(group.tables, mine, strict=True):
            # The device looks up linked ranks' keys, and what others' adapters leave.
            pooling.append(table.pooling * (own + (1 - own) * self.use.asked_frac[number]))
            others = min(self.use.asked_rows[number], table.rows)
            linked = table.unique_rows(run.batch * run.linked)
            unique.append(min(others + linked * (1 - others / table.rows), table.rows))
        whole = lookups(group.tables, group.samples)
        left = replace(whole, pooling=tuple(pooling), unique_rows=tuple(unique))
        rest = r.view(keys.values, (max(round(sum(left.lookups)), 1),), (1,))
        tables = self.tables.described(left.to_attributes())
        return look_up(r, tables, rest, offsets(r, keys), group.samples)


@TIERED.register("hbm")
def device_tables(r: Recorder, group: Group) -> DeviceTables:
    """Weights in device memory, whose hot rows adapters may hold as well."""
    if not group.cached_at:
        return DeviceTables(table_batched(r, group))
    use = adapter_use(group.run)
    if use is None or group.replicated or group.run.train:
        no_other = "there is no other rank that looks rows up"
        why = "rows that are trained are not written to it" if group.run.train else no_other
        raise WorkloadError(f"a cache in an adapter: {why}")
    return AdapterCachedTables(table_batched(r, group), use)
