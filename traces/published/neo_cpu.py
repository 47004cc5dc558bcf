"""Neo beside the parameter servers of CPUs that it replaced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.designs.baselines import with_cores
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.prediction import predict_workload
from perfmodel.units import BYTES_PER_GB, US_PER_S
from perfmodel.workload import load_workload

from . import neo_box as box
from .neo import neo_step

FP32_BYTES, INDEX_BYTES = 4.0, 8.0
SERVED_ROWS = 1000
"""Tables as small as that stay in a trainer's caches: servers look their rows up and pool them."""
PLAIN = {
    "implementation__name": "pytorch",
    "implementation__precision": "fp32",
    "implementation__table_precision": "fp32",
    "implementation__exchange_precision": "fp32",
    "implementation__sharding": "table_wise",
    "implementation__prefetch": False,
    "implementation__optimizer_style": "fused",
    "training__table_optimizer": "sgd",
    "table__rows": SERVED_ROWS,
    "table__pooling": 1,
}


@case("V16")
def up_to(lab: Lab) -> Iterator[Figure]:
    """The largest gain over models A, F and I."""
    gains = {
        name: box.BATCH
        / neo_step(lab, name, box.BATCH).step_us
        * US_PER_S
        / servers_rate(lab, name)
        for name in box.MILLION_SAMPLES_PER_S
    }
    best = max(gains, key=lambda name: gains[name])
    others = ", ".join(f"{name} {gain:.1f}x" for name, gain in gains.items() if name != best)
    yield Figure(
        "V16-neo-cpu",
        f"Neo over parameter servers on CPUs, up to (here {best}; {others})",
        "ratio",
        box.CPU_BAND,
        gains[best],
        0.0,
        box.CPU_SOURCE,
        box.CPU_ASSUMED,
    )


def servers_rate(lab: Lab, name: str) -> float:
    """Samples per second of all trainers: what their threads compute, or their share of the wire.

    Threads do not wait for each other.
    """
    about = box.CPU_SERVERS
    socket = lab.machine(about.device, gpus=1)
    thread = replace(socket, node=replace(socket.node, device=with_cores(socket.node.device, 1)))
    tables = load_workload(name).tables
    dim = round(sum(table.dim for table in tables) / len(tables))
    workload = load_workload(name).with_(**PLAIN, table__dim=dim)
    predicted = predict_workload(workload, hardware=[thread], batch=about.thread_batch)
    threads = about.sockets * socket.node.device.sm_count
    computed_per_s = threads * about.thread_batch / predicted.results[0].step_us * US_PER_S
    pooled = sum(table.dim for table in tables) * FP32_BYTES
    indices = sum(table.pooling for table in tables) * INDEX_BYTES
    sent_per_s = about.nic_gb_per_s * BYTES_PER_GB / (2 * pooled + indices)
    return about.trainers * min(computed_per_s, sent_per_s)
