"""Power of a fleet of hosts before and after tables move to drives."""

from __future__ import annotations

from benchmarks.published.designs import Study
from perfmodel.cost.tiers.drives import reads_per_s
from perfmodel.embedding import TableAccess, steady_use, zipf


def power_saved_pct(
    study: Study,
    drive: str,
    drives: int,
    user_tables: int,
    user_pooling: float,
    model_gb: float,
    row_bytes: int,
    dram_cache_frac: float,
    alpha: float,
    old_queries_per_s: float,
    new_power: float,
    new_rate: float,
    remote_hosts: float = 0.0,
    remote_power: float = 0.0,
    old_used_frac: float = 1.0,
    new_used_frac: float = 1.0,
) -> float:
    """Share of the old fleet's power, in whole per cent; a new host serves no more than its drives.

    Powers, rates and remote hosts are relative to one old host.
    """
    rows = round(model_gb * 1e9 / row_bytes / user_tables)
    table = TableAccess(popularity=zipf(rows, alpha), lookups=user_pooling, row_bytes=row_bytes)
    hit_frac = steady_use([table], dram_cache_frac * rows * row_bytes).overall_hit_frac
    reads = user_tables * user_pooling * (1 - hit_frac)
    served_per_s = drives * float(reads_per_s(study.lab.drive(drive), row_bytes)) / reads
    rate = min(new_rate, served_per_s / old_queries_per_s)
    old_fleet = (1.0 + remote_hosts * remote_power) / old_used_frac
    return round(100 * (1 - new_power / (rate * new_used_frac) / old_fleet))
