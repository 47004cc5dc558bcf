"""CachedEmbedding's cache of frequent rows: its memory, and what it costs beside TorchRec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import floor

from perfmodel.designs.deployment import deployment_of
from perfmodel.designs.device_caches import frequency_aware, frequency_aware_bytes
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.hardware import Cluster, host
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.units import US_PER_S
from perfmodel.workload import load_workload

from .cache_box import (
    CACHE_ASSUMED,
    CACHE_FRAC,
    DEVICE,
    FITTED,
    HOST,
    MEMORY_GB,
    PUBLISHED,
    REPOSITORY,
    STREAMED,
    Published,
)


def machine_of(lab: Lab) -> Cluster:
    """One A100 and its host."""
    found = lab.machine(DEVICE, gpus=1)
    node = replace(found.node, host=host(HOST), sockets=1)
    return replace(found, node=node)


def plain_us(published: Published, machine: Cluster) -> float:
    """TorchRec's step, all tables in device memory."""
    deployment = deployment_of(load_workload(published.workload), machine)
    return predict_deployment(deployment).results[0].step_us


def cached_us(published: Published, machine: Cluster) -> float:
    """The step behind the cache."""
    deployment = deployment_of(load_workload(published.workload), machine)
    cached = frequency_aware(CACHE_FRAC).apply(deployment)
    return predict_deployment(cached).results[0].step_us


def value_us(lab: Lab) -> float:
    """Microseconds to prepare one value of a batch on the host: what TorchRec's published step on
    one data set has beyond the predicted one, on the unchanged machine."""
    published = PUBLISHED[FITTED]
    beyond = US_PER_S / published.plain_per_s - plain_us(published, machine_of(lab))
    return max(beyond, 0.0) / (load_workload(published.workload).batch * published.values)


@case("V5")
def cached_embedding(lab: Lab) -> Iterator[Figure]:
    """Memory of the largest data set; slowdown over TorchRec on all three."""
    tables = load_workload(PUBLISHED["terabyte"].workload).tables
    rows = sum(table.rows for table in tables)
    taken = frequency_aware_bytes(rows, tables[0].dim, floor(CACHE_FRAC * rows))
    yield Figure(
        "V5-memory",
        "device memory for 91 GB of tables",
        "GB",
        MEMORY_GB,
        taken / 1e9,
        3.0,
        f"exact formula; {REPOSITORY}",
        ("its maps and cached rows alone; the 3.75 may be GiB of all that is allocated",),
    )
    machine, each_us = machine_of(lab), value_us(Lab())
    for name, published in PUBLISHED.items():
        prepared_us = each_us * load_workload(published.workload).batch * published.values
        cached = prepared_us + cached_us(published, machine)
        if name == STREAMED:
            plain = US_PER_S / published.plain_per_s
            cached = max(cached, plain)
        else:
            plain = prepared_us + plain_us(published, machine)
        yield Figure(
            f"V5-slowdown-{name}",
            f"step with 1 % of the rows cached over TorchRec's, {published.workload}",
            "ratio",
            round(published.slowdown, 2),
            cached / plain,
            20.0,
            REPOSITORY,
            CACHE_ASSUMED,
        )
