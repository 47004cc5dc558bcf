"""What `collect ops` trains: DLRMs that fill their space, and a few models of other kinds.

A prediction fitted to these is compared with those of `collect truth`: the lists share nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, groupby, islice, pairwise
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.families import kronecker, log_between
from perfmodel.collect.models import MODELS, Options, Ranks, Training
from perfmodel.collect.models.dlrm import FP32_BYTES, DlrmConfig, train_dlrm

TABLES, TABLES_POWER = (1, 26), 1.7
ROWS, DIM, POOLING = (1_000, 2_000_000), (8, 256), (1, 100)
BATCH, WIDTH, DENSE = (32, 4_096), (16, 1_024), (4, 1_024)
MAX_LAYERS = 5
MAX_ALPHA, UNIFORM_SHARE = 1.4, 0.4
STEP_US = (1_000.0, 60_000.0)
USUAL_TABLE_BYTES, MAX_TABLE_BYTES, LARGE_EVERY = 160_000_000, 1_000_000_000, 16
"""All tables of a configuration, and of every sixteenth: hundreds are held at the same time."""
COORDINATES = 10


def calibration_configs() -> Iterator[DlrmConfig]:
    """Endless configurations; every beginning of them covers the space.

    Rows lie within and beyond caches, indices are skewed and uniform, sizes aligned and not. Each
    takes roughly 1 to 60 ms on two cores; the first 100 together take about 8 GB.
    """
    low_us, high_us = STEP_US
    drawn = map(drawn_config, count())
    return (config for config in drawn if low_us < rough_step_us(config) < high_us)


def drawn_config(index: int) -> DlrmConfig:
    """Point `index` of the sequence; every fourth has tables of two sizes.

    Tables that would be too large together have fewer rows.
    """
    point = kronecker(index, COORDINATES)
    generator = np.random.default_rng(index)
    rows, dim, pooling, batch = (
        round(log_between(*limits, fraction))
        for limits, fraction in zip((ROWS, DIM, POOLING, BATCH), point[1:], strict=False)
    )
    tables = TABLES[0] + round((TABLES[1] - TABLES[0]) * point[0] ** TABLES_POWER)
    dim = _multiple(dim, 4 if index % 3 else 16)
    alpha = MAX_ALPHA * max(0.0, point[5] - UNIFORM_SHARE) / (1 - UNIFORM_SHARE)
    other = round(log_between(*ROWS, generator.random()))
    limit_bytes = MAX_TABLE_BYTES if index % LARGE_EVERY == 0 else USUAL_TABLE_BYTES
    limit = int(limit_bytes / (tables * dim * FP32_BYTES))
    second = tables // 2 if index % 4 == 3 else 0
    dense = round(log_between(*DENSE, point[6]))
    bottom = _widths(generator, point[7], index)
    top = _widths(generator, point[8], index)
    return DlrmConfig(
        name=f"dlrm{index:04}",
        rows=(min(rows, limit),) * (tables - second) + (min(other, limit),) * second,
        dim=dim,
        pooling=pooling,
        batch=_multiple(batch, 32) if index % 2 else batch,
        bottom=(dense, *bottom[:-1], dim),
        top=(*top[:-1], 1),
        zipf_alpha=round(alpha, 3),
    )


def rough_step_us(config: DlrmConfig) -> float:
    """A rough step time on two cores, only to leave out what is far too short or too long."""
    pairs = len(config.rows) + 1
    top = (config.dim + pairs * (pairs - 1) // 2, *config.top)
    products = sum(
        wide * next_wide for widths in (config.bottom, top) for wide, next_wide in pairwise(widths)
    )
    lookups = len(config.rows) * config.batch * config.pooling
    joined = config.batch * pairs * (config.dim + pairs) * FP32_BYTES
    flop = 6.0 * config.batch * (products + pairs * pairs * config.dim)
    return (
        1_000.0 + 6e-6 * flop + 1.5e-3 * joined + lookups * (0.05 + 2e-4 * config.dim * FP32_BYTES)
    )


def _widths(generator: np.random.Generator, fraction: float, index: int) -> tuple[int, ...]:
    """Up to `MAX_LAYERS` widths; those of even points are multiples of 16."""
    layers = 1 + int(fraction * MAX_LAYERS)
    widths = [round(log_between(*WIDTH, value)) for value in generator.random(layers)]
    return tuple(_multiple(width, 16) if index % 2 == 0 else width for width in widths)


def _multiple(value: int, of: int) -> int:
    return max(1, round(value / of)) * of


OTHERS = (
    ("transformer", "mini", 4),
    ("resnet", "mini", 8),
    ("transformer", "mini", 16),
    ("resnet", "small", 2),
    ("transformer", "tiny", 8),
    ("resnet", "tiny", 16),
)
"""Model, preset and batch; one of them after every tenth DLRM."""
OTHER_EVERY = 10


@dataclass(frozen=True)
class Workload:
    """A model to train: `build` makes it, `held_bytes` is about what it keeps between steps."""

    name: str
    model: str
    build: Callable[[Backend], Training]
    held_bytes: int = 0
    dims: dict[str, Any] = field(default_factory=dict)
    """What tables say of it."""


def dims_of(config: DlrmConfig) -> dict[str, Any]:
    """What a table says of `config`: widths joined by `-`, runs of equal tables as `2x5 1x7`."""
    runs = [f"{len(list(run))}x{rows}" for rows, run in groupby(config.rows)]
    return {
        "name": config.name,
        "tables": len(config.rows),
        "rows_per_table": " ".join(runs),
        "table_bytes": config.table_bytes,
        "dim": config.dim,
        "pooling": config.pooling,
        "batch_per_rank": config.batch,
        "zipf_alpha": config.zipf_alpha,
        "bottom_mlp": "-".join(map(str, config.bottom)),
        "top_mlp": "-".join(map(str, config.top)),
    }


def calibration_workloads(wanted: int) -> list[Workload]:
    """`wanted` workloads; every beginning of the list covers the space."""
    others = list(OTHERS)
    listed: list[Workload] = []
    for number, config in enumerate(islice(calibration_configs(), wanted), start=1):
        listed.append(dlrm_workload(config))
        if number % OTHER_EVERY == 0 and others:
            listed.append(_other_workload(*others.pop(0)))
    return listed[:wanted]


def dlrm_workload(config: DlrmConfig) -> Workload:
    """The DLRM of `config`."""
    return Workload(
        config.name,
        "dlrm",
        lambda backend: train_dlrm(backend, Ranks(), config),
        config.held_bytes,
        dims_of(config),
    )


def _other_workload(model: str, preset: str, batch: int) -> Workload:
    name, options = f"{model}_{preset}_b{batch}", Options(preset=preset, batch=batch)
    dims = {"name": name, "description": {"batch": batch}}
    return Workload(
        name, model, lambda backend: MODELS[model](backend, Ranks(), options), dims=dims
    )
