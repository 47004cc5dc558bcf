"""Tables on drives behind a cache of rows in device memory, and perhaps one in host memory.

What it stands for: FBGEMM's table-batched embeddings on SSD, and Neo's hierarchy of HBM, DDR and
SSD (Mudigere et al. 2022): keys that miss go to the host, which reads their rows from its own cache
or from drives and sends them; in training as many rows go the other way.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.jagged import Jagged
from perfmodel.workload.tiered.beside import HOST_MEMORY, beside
from perfmodel.workload.tiered.cache_use import Use, ahead, use_of
from perfmodel.workload.tiered.kept_by_kernels import FETCH_STREAM, KeptByKernels, device_use
from perfmodel.workload.tiered.source import TIERED, Group
from perfmodel.workload.tiered.storage_pooled import STORAGE

HOST = "cpu"


@dataclass(frozen=True)
class KeptOverDrives(KeptByKernels):
    """See `source.Source`."""

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows that miss, from host memory or drives."""
        use = device_use(group)
        missed = round(use.missed_rows)
        with r.with_attributes(ahead(group, FETCH_STREAM)):
            self.find(r, use, keys, 0.0)
        if not missed:
            return
        with r.with_attributes(ahead(group)):
            self._bring(r, group, use, missed)
            if group.run.train:
                self._take(r, group, use, missed)

    def _bring(self, r: Recorder, group: Group, use: Use, missed: int) -> None:
        wanted = to_device(r, r.tensor((missed,), "int64"), HOST, non_blocking=True)
        rows = r.tensor(self._shape(use, missed), group.placed.dtype, place=HOST)
        read = _read_rows(group, missed)
        if missed > read:
            dims = {"lookups": float(missed - read), "row_bytes": use.row_bytes}
            beside(r, "host_gather", (wanted,), rows, stream=HOST_MEMORY, dims=dims)
        if read:
            dims = {"rows": float(read), "row_bytes": use.row_bytes}
            given = (self.host_rows, wanted)
            beside(r, "storage_read", given, rows, stream=STORAGE, dims=dims)
        came = to_device(r, rows, r.place, non_blocking=True)
        places = r.tensor((missed,), "int64")
        r.leaf("aten::index_copy_", (self._places(r, use), 0, places, came), self.tables.weights)

    def _take(self, r: Recorder, group: Group, use: Use, missed: int) -> None:
        """Rows that leave the device, and those that leave the host for the drives."""
        leaving = r.tensor((missed,), "int64")
        rows = r.tensor(self._shape(use, missed), group.placed.dtype)
        r.leaf("aten::index_select", (self._places(r, use), 0, leaving), rows)
        there = to_device(r, rows, HOST, non_blocking=True)
        written = _read_rows(group, missed)
        if missed > written:
            dims = {"lookups": float(missed - written), "row_bytes": use.row_bytes}
            beside(r, "host_scatter", (there,), self.host_rows, stream=HOST_MEMORY, dims=dims)
        if written:
            dims = {"rows": float(written), "row_bytes": use.row_bytes}
            beside(r, "storage_write", (there,), self.host_rows, stream=STORAGE, dims=dims)

    def _places(self, r: Recorder, use: Use) -> Tensor:
        weights = self.tables.weights
        width = self._shape(use, 1)[1]
        return r.view(weights, (max(weights.shape[0] // width, 1), width), (width, 1))

    def _shape(self, use: Use, rows: int) -> tuple[int, int]:
        item_bytes = 2 if self.tables.weights.dtype in ("fp16", "bf16") else 4
        return rows, max(round(use.row_bytes / item_bytes), 1)


def _read_rows(group: Group, missed: int) -> int:
    """Of the rows that miss in device memory, those that host memory has not either."""
    if len(group.placed.caches) == 1:
        return missed
    return min(round(use_of(group, group.placed.caches[1]).missed_rows), missed)


TIERED.register("storage/hbm")(KeptOverDrives.of)
TIERED.register("storage/hbm/host")(KeptOverDrives.of)
