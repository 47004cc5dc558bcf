"""Random problems of the planner, of any size."""

from __future__ import annotations

import numpy as np

from perfmodel.explore.planner.problem import ANY, EVERY, GROUP, Choices, FixedTimes, Problem

KINDS = {"table_wise": 0, "column_wise": 0, "row_wise": 1, "table_row_wise": 2, "data_parallel": 3}


def problem(seed: int, tables: int, ranks: int, linked: int, room: float = 1.3) -> Problem:
    """Tables with work, exchange and bytes that have nothing to do with one another; device memory
    for `room` times the bytes of all."""
    draw = np.random.default_rng(seed)
    rows = []
    total = 0.0
    for table in range(tables):
        work, sent, size = draw.lognormal(3), draw.lognormal(2, 0.7), draw.lognormal(1, 1.2)
        total += size
        rows.append((table, 1, ANY, "table_wise", work, sent, 0.0, 0.0, size))
        for parts in (2, 4):
            if parts <= ranks:
                split = work / parts * 1.15 + 1, sent / parts, 0.0, 0.0, size / parts
                rows.append((table, parts, ANY, "column_wise", *split))
        part = work / ranks * 1.1 + 0.5
        rows.append((table, ranks, EVERY, "row_wise", part, 0.0, 1.3 * sent, 0.0, size / ranks))
        if ranks > linked:
            near = work / linked * 1.1 + 0.5, sent / linked * 1.5, 0.0, 0.0, size / linked
            rows.append((table, linked, GROUP, "table_row_wise", *near))
        copy = work / ranks + 0.2, 0.0, 0.0, 8 * size, size
        rows.append((table, ranks, EVERY, "data_parallel", *copy))
    columns = list(zip(*rows, strict=True))
    numbers = [np.array(columns[at], np.float64) for at in range(4, 9)]
    choices = Choices(
        np.array(columns[0]),
        np.array(columns[1]),
        np.array(columns[2]),
        np.array([KINDS[name] for name in columns[3]]),
        *numbers,
        np.zeros(len(rows)),
        np.zeros(len(rows)),
        np.zeros(len(rows)),
        tuple(columns[3]),
        ("hbm",) * len(rows),
    )
    return Problem(
        choices,
        ranks,
        linked,
        hbm_bytes=total / ranks * room,
        fixed_us=(5.0, 6.0, 7.0, 0.0),
        beside=FixedTimes(50.0, (5.0, 8.0), 20.0, 10.0),
    )
