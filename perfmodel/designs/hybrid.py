"""CPU-GPU training without a cache: tables on the host, dense layers on GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.errors import WorkloadError
from perfmodel.ops.stored_rows import row_bytes
from perfmodel.placement import TablePlacement

OnHost = Literal["one_process", "operators", "host"]


@DESIGNS.register("hybrid")
@dataclass(frozen=True)
class Hybrid:
    """Tables in host memory, looked up and updated by the CPU; dense layers data-parallel on GPUs.

    Tables of at most `device_table_bytes` (fp32 rows) stay where they are. `pooled_on` the host's
    operators of PyTorch, table by table, by `one_process` for all GPUs of a node or in a process
    per GPU (`operators`), or in one call for all tables by the `host`. On one node its GPUs share
    the host's tables; on several each rank's host has those of its shards, in a process of its own.

    Source: the baseline of FAE (Adnan et al. 2022), as its repository has it; Hotline's (2024), of
    the same authors, is taken to be the same.
    """

    device_table_bytes: float = 0.0
    pooled_on: OnHost = "one_process"

    def __post_init__(self) -> None:
        if not self.device_table_bytes >= 0:
            raise WorkloadError(f"hybrid: tables of {self.device_table_bytes:g} bytes on devices")
        ways = ", ".join(get_args(OnHost))
        if self.pooled_on not in get_args(OnHost):
            raise WorkloadError(f"hybrid: pooled_on {self.pooled_on!r}: expected one of {ways}")

    def apply(self, deployment: Deployment) -> Deployment:
        ranks = tuple(range(deployment.ranks))
        tables = deployment.workload.tables

        def edit(number: int, placed: TablePlacement) -> dict[str, Any]:
            size = tables[number].rows * row_bytes("fp32", tables[number].dim)
            if size <= self.device_table_bytes:
                return {}
            found = {"tier": "host", "pooled_on": self.pooled_on, "caches": (), "hot_rows": 0}
            shared = {"sharding": "data_parallel", "ranks": ranks}
            return {**found, **(shared if deployment.machine.nodes == 1 else {})}

        return deployment.with_(placement=deployment.placement.edited(edit))
