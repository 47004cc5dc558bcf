"""Tables in host memory that the device's kernels read and update over the bus, row by row.

What it stands for: FBGEMM's table-batched embeddings with weights in unified memory that stays on
the host (`EmbeddingLocation.MANAGED`), the optimizer's state with them.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.tiered.hbm import InDevice, table_batched
from perfmodel.workload.tiered.source import TIERED, Group

HOST = "cpu"


@TIERED.register("host")
def over_the_bus(r: Recorder, group: Group) -> InDevice:
    """The operator of device memory, its weights on the host."""
    found = table_batched(r, group)
    weights = r.tensor(found.weights.shape, found.weights.dtype, place=HOST)
    return InDevice(replace(found, weights=weights))
