"""The deployment that a workload's own settings mean on a machine."""

from __future__ import annotations

from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.memory.greedy import fits, greedy_placement
from perfmodel.placement import Pipeline
from perfmodel.workload import Workload
from perfmodel.workload.build import check_ranks
from perfmodel.workload.placed import placement_of
from perfmodel.workload.shards import plan

PARTED = "balanced"


def deployment_of(
    workload: Workload, machine: Cluster, batch: int | None = None, *, train: bool = True
) -> Deployment:
    """`workload` on `machine`, its tables in device memory as `implementation.sharding` lays them
    out, its input ahead where `implementation.prefetch` says so; `batch` is global.

    Where whole tables are too few for the devices, sharding is `balanced`, and where the layout
    does not fit but one by size does, it is that; `notes` say so. Raises `WorkloadError` for a
    batch that the devices cannot share.
    """
    total = workload.batch if batch is None else batch
    ranks = machine.gpus
    check_ranks(workload, total, ranks, 0)
    notes: tuple[str, ...] = ()
    try:
        layout = plan(workload, ranks, machine.linked_gpus)
    except WorkloadError:
        parted = workload.with_(implementation__sharding=PARTED)
        layout = plan(parted, ranks, machine.linked_gpus)
        notes = (
            f"{len(workload.tables)} tables cannot be shared out whole among {ranks} devices: "
            f"implementation.sharding {PARTED!r} in the place of "
            f"{workload.implementation.sharding!r}",
        )
    placement = placement_of(layout, workload)
    if not fits(workload, placement, machine, train=train):
        by_size = greedy_placement(workload, machine, train=train)
        if by_size is not None:
            placement = by_size
            in_rows = sum(table.sharding == "row_wise" for table in by_size.tables)
            notes = (
                f"tables laid out by size, {in_rows} of {len(by_size.tables)} in row-wise parts: "
                f"implementation.sharding {workload.implementation.sharding!r} does not fit",
            )
    pipeline = Pipeline(input_ahead=workload.implementation.prefetch)
    return Deployment(workload, machine, total, placement, pipeline, train, notes)
