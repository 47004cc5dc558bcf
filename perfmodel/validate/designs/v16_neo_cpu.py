"""Neo beside the parameter servers of CPUs that it replaced."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.prediction import predict_workload
from perfmodel.units import BYTES_PER_GB, US_PER_S
from perfmodel.validate.designs import neo_box as box
from perfmodel.validate.designs.figures import CASES, Figure
from perfmodel.validate.designs.lab import Lab
from perfmodel.validate.designs.v12_neo import neo_step
from perfmodel.workload import load_workload

FP32_BYTES = 4.0
SERVED_ROWS = 1000
"""Tables as small as that stay in a trainer's caches: their rows are looked up by servers."""
PLAIN = {
    "implementation__name": "pytorch",
    "implementation__precision": "fp32",
    "implementation__table_precision": "fp32",
    "implementation__exchange_precision": "fp32",
    "implementation__sharding": "table_wise",
    "implementation__prefetch": False,
    "training__table_optimizer": "sgd",
    "table__rows": SERVED_ROWS,
}


@CASES.register("V16")
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
    """Samples per second of all trainers: each socket's layers, or its share of the wire."""
    about = box.CPU_SERVERS
    socket = lab.machine(about.device, gpus=1)
    local = about.trainer_batch // about.sockets
    tables = load_workload(name).tables
    dim = round(sum(table.dim for table in tables) / len(tables))
    workload = load_workload(name).with_(**PLAIN, table__dim=dim)
    computed_us = predict_workload(workload, hardware=[socket], batch=local).results[0].step_us
    pooled = sum(table.dim for table in workload.tables) * FP32_BYTES
    indices = sum(table.pooling for table in workload.tables) * 8.0
    each = 2 * pooled + indices
    sent_us = about.trainer_batch * each / (about.nic_gb_per_s * BYTES_PER_GB) * US_PER_S
    step_us = max(computed_us, sent_us)
    return about.trainers * about.trainer_batch / step_us * US_PER_S
