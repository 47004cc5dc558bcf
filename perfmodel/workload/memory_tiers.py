"""Memory that a placement needs tier by tier, and one rank's ops, from the storages they touch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.embedding import Placement, TablePlacement
from perfmodel.embedding.placement import HBM, HOST, MEMORIES, NIC, STORAGE
from perfmodel.errors import DoesNotFit, WorkloadError
from perfmodel.hardware import Cluster, Device
from perfmodel.ops.graph import TRITON, OpGraph, tensors_in
from perfmodel.ops.lookups import STATES_BYTES, is_lookup
from perfmodel.ops.spec import CPU_ALIGNMENT_BYTES, GPU_ALIGNMENT_BYTES, item_bytes, row_bytes
from perfmodel.workload.model import Workload
from perfmodel.workload.tables import Table, state_bytes

CONTEXT_BYTES = 0.5e9
"""assumed: what the driver and its libraries take of a GPU's memory."""
SLACK_FRAC = 0.25
"""assumed: of activations and gradients, by how much they may take more (workspaces, blocks of the
allocator that lie apart) or less (types and copies that another release has)."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory that one rank needs at its peak."""

    tables_bytes: float
    """Embedding tables, resident tensors that a lookup reads, and their optimizer's state."""
    resident_bytes: float
    """Other tensors that no op of the step made: parameters, optimizer state, the batch."""
    temporary_bytes: float
    """Activations, gradients and workspaces, at the moment when most of them live."""
    peak_op: str
    """The op at which that is."""

    @property
    def total_bytes(self) -> float:
        return self.tables_bytes + self.resident_bytes + self.temporary_bytes

    def to_dict(self, device: Device) -> dict[str, Any]:
        """The figures, with what the driver takes, and whether the least that it may take fits."""
        driver, slack = driver_bytes(device), SLACK_FRAC * self.temporary_bytes
        total = self.total_bytes + driver
        ends = {"low_bytes": total - slack, "high_bytes": total + slack}
        fits = {"fits": total - slack <= device.hbm_bytes}
        return asdict(self) | {"driver_bytes": driver, "total_bytes": total} | ends | fits


def driver_bytes(device: Device) -> float:
    """What the driver and its libraries take of the device's memory."""
    return 0.0 if device.target == "cpu" else CONTEXT_BYTES


@dataclass(slots=True)
class _Storage:
    """One allocation: its size, the op (index) that made it, the last that touched it."""

    size_bytes: float
    last: int
    made_at: int | None
    is_table: bool = False
    states_bytes: float = 0.0
    """Of a table, its optimizer's state, which no tensor of the graph is."""


def memory_use(graph: OpGraph, *, in_host_memory: bool = False) -> MemoryUse | None:
    """Peak memory of one step, or None where the graph does not say which tensors are the same.

    Of a GPU's memory, unless `in_host_memory`: then every tensor lies in the host's, as on a CPU.

    A storage is resident when it is read before any op wrote it, and otherwise lives from the op
    that made it to the last that touches it, or as long as the program is known to hold it. Raises
    `ModelError` for an unknown dtype.
    """
    storages: dict[int, _Storage] = {}
    for index, op in enumerate(graph.ops):
        table_elements = -1
        if is_lookup(op.name):  # the largest of its inputs is what it looks up in
            table_elements = max((tensor.elements for tensor in op.tensors), default=0)
        for made_at, arguments in ((None, op.inputs), (index, op.outputs)):
            for tensor in tensors_in(arguments):
                if tensor.storage_id <= 0 or not (in_host_memory or tensor.device != "cpu"):
                    continue
                size_bytes = tensor.elements * item_bytes(tensor.dtype)
                storage = storages.get(tensor.storage_id)
                if storage is None:
                    storage = _Storage(size_bytes, index, made_at)
                    storages[tensor.storage_id] = storage
                storage.size_bytes = max(storage.size_bytes, size_bytes)
                storage.last = index
                if made_at is None and tensor.elements == table_elements:
                    states_bytes = float(op.attributes.get(STATES_BYTES, 0.0))
                    storage.is_table = True
                    storage.states_bytes = max(storage.states_bytes, states_bytes)
    if not storages:
        return None
    change = [0.0] * (len(graph) + 1)
    for number, storage in storages.items():
        storage.last = max(storage.last, graph.held.get(number, 0))
    made = ((s.made_at, s.size_bytes) for s in storages.values() if s.made_at is not None)
    new = Counter((at, size) for at, size in made if graph.ops[at].name.startswith(TRITON))
    tables, resident = 0.0, 0.0
    for storage in storages.values():
        size_bytes, last = storage.size_bytes, storage.last
        if storage.made_at is not None:
            is_over = last != storage.made_at and new[last, size_bytes] > 0
            new[last, size_bytes] -= is_over  # Inductor writes over what it reads for the last time
            change[storage.made_at] += size_bytes
            change[last + (not is_over)] -= size_bytes
        elif storage.is_table:
            tables += size_bytes + storage.states_bytes
        else:
            resident += size_bytes
    live, peak, at = 0.0, 0.0, 0
    for index, delta in enumerate(change):
        live += delta
        if live > peak:
            peak, at = live, index
    return MemoryUse(tables, resident, peak, graph.ops[min(at, len(graph) - 1)].name)


def require_fit(use: MemoryUse, device: Device, rank: int = 0) -> None:
    """Raise `DoesNotFit` that says by how much `use` exceeds the device's memory, and why."""
    if use.total_bytes + driver_bytes(device) > device.hbm_bytes:
        raise lacking(use, device, rank)


def lacking(use: MemoryUse, device: Device, rank: int) -> DoesNotFit:
    """The error for a rank that needs more than the device has."""
    parts = {
        "embedding tables": use.tables_bytes,
        "parameters, optimizer state and batch": use.resident_bytes,
        f"activations and gradients at {use.peak_op}": use.temporary_bytes,
    }
    total = use.total_bytes + driver_bytes(device)
    return too_small(f"rank {rank} needs", total, "", device.hbm_bytes, device.name, parts)


def too_small(
    who: str, total_bytes: float, of: str, held_bytes: float, name: str, parts: dict[str, float]
) -> DoesNotFit:
    """The error for more than the `held_bytes` of `name`, with the largest of `parts`."""
    largest = max(parts, key=lambda part: parts[part])
    return DoesNotFit(
        f"{who} {in_gb(total_bytes)}{of}, {in_gb(total_bytes - held_bytes)} more than the "
        f"{in_gb(held_bytes)} of {name}; most of it: {largest}, {in_gb(parts[largest])}"
    )


def in_gb(size_bytes: float) -> str:
    return f"{size_bytes / BYTES_PER_GB:,.1f} GB"


DRAM = "dram"  # what a CPU that is a device has in the place of `hbm`
OF_SOCKET = "its socket's memory"


@dataclass(frozen=True)
class TierUse:
    """What the fullest rank (device memory) or node (others) needs of one tier.

    Bytes of tables with optimizer state, of caches and hot rows, and of all else: parameters,
    activations, the driver. `capacity_bytes` is what `of` has; None where the catalogue does not
    say.
    """

    tier: str
    tables_bytes: float
    caches_bytes: float
    other_bytes: float
    capacity_bytes: float | None
    of: str

    @property
    def total_bytes(self) -> float:
        return self.tables_bytes + self.caches_bytes + self.other_bytes

    @property
    def fits(self) -> bool | None:
        """None where nobody knows what there is."""
        return None if self.capacity_bytes is None else self.total_bytes <= self.capacity_bytes

    @property
    def filled_frac(self) -> float:
        """Of what there is; 0 where nobody knows."""
        room = self.capacity_bytes
        return 0.0 if room is None else self.total_bytes / max(room, 1.0)

    def to_dict(self) -> dict[str, Any]:
        about = asdict(self) | {"total_bytes": self.total_bytes, "fits": self.fits}
        del about["of"]
        return about


def tier_use(
    workload: Workload, placement: Placement, machine: Cluster, *, train: bool = True
) -> tuple[TierUse, ...]:
    """Per tier that `placement` uses: the rank, or node, that needs most of it.

    Tables in host memory or on drives that are `data_parallel` are there once per node, for all
    its ranks; those with hot rows on every device are spread over the nodes. A cache takes its
    capacity once per rank, in an adapter once per adapter. With `train`, the optimizer's state lies
    with the rows, but that of replicas on several devices with parameters. Of all else in device
    memory only what the driver takes is known here (`with_activations`). Raises `WorkloadError` for
    a placement of other tables, and for one that trains what ranks of a node share in several nodes
    at once: no gradient goes from host to host.
    """
    if len(placement.tables) != len(workload.tables):
        raise WorkloadError(
            f"placement: it is of {len(placement.tables)} tables, {workload.name} has "
            f"{len(workload.tables)}"
        )
    for number, placed in enumerate(placement.tables):
        is_copied = placed.sharding == "data_parallel" and not placed.hot_rows
        if train and machine.nodes > 1 and placed.tier != HBM and is_copied:
            raise WorkloadError(
                f"placement: tables[{number}]: trained in the {MEMORIES[placed.tier].label} of "
                f"{machine.nodes} nodes at once: shard it over their ranks"
            )
    optimizer = workload.training.table_optimizer if train else None
    pairs = list(zip(workload.tables, placement.tables, strict=True))
    named = {name for table in placement.tables for name in table.caches}
    within = placement.within(machine.gpus)
    tiers = dict.fromkeys((HBM, HOST, STORAGE, NIC, *MEMORIES))  # the fastest first
    held = {tier: _tables(pairs, machine, within, optimizer, tier) for tier in tiers}
    cached = dict.fromkeys(held, 0.0)
    for each in placement.caches:
        cached[each.at] += each.capacity_bytes * (each.name in named)
    hot_bytes = sum(
        min(placed.hot_rows, table.rows) * _row_bytes(table, placed, optimizer)
        for table, placed in pairs
    )
    node, uses = machine.node, []
    for tier, tables in held.items():
        memory, is_device = MEMORIES[tier], tier == HBM
        size = 1 if memory.is_of_rank else node.gpus
        uses.append(
            TierUse(
                DRAM if is_device and node.device.target == "cpu" else tier,
                max(tables[: machine.gpus // size]),
                cached[tier] * memory.caches(node) + (hot_bytes if is_device else 0.0),
                CONTEXT_BYTES if is_device else 0.0,
                memory.capacity_bytes(node),
                node.device.name if memory.is_of_rank else node.name,
            )
        )
    return tuple(each for each in uses if each.total_bytes)


def device_use(tables_bytes: float, other_bytes: float, device: Device) -> TierUse:
    """Of device memory alone, where tables of `tables_bytes` are all that a placement has."""
    tier = DRAM if device.target == "cpu" else HBM
    beside = CONTEXT_BYTES + other_bytes
    return TierUse(tier, tables_bytes, 0.0, beside, device.hbm_bytes, device.name)


def with_activations(uses: Sequence[TierUse], other_bytes: float) -> tuple[TierUse, ...]:
    """`uses`, device memory with what a step has there beside tables and caches."""
    return tuple(
        replace(use, other_bytes=CONTEXT_BYTES + other_bytes) if use.tier in (HBM, DRAM) else use
        for use in uses
    )


def require_tiers(uses: Sequence[TierUse]) -> None:
    """Raise `WorkloadError` for the first tier that has too little, by how much and why."""
    for use in uses:
        if use.fits is not False:
            continue
        assert use.capacity_bytes is not None
        parts = {
            "embedding tables": use.tables_bytes,
            "caches and hot rows": use.caches_bytes,
            "parameters, activations and gradients": use.other_bytes,
        }
        memory = None if use.tier == DRAM else MEMORIES[use.tier]
        who = "rank" if memory is None or memory.is_of_rank else "node"
        of = f" of {memory.label if memory else OF_SOCKET}"
        held = use.capacity_bytes
        raise too_small(f"a {who} needs", use.total_bytes, of, held, use.of, parts)


def shard_bytes(table: Table, placed: TablePlacement, optimizer: str | None) -> float:
    """Bytes of one of the shards of `table`, with the state of `optimizer`, None without."""
    whole = table.rows * _row_bytes(table, placed, optimizer)
    if placed.sharding in ("data_parallel", "table_wise"):
        return whole
    return whole / len(placed.ranks)


_stored_bytes = lru_cache(maxsize=1 << 10)(row_bytes)


def _row_bytes(table: Table, placed: TablePlacement, optimizer: str | None) -> float:
    alignment = GPU_ALIGNMENT_BYTES if placed.tier == HBM else CPU_ALIGNMENT_BYTES
    stored = float(_stored_bytes(placed.dtype, table.dim, alignment_bytes=alignment))
    return stored + (state_bytes(table, optimizer) if optimizer else 0.0)


def _tables(
    pairs: Sequence[tuple[Table, TablePlacement]],
    machine: Cluster,
    within: int,
    optimizer: str | None,
    tier: str,
) -> list[float]:
    """Bytes per rank of device memory, per node of others; a copy for each `within` ranks."""
    shared_by = 1 if MEMORIES[tier].is_of_rank else machine.node.gpus
    bytes_of = [0.0] * -(-machine.gpus // shared_by)
    for table, placed in pairs:
        if placed.tier != tier:
            continue
        is_copied = placed.sharding == "data_parallel"
        is_parameter = is_copied and tier == HBM and machine.gpus > 1
        size = shard_bytes(table, placed, None if is_parameter else optimizer)
        if placed.hot_rows and tier != HBM:
            size /= len(bytes_of)
        copies = range(0, machine.gpus, within)
        places = [(first + rank) // shared_by for first in copies for rank in placed.ranks]
        for at in set(places) if is_copied else places:
            bytes_of[at] += size
    return bytes_of
