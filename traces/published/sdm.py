"""Software-defined memory: bytes that drives read for rows, and the power of a fleet."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.cost.tiers.drives import read_amplification
from perfmodel.designs.software_memory import FleetHost, UserSide, saving_frac
from perfmodel.embedding import Cache, Lru, TableAccess, steady_use, zipf
from perfmodel.evaluate.published_designs import Figure, Lab, case

from .drives import drive_in
from .sdm_box import (
    AMPLIFICATION_SOURCE,
    DRAM_CACHE_FRAC,
    DRIVE,
    DRIVES,
    MODEL_GB,
    PAPER,
    READ_AMPLIFICATION,
    ROW_BYTES,
    SAVING_PCT,
    SCENARIOS,
    SDM_ASSUMED,
    SKEW,
    USER_POOLING,
    USER_TABLES,
    Scenario,
)

OLD_QUERIES_PER_S = 240.0
"""Of one old host of scenario M1. Source: the paper, recalled."""


@case("V14-sdm")
def software_memory(lab: Lab) -> Iterator[Figure]:
    """Read amplification of NAND, and the three scenarios' savings."""
    for row_bytes, target in READ_AMPLIFICATION.items():
        found = float(read_amplification(drive_in(lab, DRIVE), row_bytes))
        yield Figure(
            f"V14-sdm-amplification-{row_bytes}",
            f"bytes read per byte of a row of {row_bytes} B, sectors of 4 KiB",
            "ratio",
            target,
            found,
            0.0,
            f"exact; {AMPLIFICATION_SOURCE}",
        )
    for scenario in SCENARIOS:
        yield Figure(
            f"V14-sdm-power-{scenario.name}",
            f"serving power saved, scenario {scenario.name.upper()}",
            "%",
            SAVING_PCT,
            round(100 * saving(scenario, user_side(lab))),
            0.0,
            f"exact arithmetic on recalled ratios of hosts; {PAPER}",
            (*SDM_ASSUMED, "compared in whole per cent, as the abstract gives them"),
        )


def user_side(lab: Lab) -> UserSide:
    """What a query of M1 reads from drives: its user tables behind a cache in DRAM."""
    rows = round(MODEL_GB * 1e9 / ROW_BYTES / USER_TABLES)
    table = TableAccess(popularity=zipf(rows, SKEW), lookups=USER_POOLING, row_bytes=ROW_BYTES)
    capacity = DRAM_CACHE_FRAC * rows * ROW_BYTES
    hit_frac = steady_use([table], Cache(capacity, Lru())).overall_hit_frac
    lookups = USER_TABLES * USER_POOLING
    return UserSide(drive_in(lab, DRIVE), DRIVES, lookups, ROW_BYTES, hit_frac)


def saving(scenario: Scenario, user: UserSide) -> float:
    """Of the old fleet's power; a new host serves no more than its drives do."""
    most = user.most_queries_per_s / OLD_QUERIES_PER_S
    beside = scenario.beside_per_host * scenario.beside_power
    old = FleetHost(1.0 + beside, 1.0, used_frac=scenario.old_used_frac)
    new = FleetHost(
        scenario.new_power, min(scenario.new_rate, most), used_frac=scenario.new_used_frac
    )
    return saving_frac(old.fleet_w(1.0), new.fleet_w(1.0))
