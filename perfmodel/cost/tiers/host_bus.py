"""Lookups by a GPU's kernels in host memory: rows over the bus, request by request.

Every lookup is a read over the bus: rows of host memory are not kept in the device's caches. The
device waits for so many requests at a time; short rows make short requests, which then bound the
rate below the bus's. The bus carries both ways at once: what is written shares its way with the
requests of what is read. All that the kernel moves except the rows is in device memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.tiers import TIERS, SideBySide, Work
from perfmodel.cost.tiers.host_memory import random_frac, rank_gb_per_s
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Dims
from perfmodel.ops.vocabulary.embedding import stored_row_bytes
from perfmodel.ops.vocabulary.tiers import HOST_BUS

_C = coefficients("tiers.host_bus")
NAME = f"{HOST_BUS}/heuristic"


def read_gb_per_s(row_bytes: Floats, machine: Cluster) -> Floats:
    """What a device reads of rows of so many bytes at random places of its host's memory."""
    bus = _C.read_frac * machine.node.device.host_gb_per_s
    sectors = _sectors_bytes(row_bytes)
    tags = _C.tags if machine.node.device.host_gb_per_s <= _C.short_tags_gb_per_s else _C.long_tags
    waiting = tags * _request_bytes(row_bytes) / _C.request_us * 1e-3
    over_bus = np.minimum(bus, waiting) * row_bytes / sectors
    return np.asarray(np.minimum(over_bus, _dram(row_bytes, machine)))


def _sectors_bytes(row_bytes: Floats) -> Floats:
    return np.ceil(row_bytes / _C.sector_bytes) * _C.sector_bytes


def _request_bytes(row_bytes: Floats) -> Floats:
    """What one request of a row asks for."""
    return np.minimum(_sectors_bytes(row_bytes), _C.request_bytes)


def write_gb_per_s(row_bytes: Floats, machine: Cluster) -> Floats:
    """The same, written."""
    bus = _C.write_frac * machine.node.device.host_gb_per_s
    return np.minimum(bus, _dram(row_bytes, machine))


def _dram(row_bytes: Floats, machine: Cluster) -> Floats:
    return random_frac(row_bytes) * rank_gb_per_s(machine)


class HostBus(SideBySide):
    """See the module."""

    name = NAME
    formula = "floor_us + max(bus_us, memory_us)"

    def source(self, rows: Rows, machine: Cluster) -> str:
        return f"figures of {machine.node.device.name}: bus; assumed: requests in flight"

    def work(self, rows: Rows, machine: Cluster) -> Work:
        device = machine.node.device
        names = ("bus", "memory", "bus_bytes", "flop", "read_bytes", "written_bytes")
        columns = {name: np.zeros(len(rows)) for name in names}
        for op, index in rows.groups():
            dims, item = rows.dims_of(op, index), rows.item_bytes[index]
            direction = np.array([rows.direction[at] for at in index.tolist()])
            for each in set(direction.tolist()):
                chosen = np.flatnonzero(direction == each)
                own: Dims = {name: values[chosen] for name, values in dims.items()}
                at, spec = index[chosen], OPS[op].of(each)
                read, written = (
                    spec.read_bytes(own, item[chosen]),
                    spec.written_bytes(own, item[chosen]),
                )
                row = stored_row_bytes(own, item[chosen])
                over_read, over_written = _ROWS[each](own, row, written)
                asked = over_read / _request_bytes(row) * _C.request_header_bytes
                columns["bus"][at] = (
                    np.maximum.reduce(
                        [
                            over_read / read_gb_per_s(row, machine),
                            np.where(over_written > 0.0, over_written + asked, 0.0)
                            / write_gb_per_s(row, machine),
                            (over_read + over_written) / _dram(row, machine),
                        ]
                    )
                    / 1e3
                )
                beside = np.maximum(read + written - over_read - over_written, 0.0)
                columns["memory"][at] = beside / (_C.hbm_frac * device.hbm_gb_per_s) / 1e3
                columns["bus_bytes"][at] = over_read + over_written
                columns["flop"][at] = spec.flop(own)
                columns["read_bytes"][at], columns["written_bytes"][at] = read, written
        return Work(
            {"bus": columns["bus"], "memory": columns["memory"]},
            np.full(len(rows), device.kernel_floor_us),
            _C.half_factor,
            columns["read_bytes"],
            columns["written_bytes"],
            columns["flop"],
            start="floor_us",
            at_peak_us=columns["bus_bytes"] / (device.host_gb_per_s * 1e3),
        )


def _looked_up(dims: Dims, row: Floats, written: Floats) -> tuple[Floats, Floats]:
    return dims["lookups"] * row, 0.0 * written


def _updated(dims: Dims, row: Floats, written: Floats) -> tuple[Floats, Floats]:
    return written, written


_ROWS: dict[str, Callable[[Dims, Floats, Floats], tuple[Floats, Floats]]] = {
    "fwd": _looked_up,
    "bwd_indice_weights": _looked_up,
    "bwd": _updated,
}
"""By direction: bytes of rows that are read and written over the bus."""

TIERS.register(HOST_BUS)(HostBus())
