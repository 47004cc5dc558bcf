"""Random problems of the planner, of any size."""

from __future__ import annotations

import numpy as np

from perfmodel.designs.layouts.problem import ANY, EVERY, GROUP, FixedTimes, Problem, Way
from perfmodel.embedding import Sharding
from perfmodel.workload.tables import Table

KINDS = {"table_wise": 0, "column_wise": 0, "row_wise": 1, "table_row_wise": 2, "data_parallel": 3}

ANY_TABLE = Table(rows=1, dim=1, pooling=1.0)


def problem(seed: int, tables: int, ranks: int, linked: int, room: float = 1.3) -> Problem:
    """Tables with work, exchange and bytes that have nothing to do with one another; device memory
    for `room` times the bytes of all."""
    draw = np.random.default_rng(seed)
    ways: list[Way] = []
    times: list[tuple[float, ...]] = []
    total = 0.0

    def add(
        table: int, parts: int, reach: int, sharding: Sharding, size: float, *times_us: float
    ) -> None:
        ways.append(Way(table, sharding, "hbm", parts, reach, ANY_TABLE, "fp32", size))
        times.append((KINDS[sharding], *times_us))

    for table in range(tables):
        work, sent, size = draw.lognormal(3), draw.lognormal(2, 0.7), draw.lognormal(1, 1.2)
        total += size
        add(table, 1, ANY, "table_wise", size, work, sent, 0, 0)
        for parts in (2, 4):
            if parts <= ranks:
                split_us = work / parts * 1.15 + 1, sent / parts
                add(table, parts, ANY, "column_wise", size / parts, *split_us, 0, 0)
        part_us = work / ranks * 1.1 + 0.5
        add(table, ranks, EVERY, "row_wise", size / ranks, part_us, 0, 1.3 * sent, 0)
        if ranks > linked:
            near_us = work / linked * 1.1 + 0.5, sent / linked * 1.5
            add(table, linked, GROUP, "table_row_wise", size / linked, *near_us, 0, 0)
        add(table, ranks, EVERY, "data_parallel", size, work / ranks + 0.2, 0, 0, 8 * size)
    kind, work_us, sent_us, shared_us, summed_us = np.array(times).T
    return Problem(
        tuple(ways),
        kind.astype(int),
        work_us,
        np.array([sent_us, np.roll(sent_us, 1) * (sent_us > 0)]),
        shared_us,
        summed_us,
        np.zeros(len(ways)),
        np.zeros(len(ways)),
        ranks,
        linked,
        room_bytes=(total / ranks * room, np.inf),
        fixed_us=(5.0, 6.0, 7.0, 4.0),
        beside=FixedTimes(50.0, (5.0, 8.0), 20.0, 10.0),
    )
