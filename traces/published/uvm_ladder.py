"""TorchRec's fused embedding collection: tables in device memory, cached, in host memory alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.cost.tiers.host_bus import write_gb_per_s
from perfmodel.designs import Deployment
from perfmodel.designs.deployment import deployment_of
from perfmodel.designs.device_caches import SoftwareCache
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.units import BYTES_PER_GB, US_PER_S
from perfmodel.workload import Workload, load_workload

from .cache_box import (
    FILLED,
    LADDER_ASSUMED,
    LADDER_BATCH,
    LADDER_BATCHES,
    LADDER_CACHE_FRAC,
    LADDER_EPOCHS,
    LADDER_FACTOR,
    LADDER_LARGE_ROWS,
    LADDER_MACHINE,
    LADDER_POOLING,
    LADDER_REDUCED,
    LADDER_S,
    steady_s,
)
from .lookups_alone import lookups_us

SOURCE = "pytorch/torchrec, benchmarks/README.md and ebc_benchmarks.py: read in the repository"
FP32_BYTES = 4.0
DERIVED = (
    f"derived from mean and spread over {LADDER_EPOCHS} epochs, of which one differs; {SOURCE}"
)


@case("V6")
def ladder(lab: Lab) -> Iterator[Figure]:
    """Each rung: the mean of all epochs, and any but the first; and that they come in order."""
    steady = {
        "hbm": LADDER_BATCHES * lookups_us(_tables(lab, "hbm")) / US_PER_S,
        "caching": _caching_s(lab),
        "uvm": LADDER_BATCHES * lookups_us(_on_host(_tables(lab, "uvm"))) / US_PER_S,
    }
    first = {name: _filled_s(_tables(lab, name), times) for name, times in FILLED.items()}
    found = {name: s + first.get(name, 0.0) / LADDER_EPOCHS for name, s in steady.items()}
    for name, target in LADDER_S.items():
        yield _rung(name, "mean of all epochs", target, found[name], SOURCE)
    for name, more in first.items():
        what = f"an epoch but the first, which takes {more:.3g} s more"
        yield _rung(f"{name}-steady", what, steady_s(name), steady[name], DERIVED)
    steps = sorted(found.values())
    yield Figure(
        "V6-order",
        "least ratio of a rung to the one before it",
        "ratio",
        (1.0, max(LADDER_S["uvm"] / LADDER_S["caching"], LADDER_S["caching"] / LADDER_S["hbm"])),
        min(found["caching"] / found["hbm"], found["uvm"] / found["caching"]),
        0.0,
        SOURCE,
        (*LADDER_ASSUMED, f"fastest to slowest: {steps[-1] / steps[0]:.3g} times"),
    )


def _rung(name: str, what: str, target: float, predicted: float, source: str) -> Figure:
    return Figure(
        f"V6-{name}",
        f"ten batches of 64 samples, 26 tables, {what}; {target:.3g} s, order of magnitude",
        "s",
        (target / LADDER_FACTOR, target * LADDER_FACTOR),
        predicted,
        0.0,
        source,
        LADDER_ASSUMED,
    )


def _filled_s(found: Deployment, times: int) -> float:
    """What the device takes to write all rows, which lie in host memory, so many times."""
    rows = sum(table.rows for table in found.workload.tables)
    row_bytes = FP32_BYTES * found.workload.tables[0].dim
    rate = float(write_gb_per_s(np.array([row_bytes]), found.machine)[0])
    return times * rows * row_bytes / (rate * BYTES_PER_GB)


def _workload(reduced: int) -> Workload:
    """The tables, the largest with fewer rows."""
    whole = load_workload("cached-terabyte")
    tables = tuple(
        replace(
            table,
            rows=table.rows if table.rows < LADDER_LARGE_ROWS else table.rows // reduced,
            pooling=float(LADDER_POOLING),
            alpha=0.0,
        )
        for table in whole.tables
    )
    return replace(whole, tables=tables)


def _tables(lab: Lab, name: str) -> Deployment:
    workload = _workload(LADDER_REDUCED[name])
    return deployment_of(workload, lab.machine(LADDER_MACHINE, gpus=1), LADDER_BATCH)


def _on_host(deployment: Deployment) -> Deployment:
    return deployment.with_(placement=deployment.placement.edited(lambda *_: {"tier": "host"}))


def _caching_s(lab: Lab) -> float:
    """An epoch: the first step of all brings every row over the bus, the others none."""
    found = _tables(lab, "caching")
    seen = tuple(
        replace(table, rows=max(round(table.unique_rows(LADDER_BATCH)), 1))
        for table in found.workload.tables
    )
    rows = sum(table.rows for table in found.workload.tables)
    needed = sum(table.rows for table in seen)
    assert needed < LADDER_CACHE_FRAC * rows, "the cache holds the batch"
    again = found.with_(workload=replace(found.workload, tables=seen))
    held_us = lookups_us(SoftwareCache(cache_frac=1.0).apply(again))
    return (LADDER_BATCHES * held_us + _first_us(found) / LADDER_EPOCHS) / US_PER_S


def _first_us(found: Deployment) -> float:
    """What a batch takes more whose rows all come over the bus: half of them do in a cache of half
    the rows, which are looked up alike."""
    cached = SoftwareCache(cache_frac=0.5).apply(found)
    full = SoftwareCache(cache_frac=1.0).apply(found)
    return 2 * max(lookups_us(cached) - lookups_us(full), 0.0)
