"""CachedEmbedding's benchmark: a step whose batch is prepared on the host, or read from a drive."""

from __future__ import annotations

from math import floor

from benchmarks.published.designs import Lab, Study
from perfmodel.base.units import US_PER_S
from perfmodel.designs.cached_tables import SoftwareCache
from perfmodel.prediction import predict
from perfmodel.workload import load_workload


def device_memory_gb(study: Study, workload: str, cache_frac: float) -> float:
    """Memory of the cache and its maps, C (4 D + 8) + 16 E: two maps have an int64 per row, one
    has one per place (hpcaitech/ColossalAI, cache_mgr.py)."""
    tables = load_workload(workload).tables
    rows = sum(table.rows for table in tables)
    return (floor(cache_frac * rows) * (4 * tables[0].dim + 8) + 16 * rows) / 1e9


def slowdown(
    study: Study,
    step: str,
    cache_frac: float,
    values: int,
    fitted_step: str,
    fitted_per_s: float,
    fitted_values: int,
    reader_per_s: float | None = None,
) -> float:
    """The step with a cache of `cache_frac` of the rows over the one with all in device memory.

    A batch of `values` per sample is prepared before each step; what one value takes is what the
    published rate of another step leaves. With `reader_per_s` the reader sets the step without a
    cache instead, and the cached one is no faster.
    """
    usual = Study(study.path, study.document, Lab())
    left_us = US_PER_S / fitted_per_s - usual.result(fitted_step).step_us
    value_us = max(left_us, 0.0) / (usual.deployment(fitted_step).batch * fitted_values)
    deployment = study.deployment(step)
    cached = predict(SoftwareCache("operators", cache_frac, "static").apply(deployment)).results[0]
    prepared_us = value_us * deployment.batch * values
    cached_us = prepared_us + cached.step_us
    if reader_per_s:
        plain_us = US_PER_S / reader_per_s
        return max(cached_us, plain_us) / plain_us
    return cached_us / (prepared_us + study.result(step).step_us)
