"""Memory that one rank's ops need, from the storages that they read and write."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Any

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Device
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.graph import OpGraph, tensors_in

CONTEXT_BYTES = 0.5e9
"""assumed: what the driver, its libraries and the allocator's slack take of a GPU's memory."""
_TABLE_OPS = ("embedding", "Embedding", "lookup", "Lookup")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory that one rank needs at its peak."""

    tables_bytes: float
    """Embedding tables: resident tensors that a lookup reads."""
    resident_bytes: float
    """Other tensors that no op of the step made: parameters, optimizer state, the batch."""
    temporary_bytes: float
    """Activations, gradients and workspaces, at the moment when most of them live."""
    peak_op: str
    """The op at which that is."""

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.tables_bytes + self.resident_bytes + self.temporary_bytes

    def to_dict(self, device: Device | None = None) -> dict[str, Any]:
        """The figures, and on a device whether they fit."""
        content = asdict(self) | {"total_bytes": self.total_bytes}
        if device is not None:
            content["fits"] = self.total_bytes + CONTEXT_BYTES <= device.hbm_bytes
        return content


@dataclass(slots=True)
class _Storage:
    """One allocation: its size, the op (index) that made it, the last that touched it."""

    size_bytes: float
    last: int
    made_at: int | None
    is_table: bool = False


def memory_use(graph: OpGraph, *, in_host_memory: bool = False) -> MemoryUse | None:
    """Peak memory of one step, or None where the graph does not say which tensors are the same.

    Of a GPU's memory, unless `in_host_memory`: then every tensor lies in the host's, as on a CPU.

    A storage is resident when it is read before any op wrote it, and otherwise lives from the op
    that made it to the last that touches it. Raises `ModelError` for an unknown dtype.
    """
    storages: dict[int, _Storage] = {}
    for index, op in enumerate(graph.ops):
        table_elements = -1
        if _is_lookup(op.name):  # the largest of its inputs is what it looks up in
            table_elements = max((tensor.elements for tensor in op.tensors), default=0)
        for made_at, arguments in ((None, op.inputs), (index, op.outputs)):
            for tensor in tensors_in(arguments):
                if tensor.storage_id <= 0 or not (in_host_memory or tensor.device != "cpu"):
                    continue
                size_bytes = tensor.elements * _item_bytes(tensor.dtype)
                storage = storages.get(tensor.storage_id)
                if storage is None:
                    storage = _Storage(size_bytes, index, made_at)
                    storages[tensor.storage_id] = storage
                storage.size_bytes = max(storage.size_bytes, size_bytes)
                storage.last = index
                storage.is_table |= made_at is None and tensor.elements == table_elements
    if not storages:
        return None
    change = [0.0] * (len(graph) + 1)
    tables, resident = 0.0, 0.0
    for storage in storages.values():
        if storage.made_at is not None:
            change[storage.made_at] += storage.size_bytes
            change[storage.last + 1] -= storage.size_bytes
        elif storage.is_table:
            tables += storage.size_bytes
        else:
            resident += storage.size_bytes
    live, peak, at = 0.0, 0.0, 0
    for index, delta in enumerate(change):
        live += delta
        if live > peak:
            peak, at = live, index
    return MemoryUse(tables, resident, peak, graph.ops[min(at, len(graph) - 1)].name)


def require_fit(use: MemoryUse, device: Device, rank: int = 0) -> None:
    """Raise `WorkloadError` that says by how much `use` exceeds the device's memory, and why."""
    total = use.total_bytes + CONTEXT_BYTES
    parts = {
        "embedding tables": use.tables_bytes,
        "parameters, optimizer state and batch": use.resident_bytes,
        f"activations and gradients at {use.peak_op}": use.temporary_bytes,
    }
    if total > device.hbm_bytes:
        raise too_small(f"rank {rank} needs", total, "", device.hbm_bytes, device.name, parts)


def too_small(
    who: str, total_bytes: float, of: str, held_bytes: float, name: str, parts: dict[str, float]
) -> WorkloadError:
    """The error for more than the `held_bytes` of `name`, with the largest of `parts`."""
    largest = max(parts, key=lambda part: parts[part])
    return WorkloadError(
        f"{who} {_gb(total_bytes)}{of}, {_gb(total_bytes - held_bytes)} more than the "
        f"{_gb(held_bytes)} of {name}; most of it: {largest}, {_gb(parts[largest])}"
    )


@lru_cache(maxsize=1 << 12)
def _is_lookup(name: str) -> bool:
    return any(word in name for word in _TABLE_OPS)


@cache
def _item_bytes(dtype: str) -> float:
    return float(item_bytes([dtype])[0])


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / BYTES_PER_GB:,.1f} GB"
