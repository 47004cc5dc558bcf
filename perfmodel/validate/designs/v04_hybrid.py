"""NVIDIA's extra-large DLRM: on eight GPUs, on one with tables in host memory, on CPUs alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.designs import deployment_of
from perfmodel.designs.cpu_only import with_cores
from perfmodel.designs.hybrid import Hybrid
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.units import US_PER_S
from perfmodel.validate.designs.figures import CASES, Figure
from perfmodel.validate.designs.hybrid_box import (
    ASSUMED,
    BATCH,
    CPU_DEVICE,
    CPU_SOCKETS,
    FACTOR,
    GPU_MACHINE,
    GPU_OVER_HYBRID,
    HOST_LOOKUPS,
    HOST_TABLE_BYTES,
    SAMPLES_PER_S,
    SOURCE,
    WORKLOAD,
)
from perfmodel.validate.designs.lab import Lab
from perfmodel.workload import load_workload

RATE = "samples/s"
TITLES = {
    "gpu-only": "eight A100 80 GB, mixed precision",
    "hybrid": "one A100 80 GB, large tables in host memory",
    "cpu-only": "two EPYC 7742",
}


def rates(lab: Lab) -> dict[str, float]:
    """Samples per second of each."""
    workload = load_workload(WORKLOAD)
    one = lab.machine(GPU_MACHINE, gpus=1)
    start = deployment_of(workload.with_(implementation__sharding="table_wise"), one, BATCH)
    hybrid = Hybrid(device_table_bytes=HOST_TABLE_BYTES, pooled_on=HOST_LOOKUPS).apply(start)
    on_cpu = workload.with_(
        implementation__precision="fp32", implementation__exchange_precision="fp32"
    )
    socket = lab.machine(CPU_DEVICE, gpus=1)
    cores = CPU_SOCKETS * socket.node.device.sm_count
    sockets = replace(
        socket, node=replace(socket.node, device=with_cores(socket.node.device, cores))
    )
    taken_us = {
        "gpu-only": lab.step(workload, lab.machine(GPU_MACHINE), batch=BATCH).step_us,
        "hybrid": predict_deployment(hybrid).results[0].step_us,
        "cpu-only": lab.step(on_cpu, sockets, batch=BATCH).step_us,
    }
    return {name: BATCH / us * US_PER_S for name, us in taken_us.items()}


@CASES.register("V4")
def hybrid(lab: Lab) -> Iterator[Figure]:
    """Rates within a factor, and how many times the hybrid's eight GPUs reach."""
    found = rates(lab)
    for name, target in SAMPLES_PER_S.items():
        yield _figure(name, TITLES[name], RATE, target, found[name])
    ratio = found["gpu-only"] / found["hybrid"]
    yield _figure("ratio", "eight GPUs over the hybrid", "ratio", GPU_OVER_HYBRID, ratio)


def _figure(name: str, title: str, unit: str, target: float, predicted: float) -> Figure:
    band = (target / FACTOR, target * FACTOR)
    about = f"NVIDIA's extra-large DLRM, {title}; published {target:g}, within {FACTOR:g} times"
    return Figure(f"V4-{name}", about, unit, band, predicted, 0.0, SOURCE, ASSUMED)
