"""`collect steps`: training steps of DLRMs that fill the space of configurations evenly, timed in
turns, without the profiler."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import count as numbers
from itertools import groupby, islice, pairwise
from typing import Any

import numpy as np

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.backend import device_name, open_backend
from perfmodel.collect.families import kronecker, log_between
from perfmodel.collect.models import Training
from perfmodel.collect.models.dlrm import FP32_BYTES, DlrmConfig, train_dlrm
from perfmodel.collect.runs import Run, add_common, count
from perfmodel.collect.timing import halves_frac, summarize, time_step

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
    drawn = map(drawn_config, numbers())
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


DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = ("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac")


def figures_of(rounds_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The robust step time of one model and its spread, of what each step took, round by round."""
    steps_us = [value for taken in rounds_us for value in taken]
    figures: dict[str, Any] = {"rounds": len(rounds_us), "steps": len(steps_us)}
    return figures | {**summarize(steps_us), "halves_frac": halves_frac(rounds_us)}


FIRST_WARM_UP = 4
"""Steps in which a new model first allocates memory and its libraries choose kernels."""
TARGET_US, LEAST, MOST = 40_000.0, 3, 8
"""Of the steps of a round: as many as fit, within limits."""
MEMORY_SHARE = 0.75
"""Of what is free, for models that stay side by side: other programs grow, too."""
MAX_ROUNDS = 200
PER_MINUTE = 24
"""Models: 2.5 seconds for each, all its rounds together."""


class Turns:
    """The models of `configs`, built when first due and trained in turns; `run.skipped` says why
    one is not.

    Rounds over all models spread slow drifts evenly.
    """

    def __init__(self, run: Run, configs: Sequence[DlrmConfig]) -> None:
        self.run, self.backend, self.configs = run, run.backend, configs
        self.rounds_us: dict[str, list[list[float]]] = {}
        self._left_bytes = MEMORY_SHARE * run.backend.free_bytes()
        self._trainings: dict[str, Training] = {}
        self._number = 0

    def take(self, most_rounds: int) -> None:
        """A few steps of every model per round, until the time or the rounds are used up."""
        for _ in range(most_rounds):
            for config in self.configs:
                if self.run.is_over:
                    return
                training = self._training(config)
                if training is not None:
                    steps = min(max(int(TARGET_US / max(self._step(training), 1.0)), LEAST), MOST)
                    taken_us = [round(self._step(training), 1) for _ in range(steps)]
                    self.rounds_us.setdefault(config.name, []).append(taken_us)
            if not self._trainings:
                return

    def rows(self) -> list[dict[str, Any]]:
        """A row per model with rounds: its dims and its figures."""
        setting = {
            "device": device_name(self.backend),
            "ranks": 1,
            "threads_per_rank": self.backend.threads,
        }
        return [
            {"model": "dlrm", **setting, **dims_of(each), **figures_of(self.rounds_us[each.name])}
            for each in self.configs
            if each.name in self.rounds_us
        ]

    def _step(self, training: Training) -> float:
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def _training(self, config: DlrmConfig) -> Training | None:
        """The model of `config`, warmed up; `None`, and a note, where it does not fit."""
        name, skipped = config.name, self.run.skipped
        if name in self._trainings or name in skipped:
            return self._trainings.get(name)
        if config.held_bytes >= min(self._left_bytes, self.backend.free_bytes()):
            skipped[name] = f"needs {config.held_bytes / BYTES_PER_GB:.1f} GB"
            return None
        self._left_bytes -= config.held_bytes
        try:
            training = train_dlrm(self.backend, config)
            for _ in range(FIRST_WARM_UP):
                self._step(training)
        except (RuntimeError, MemoryError) as error:
            if not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, "steps", 5.0)
    parser.add_argument(
        "--configurations",
        type=count,
        help=f"how many models to train in turns (default: {PER_MINUTE} per minute)",
    )


def run(arguments: argparse.Namespace) -> None:
    wanted = arguments.configurations or max(1, round(PER_MINUTE * arguments.minutes))
    configs = tuple(islice(calibration_configs(), wanted))
    current = Run("steps", arguments, open_backend(arguments.device))
    turns = Turns(current, configs)
    try:
        turns.take(MAX_ROUNDS)
    finally:
        rows = turns.rows()
        current.write(
            ("model", *DIMS, *FIGURES),
            rows,
            "configurations",
            configurations_planned=len(configs),
            rounds=sum(row["rounds"] for row in rows),
        )
