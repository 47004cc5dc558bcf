"""Rows on the drives of a node: reads that queue, whole sectors, io_uring's calls.

All ranks of a node read at the same time and spread evenly over its drives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster
from perfmodel.hardware.parts import Storage
from perfmodel.kernels.model import Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import Floats
from perfmodel.ops.vocabulary.storage import STORAGE
from perfmodel.tiers.drives import moved_bytes, read_us, reads_per_s, write_us
from perfmodel.tiers.model import TIERS

CALL_US = 10.0
"""Assumed: a batch of reads handed over and collected."""
ROW_US = 0.5
"""Assumed: one core's work per read with io_uring (2 million reads per second and core,
as its author's benchmarks of 2020 to 2022 show, recalled)."""
HALF_FACTOR = 1.5
"""Assumed: the 90 % interval reaches so many times up and down."""
NAME = f"{STORAGE}/heuristic"


@dataclass(frozen=True)
class _Work:
    """Per row of a frame: microseconds of drives and of cores, and bytes that the drives move."""

    drive_us: Floats
    core_us: Floats
    least_us: Floats
    """What the bytes, or the reads, take at the drives' most."""
    moved_bytes: Floats
    reads: Floats

    @property
    def duration_us(self) -> Floats:
        return CALL_US + np.maximum(self.drive_us, self.core_us)


class StorageTier:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        taken = _work(rows, machine).duration_us
        drive, count = drives_of(machine)
        source = f"figures of {count} {drive.name}"
        return Estimate(taken, taken / HALF_FACTOR, taken * HALF_FACTOR, NAME, source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        work = _work(rows, machine)
        taken = work.duration_us
        drives = work.drive_us >= work.core_us
        full = work.least_us >= 0.9 * work.drive_us
        return [
            Explanation(
                duration_us=float(taken[at]),
                bound_by=("throughput" if full[at] else "latency") if drives[at] else "host",
                flop=0.0,
                read_bytes=float(work.moved_bytes[at] * work.reads[at]),
                written_bytes=float(work.moved_bytes[at] * (1 - work.reads[at])),
                utilisation_frac=float(work.least_us[at] / taken[at]),
                terms={
                    "drive_us": float(work.drive_us[at]),
                    "core_us": float(work.core_us[at]),
                    "call_us": CALL_US,
                },
                formula="call_us + max(drive_us, core_us); drive_us by the drive's queue, "
                "t0 + (Q - 1) / 2X of a read with Q in flight",
            )
            for at in range(len(rows))
        ]


def drives_of(machine: Cluster) -> tuple[Storage, int]:
    """The drives of one node; `ModelError` where it has none."""
    node = machine.node
    if node.storage is None:
        raise ModelError(
            f"{machine.name}: rows lie on drives, but the node has no storage: name one in its file"
        )
    return node.storage, node.drives or 1


def _work(rows: Rows, machine: Cluster) -> _Work:
    drive, count = drives_of(machine)
    node = machine.node
    cores = max(node.sockets * node.host.cores / node.gpus, 1.0)
    names = ("drive_us", "core_us", "least_us", "moved_bytes", "reads")
    found = {name: np.zeros(len(rows)) for name in names}
    for op, index in rows.groups():
        dims = rows.dims_of(op, index)
        each = dims["rows"] * node.gpus / count
        size = dims["row_bytes"]
        if op == "storage_read":
            asked = np.where(dims["in_flight"] > 0, dims["in_flight"], dims["rows"])
            found["drive_us"][index] = read_us(drive, each, size, asked * node.gpus / count)
            found["least_us"][index] = each / reads_per_s(drive, size) * 1e6
            found["moved_bytes"][index] = dims["rows"] * moved_bytes(drive, size)
            found["reads"][index] = 1.0
        else:
            taken = write_us(drive, each, size, dims["page_rows"])
            found["drive_us"][index] = found["least_us"][index] = taken
            together = np.maximum(dims["page_rows"], 1.0)
            moved = moved_bytes(drive, size * together) / together
            found["moved_bytes"][index] = dims["rows"] * moved
        found["core_us"][index] = dims["rows"] * ROW_US / cores
    return _Work(**found)


TIERS.register(STORAGE)(StorageTier())
